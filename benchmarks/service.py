"""The data service with worker processes on this machine, against what this one produces into memory.

Where PENSTOCK_BENCH_TENSORFLOW names an interpreter with TensorFlow, also against its service, with as many workers.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import penstock as ps
from benchmarks.timing import Figure

WORKERS = 2
BATCH, BATCHES = 84, 120
IMAGE = (224, 224, 3)
GIGABYTES = BATCHES * BATCH * int(np.prod(IMAGE)) / 1e9
ELEMENTS = 100_000
BUSY = 300


def images() -> ps.Dataset:
    """Batches of 12.6 MB, gathered from a pool in an order that cannot be had by views."""
    pool = np.random.default_rng(0).integers(0, 256, (256, *IMAGE), np.uint8)
    return ps.Dataset.from_tensor_slices(pool).repeat().shuffle(256, seed=1).take(BATCH * BATCHES).batch(BATCH)


def spin(x: int) -> int:
    """Keeps Python's lock for about a millisecond."""
    total = 0
    for number in range(20_000):
        total += number ^ int(x)
    return total


def exhaust(dataset: ps.Dataset) -> float:
    """Seconds of one pass."""
    start = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - start


def best(work: Callable[[], float], rounds: int = 3) -> float:
    """The shortest of several times, after one that does not count."""
    work()
    return min(work() for _ in range(rounds))


def measure() -> list[Figure]:
    """The figures of this file."""
    theirs = tensorflow()
    with ps.service.local(num_workers=WORKERS) as service:

        def through(dataset: ps.Dataset, **arguments: object) -> ps.Dataset:
            return dataset.apply(ps.service.distribute("distributed_epoch", service.target, **arguments))

        in_memory = best(lambda: exhaust(images()))
        shared, flight = images(), images()
        shared, flight = through(shared), through(flight, data_transfer_protocol="flight", compression=None)
        by_memory, by_flight = best(lambda: exhaust(shared)), best(lambda: exhaust(flight))
        numbers, few = through(ps.Dataset.range(ELEMENTS)), through(ps.Dataset.range(100))
        rate = ELEMENTS / best(lambda: exhaust(numbers))
        milliseconds = 1e3 * best(lambda: exhaust(few), 9)
        slow = ps.Dataset.range(BUSY).map(spin)
        here, there = best(lambda: exhaust(slow)), through(slow)
        speed_up = here / best(lambda: exhaust(there))
    figures = [
        Figure("batches of 12.6 MB from 2 processes / produced in this one", in_memory / by_memory, 0.6),
        Figure("batches of 12.6 MB from 2 processes", GIGABYTES / by_memory, 3.6, unit="GB/s"),
        Figure("the same through Arrow Flight", GIGABYTES / by_flight, 1.4, unit="GB/s"),
        Figure(f"range({ELEMENTS}), a number each", rate / 1e3, 380, unit="k elements/s"),
        Figure("a pass over 100 elements", milliseconds, 50, False, "ms"),
        Figure("a map that keeps Python's lock, 2 processes / in this one", speed_up, 1.7),
    ]
    if theirs:
        figures += [
            Figure("batches of 12.6 MB / TensorFlow's service", GIGABYTES / by_memory / theirs["gigabytes"], 4),
            Figure("the same through Arrow Flight / TensorFlow's", GIGABYTES / by_flight / theirs["gigabytes"], 1.5),
            Figure(f"range({ELEMENTS}) / TensorFlow's service", rate / theirs["elements"], 200),
            Figure("a pass over 100 elements / TensorFlow's", milliseconds / theirs["milliseconds"], 0.05, False),
        ]
    return figures


def tensorflow() -> dict[str, float]:
    """The same through TensorFlow's service; nothing where no interpreter for it is named."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if not python:
        print("PENSTOCK_BENCH_TENSORFLOW names no interpreter with TensorFlow: not compared with it", file=sys.stderr)
        return {}
    script = os.path.join(os.path.dirname(__file__), "service_in_tensorflow.py")
    output = subprocess.run([python, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return dict(json.loads(output.stdout.splitlines()[-1]))
