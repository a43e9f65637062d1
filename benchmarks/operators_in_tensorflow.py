"""Operators of tf.data: for each line of the input, which names a case, an epoch, of which it prints processor seconds.

`benchmarks.operators` starts it with an interpreter that has TensorFlow, where penstock is not.
"""

import sys
import time
from typing import Any

import tensorflow as tf

BATCH = 256


def interleaved(member: str, cycle: int, rows: int) -> Any:
    """Datasets of equal length, a row of each in turn."""
    kinds = {
        "range": lambda _: tf.data.Dataset.range(rows // cycle),
        "map": lambda _: tf.data.Dataset.range(rows // cycle).map(lambda x: x + 1),
        "filter": lambda _: tf.data.Dataset.range(rows // cycle).filter(lambda x: x >= 0),
    }
    return tf.data.Dataset.range(cycle).interleave(kinds[member], cycle, 1)


def grouped(keys: int, size: int, rows: int) -> Any:
    """Windows of rows of equal keys, as batches, taken apart again."""
    numbers = tf.data.Dataset.range(rows)
    return numbers.group_by_window(lambda x: x % keys, lambda _, window: window.batch(size), window_size=size).unbatch()


def main() -> None:
    """Run the cases."""
    cases = {"interleave": interleaved, "group": grouped}
    for line in sys.stdin:
        name, *arguments = line.split()
        dataset = cases[name](*(int(word) if word.isdecimal() else word for word in arguments)).batch(BATCH)
        begun = time.process_time()
        for _ in dataset.as_numpy_iterator():
            pass
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    main()
