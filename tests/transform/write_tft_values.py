"""Computes what TensorFlow Transform gives for `tft_cases.py`, and writes it to tft_values.json; run once, by hand:

pip install tensorflow-transform && PYTHONPATH=tests/support python tests/transform/write_tft_values.py
"""

import inspect
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import apache_beam as beam
import numpy as np
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils
from tft_cases import VOCABULARIES, preprocess, rows

SPEC = {
    **{name: tf.io.FixedLenFeature([], tf.float32) for name in ("x", "m", "same", "tail", "weight")},
    **{name: tf.io.FixedLenFeature([], tf.float32) for name in ("infinite", "both", "nothing")},
    "y": tf.io.FixedLenFeature([], tf.float32),
    **{name: tf.io.FixedLenFeature([3], tf.float32) for name in ("v", "tails")},
    **{name: tf.io.FixedLenFeature([], tf.int64) for name in ("i", "label")},
    **{name: tf.io.FixedLenFeature([], tf.string) for name in ("w", "key", "lines")},
    "tokens": tf.io.VarLenFeature(tf.string),
    "numbers": tf.io.VarLenFeature(tf.float32),
    "labels": tf.io.VarLenFeature(tf.int64),
    "gaps": tf.io.SparseFeature("gap_indices", "gap_values", tf.float32, 7),
}


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (np.ndarray, list)):
        return [plain(entry) for entry in np.asarray(value).tolist()] if len(value) else []
    return value.item() if isinstance(value, np.generic) else value


def backwards(tokens, path):
    initializer = tf.lookup.TextFileInitializer(
        path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    table = tf.lookup.StaticHashTable(initializer, -1)
    return table.size() - 1 - table.lookup(tokens), table.size() + 1


def fn(columns):
    def dense(change):
        gaps = columns["gaps"]
        return tft.sparse_tensor_to_dense_with_shape(change(gaps), [None, 7], -9.0)

    return preprocess(
        tft,
        columns,
        lambda x, value: x[:, None] * 0 + tf.cast(value, x.dtype),
        tf.matmul,
        tf.float32,
        tf.float64,
        lambda x: tf.cast(x, tf.float32),
        experimental=tft.experimental,
        backwards=backwards,
        dense=dense,
    )


metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(SPEC))
with tempfile.TemporaryDirectory() as directory:
    where = str(Path(directory) / "transform")
    with tft_beam.Context(temp_dir=directory, desired_batch_size=1000), beam.Pipeline() as pipeline:
        data = pipeline | beam.Create(rows())
        one = data | beam.transforms.util.BatchElements(min_batch_size=1000, max_batch_size=1000) | beam.FlatMap(list)
        (transformed, _), transform_fn = (one, metadata) | tft_beam.AnalyzeAndTransformDataset(fn)
        transform_fn | tft_beam.WriteTransformFn(where)
        (
            transformed
            | beam.Map(lambda row: json.dumps({n: plain(v) for n, v in row.items()}))
            | beam.io.WriteToText(f"{directory}/rows", shard_name_template="", file_name_suffix=".txt")
        )
    output = tft.TFTransformOutput(where)
    found = [json.loads(line) for line in Path(f"{directory}/rows.txt").read_text().splitlines()]
    vocabularies = {name: [token.decode() for token in output.vocabulary_by_name(name)] for name in VOCABULARIES}
names = ["tensorflow-transform", "tensorflow", "apache-beam", "numpy"]
parameters = {}
for module in (tft, tft.experimental):
    for name, function in vars(module).items():
        if getattr(function, "__module__", "").startswith("tensorflow_transform") and inspect.isfunction(function):
            given = inspect.signature(function).parameters.values()
            parameters[name] = {p.name: None if p.default is p.empty else repr(p.default) for p in given}
values = {
    "parameters": parameters,
    "made by": {name: version(name) for name in names},
    "vocabularies": vocabularies,
    "outputs": {name: [row.get(name, []) for row in found] for name in sorted(found[0])},
}
Path(__file__).with_name("tft_values.json").write_text(json.dumps(values) + "\n")
