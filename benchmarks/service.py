"""The data service with worker processes on this machine, against what this one produces into memory.

Where PENSTOCK_BENCH_TENSORFLOW names an interpreter with TensorFlow, also against its service, with as many workers.
Whatever is compared takes turns.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, best_in_turn, medians_in_turn, seconds

WORKERS = 2
BATCH, BATCHES = 84, 120
IMAGE = (224, 224, 3)
GIGABYTES = BATCHES * BATCH * int(np.prod(IMAGE)) / 1e9
ELEMENTS = 100_000
TENSORFLOW_ELEMENTS = 10_000
BATCHED = 1_000_000
BUSY = 600

Measure = Callable[[], float]
"""Does something once; gives the seconds that it took."""


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


def passing(dataset: ps.Dataset) -> Measure:
    """Goes through a dataset."""

    def go() -> float:
        start = time.perf_counter()
        for _ in dataset:
            pass
        return time.perf_counter() - start

    return go


def reading(dataset: ps.Dataset) -> Measure:
    """Goes through a dataset of images, and reads every byte of each batch, as a trainer does."""

    def go() -> float:
        start = time.perf_counter()
        for batch in dataset:
            batch.reshape(-1).view(np.uint64).max()
        return time.perf_counter() - start

    return go


def measure() -> list[Figure]:
    """The figures of this file."""
    with ps.service.local(num_workers=WORKERS) as service, tensorflow() as theirs:

        def through(dataset: ps.Dataset, **arguments: object) -> Measure:
            return passing(dataset.apply(ps.service.distribute("distributed_epoch", service.target, **arguments)))

        flight = through(images(), data_transfer_protocol="network", compression=None)
        distributed = images().apply(ps.service.distribute("distributed_epoch", service.target))
        here, by_memory, read, by_flight, *others = best_in_turn(
            [passing(images()), passing(distributed), reading(distributed), flight, *theirs("images")]
        )
        figures = [
            Figure("batches of 12.6 MB from 2 processes / produced in this one", here / by_memory, 0.5),
            Figure("batches of 12.6 MB from 2 processes, every byte read", GIGABYTES / read, 3, unit="GB/s"),
            Figure("the same, views that nobody reads", GIGABYTES / by_memory, 3, unit="GB/s"),
            Figure("the same over TCP", GIGABYTES / by_flight, 1, unit="GB/s"),
            *[Figure("batches of 12.6 MB / TensorFlow's service", other / by_memory, 4) for other in others],
            *[Figure("the same over TCP / TensorFlow's", other / by_flight, 1) for other in others],
        ]
        figures += in_batches(service.target, theirs)
        ways = [through(ps.Dataset.range(ELEMENTS)), *theirs("numbers"), *theirs("numbers in splits")]
        numbers, *others = best_in_turn(ways)
        ratios = [other / TENSORFLOW_ELEMENTS * ELEMENTS / numbers for other in others]
        figures += [
            Figure(f"range({ELEMENTS}), a number each", 1e-3 * ELEMENTS / numbers, 200, unit="k elements/s"),
            *[Figure("a number each / TensorFlow's", ratio, 100) for ratio in ratios[:1]],
            *[Figure("the same / TensorFlow's in splits of 1,000", ratio, 50) for ratio in ratios[1:]],
        ]
        few, *others = best_in_turn([through(ps.Dataset.range(100)), *theirs("few")], rounds=9)
        figures += [
            Figure("a pass over 100 elements", 1e3 * few, 50, False, "ms"),
            *[Figure("a pass over 100 elements / TensorFlow's", few / other, 0.05, False) for other in others],
        ]
        slow = ps.Dataset.range(BUSY).map(spin)
        with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:

            def bare() -> float:
                return seconds(lambda: list(pool.map(spin, np.arange(BUSY), chunksize=BUSY // WORKERS)))

            here, there, limit = medians_in_turn([passing(slow), through(slow), bare], rounds=11)
        return [
            *figures,
            Figure("a map that keeps Python's lock, 2 processes / in this one", here / there, 1.5),
            Figure("the same / 2 bare processes", limit / there, 0.7),
        ]


def in_batches(target: str, theirs: Callable[[str], list[Measure]]) -> list[Figure]:
    """Numbers as users of TensorFlow's service send them, on both sides: in batches of a thousand.

    These are taken as they are, or apart and put together again in this process.
    """
    batches = ps.Dataset.range(BATCHED).batch(1_000)
    distributed = batches.apply(ps.service.distribute("distributed_epoch", target))
    figures = []
    for name, question, dataset, goal in (
        ("batched", "a million numbers in batches of 1,000 / TensorFlow's", distributed, 10),
        ("rebatched", "the same, made into batches of 100 here / TensorFlow's", distributed.unbatch().batch(100), 20),
    ):
        ours, *others = best_in_turn([passing(dataset), *theirs(name)])
        figures += [Figure(question, other / ours, goal) for other in others]
    return figures


@contextmanager
def tensorflow() -> Iterator[Callable[[str], list[Measure]]]:
    """Gives what TensorFlow's service takes for something; nothing where no interpreter for it is named."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if not python:
        print("PENSTOCK_BENCH_TENSORFLOW names no interpreter with TensorFlow: not compared with it", file=sys.stderr)
        yield lambda name: []
        return
    with subprocess.Popen(
        [python, Path(__file__).with_name("service_in_tensorflow.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(name: str) -> float:
            print(name, file=requests, flush=True)
            return float(answers.readline())

        yield lambda name: [lambda: ask(name)]
        requests.close()
