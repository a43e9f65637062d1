"""Batches of images in TensorFlow: for each line of the input an epoch, of which it prints the processor seconds.

`benchmarks.images` starts it with an interpreter that has TensorFlow, where penstock is not.
"""

import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

BATCH = 32
SMALL = (224, 224)


def main(directory: str) -> None:
    """Read a folder of JPEG files, decode them in two threads, and make batches."""
    names = sorted(map(str, Path(directory).rglob("*.jpg")))

    def load(name: Any, way: str) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        return image if way == "whole" else tf.image.resize(image, SMALL, antialias=way == "smoothed")

    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    for line in sys.stdin:
        way = line.strip()
        dataset = tf.data.Dataset.from_tensor_slices(names)
        dataset = dataset.map(lambda name: load(name, way), num_parallel_calls=2)  # noqa: B023  # traced at once
        begun = time.process_time()
        for _ in dataset.batch(BATCH).with_options(options):
            pass
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
