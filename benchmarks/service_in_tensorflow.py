"""TensorFlow's data service with worker processes; run by `service.py` in an interpreter that has TensorFlow."""

import json
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

WORKERS = 2
BATCH, BATCHES = 84, 60
IMAGE = (224, 224, 3)
ELEMENTS = 10_000
service = tf.data.experimental.service


def work(address: str) -> None:
    """As one of the worker processes."""
    service.WorkerServer(service.WorkerConfig(dispatcher_address=address)).join()


def exhaust(dataset: tf.data.Dataset) -> float:
    """Seconds of one pass."""
    start = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - start


def measure(target: str) -> dict[str, float]:
    """GB/s of batches of 12.6 MB, elements/s of a range, and milliseconds of a pass over 100 elements."""

    def through(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.apply(service.distribute("distributed_epoch", target, compression=None))

    pool = tf.random.uniform((84, *IMAGE), maxval=256, dtype=tf.int32, seed=0)
    pool = tf.cast(pool, tf.uint8)
    images = tf.data.Dataset.range(BATCHES).map(lambda i: tf.gather(pool, tf.random.shuffle(tf.range(BATCH))))
    seconds = min(exhaust(through(images)) for _ in range(3))
    return {
        "gigabytes": BATCHES * BATCH * int(np.prod(IMAGE)) / seconds / 1e9,
        "elements": ELEMENTS / min(exhaust(through(tf.data.Dataset.range(ELEMENTS))) for _ in range(2)),
        "milliseconds": 1e3 * min(exhaust(through(tf.data.Dataset.range(100))) for _ in range(3)),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        dispatcher = service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        workers = [subprocess.Popen([sys.executable, __file__, address]) for _ in range(WORKERS)]
        try:
            print(json.dumps(measure(dispatcher.target)))
        finally:
            for worker in workers:
                worker.kill()
