"""TensorFlow's data service with worker processes: for each name on a line of the input one pass, and its seconds.

`benchmarks.service` starts it with an interpreter that has TensorFlow, where penstock is not. Where TensorFlow lets its
user choose, this chooses what was fastest: no compression, no order, steps in parallel and fetched ahead on the workers
and here. Each element of a range is a split, which is asked of the dispatcher; "numbers in splits" are a thousand in
each. "batched" and "rebatched" are what its users do: whole batches of a thousand come from the workers, and are taken
as they are, or apart and put together again here. The end of a pass is found out about by asking once a second; it
counts only where a whole pass is measured.
"""

import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

WORKERS = 2
POOL, BATCH, BATCHES = 256, 84, 120
IMAGE = (224, 224, 3)
ELEMENTS, SPLIT, BATCHED = 10_000, 1_000, 1_000_000
service = tf.data.experimental.service


def work(address: str) -> None:
    """As one of the worker processes."""
    service.WorkerServer(service.WorkerConfig(dispatcher_address=address)).join()


def images() -> tf.data.Dataset:
    """Batches of 12.6 MB, gathered from a pool; made batch by batch, which is faster than row by row."""
    pool = tf.constant(np.random.default_rng(0).integers(0, 256, (POOL, *IMAGE), np.uint8))

    def batch(_: tf.Tensor) -> tf.Tensor:
        return tf.gather(pool, tf.random.uniform((BATCH,), maxval=POOL, dtype=tf.int32))

    return tf.data.Dataset.range(BATCHES).map(batch, num_parallel_calls=2, deterministic=False).prefetch(4)


def numbers(count: int, split: int) -> tf.data.Dataset:
    """A number each, of which the workers take so many at a time."""
    splits = tf.data.Dataset.range(0, count, split)
    return splits.flat_map(lambda start: tf.data.Dataset.range(start, start + split)).prefetch(split)


def between_elements(dataset: tf.data.Dataset) -> float:
    """Seconds from the first element to the last, for as many as there are."""
    iterator = iter(dataset)
    next(iterator)
    start, last, count = time.perf_counter(), 0.0, 1
    for _ in iterator:
        last, count = time.perf_counter(), count + 1
    return (last - start) * count / (count - 1)


def whole_pass(dataset: tf.data.Dataset) -> float:
    """Seconds until the iteration has ended."""
    start = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - start


def serve(target: str) -> None:
    """Measure what is asked for, until the input ends."""
    options = tf.data.Options()
    options.deterministic = False

    def through(dataset: tf.data.Dataset) -> tf.data.Dataset:
        distributed = dataset.apply(service.distribute("distributed_epoch", target, compression=None))
        return distributed.prefetch(4).with_options(options)

    batched = through(numbers(BATCHED, SPLIT).batch(SPLIT))
    measures = {
        "batched": (between_elements, batched),
        "rebatched": (between_elements, batched.unbatch().batch(100)),
        "images": (between_elements, through(images())),
        "numbers": (between_elements, through(tf.data.Dataset.range(ELEMENTS))),
        "numbers in splits": (between_elements, through(numbers(ELEMENTS, SPLIT))),
        "few": (whole_pass, through(numbers(100, 1))),
    }
    for line in sys.stdin:
        measured, dataset = measures[line.strip()]
        print(measured(dataset), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        dispatcher = service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        workers = [subprocess.Popen([sys.executable, __file__, address]) for _ in range(WORKERS)]
        try:
            serve(dispatcher.target)
        finally:
            for worker in workers:
                worker.kill()
