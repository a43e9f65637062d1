"""TensorFlow Transform analyzes rows on Beam's DirectRunner: prints how many seconds that took.

`benchmarks.transform` starts it with an interpreter that has tensorflow_transform, where penstock is not, and gives it
a file of rows that NumPy has saved.
"""

import sys
import tempfile
import time

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils


def preprocess(columns):  # type: ignore[no-untyped-def]
    """z-scores, buckets and a vocabulary."""
    return {
        "x0": tft.scale_to_z_score(columns["x0"]),
        "x1": tft.scale_to_z_score(columns["x1"]),
        "x2": tft.bucketize(columns["x2"], 10),
        "x3": tft.scale_to_0_1(columns["x3"]),
        "word": tft.compute_and_apply_vocabulary(columns["word"]),
    }


def main(path: str) -> None:
    """Analyze the rows of a file."""
    columns = dict(np.load(path))
    rows = [dict(zip(columns, row)) for row in zip(*(column.tolist() for column in columns.values()))]
    spec = {name: tf.io.FixedLenFeature([], tf.string if name == "word" else tf.float32) for name in columns}
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    begin = time.perf_counter()
    directory = tempfile.mkdtemp(dir=".")
    with tft_beam.Context(temp_dir=directory), beam.Pipeline() as pipeline:
        data = pipeline | beam.Create(rows)
        found = (data, metadata) | tft_beam.AnalyzeDataset(preprocess)
        found | tft_beam.WriteTransformFn(f"{directory}/transform")
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    main(sys.argv[1])
