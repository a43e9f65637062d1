"""TFRecords in TensorFlow: for each line of the input an epoch, of which it prints the processor seconds.

`benchmarks.formats` starts it with an interpreter that has TensorFlow, where penstock is not.
"""

import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

BATCH = 256
ROWS = 60_000


def write(path: Path) -> None:
    """Records of 16 floats, an integer and a string."""
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, values in enumerate(rng.random((ROWS, 16), np.float32)):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
                "i": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                "s": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"word %d" % number])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def main(path: Path) -> None:
    """Write the file, and read it as often as there are lines: "read" batches of records, or "parse" them too."""
    write(path)
    print("written", flush=True)
    features = {
        "x": tf.io.FixedLenFeature([16], tf.float32),
        "i": tf.io.FixedLenFeature([], tf.int64),
        "s": tf.io.FixedLenFeature([], tf.string),
    }
    for line in sys.stdin:
        dataset = tf.data.TFRecordDataset(str(path)).batch(BATCH)
        if line.strip() == "parse":
            dataset = dataset.map(lambda records: tf.io.parse_example(records, features))
        begun = time.process_time()
        for _ in dataset:
            pass
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
