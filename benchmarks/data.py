"""Cost of the data core, against hand-written NumPy loops over the same data."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, processor_seconds, seconds, speed_ratio

IMAGES = 60_000
BATCH = 256
NUMBERS = 1_000_000


def measure() -> list[Figure]:
    """The figures of this file."""
    return [
        shuffled_batches(),
        batches_in_threads(),
        *number_batches(),
        scalar_map(),
        image_map(),
        parallel_map(),
        *huge_shuffle(),
        *huge_restore(),
        *opening(),
    ]


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def shuffled_batches() -> Figure:
    """An epoch of shuffled batches of images in memory, against permuting and gathering by hand."""
    rng = np.random.default_rng(0)
    images = rng.random((IMAGES, 28, 28, 1), dtype=np.float32)
    labels = rng.integers(0, 10, IMAGES)
    dataset = ps.Dataset.from_tensor_slices((images, labels)).shuffle(IMAGES).batch(BATCH)

    def bare() -> None:
        order = np.random.permutation(IMAGES)
        for start in range(0, IMAGES, BATCH):
            rows = order[start : start + BATCH]
            images[rows], labels[rows]

    return Figure("shuffle(60000).batch(256) of images / NumPy loop", speed_ratio(lambda: exhaust(dataset), bare), 0.7)


def batches_in_threads() -> Figure:
    """Shuffled batches of 19 MB, whose rows two threads copy together, against one."""
    images = np.ones((2000, 224 * 224 * 3), np.uint8)
    shuffled = ps.Dataset.from_tensor_slices(images).shuffle(len(images))
    one, two = shuffled.batch(128), shuffled.batch(128, num_parallel_calls=2)
    ratio = speed_ratio(lambda: exhaust(two), lambda: exhaust(one), rounds=15)
    return Figure("shuffled batches of 19 MB, num_parallel_calls=2 / one thread", ratio, 1.2)


def number_batches() -> list[Figure]:
    """Batches of numbers, bare and through a vectorised function."""
    batches = ps.Dataset.range(NUMBERS).batch(1024)
    mapped = batches.map(lambda x: x * 2 + 1)
    exhaust(batches)
    best = min(seconds(lambda: exhaust(batches)) for _ in range(5))
    best_mapped = min(seconds(lambda: exhaust(mapped)) for _ in range(5))
    return [
        Figure("range(1e6).batch(1024)", NUMBERS / best / 1e6, 100, unit="M elements/s"),
        Figure("range(1e6).batch(1024).map(vectorised)", NUMBERS / best_mapped / 1e6, 50, unit="M elements/s"),
    ]


def scalar_map() -> Figure:
    """A Python function of every number, against the tightest loop that Python has for it."""
    count = 200_000

    def function(x: np.int64) -> np.int64:
        return x * 2 + 1

    dataset = ps.Dataset.range(count).map(function).batch(1024)

    def bare() -> None:
        np.fromiter(map(function, np.arange(count)), np.int64)

    return Figure(
        "range(n).map(x * 2 + 1).batch(1024) / np.fromiter(map)", speed_ratio(lambda: exhaust(dataset), bare), 0.7
    )


def image_map() -> Figure:
    """A NumPy function of every image, then batches, against filling a preallocated batch by hand."""
    images = np.random.default_rng(0).integers(0, 255, (8192, 28, 28), dtype=np.uint8)

    def function(image: np.ndarray) -> np.ndarray:
        return image.astype(np.float32) / 255

    dataset = ps.Dataset.from_tensor_slices(images).map(function).batch(BATCH)

    def bare() -> None:
        for start in range(0, len(images), BATCH):
            batch = np.empty((BATCH, 28, 28), np.float32)
            for row in range(BATCH):
                batch[row] = function(images[start + row])

    return Figure("map(NumPy function of an image).batch(256) / loop", speed_ratio(lambda: exhaust(dataset), bare), 0.7)


def parallel_map() -> Figure:
    """Two threads against one, with a function that releases the interpreter's lock."""
    matrices = np.random.default_rng(0).random((256, 512 * 512), dtype=np.float32)

    def function(row: np.ndarray) -> np.ndarray:
        return np.sort(row)[:16]

    dataset = ps.Dataset.from_tensor_slices(matrices)
    one = dataset.map(function).batch(32)
    two = dataset.map(function, num_parallel_calls=2).batch(32)
    return Figure("map in 2 threads / in 1", speed_ratio(lambda: exhaust(two), lambda: exhaust(one), rounds=3), 1.5)


_HUGE = """
import json, time
import penstock as ps
start = time.perf_counter()
iterator = iter(ps.Dataset.range(10**9).shuffle(10**9, seed=1).batch(1024))
next(iterator)
first = time.perf_counter() - start
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([first, int(peak) / 1024]))
"""


def huge_shuffle() -> list[Figure]:
    """A full shuffle of a thousand million numbers, in a process of its own."""
    output = subprocess.run([sys.executable, "-c", _HUGE], capture_output=True, text=True, check=True).stdout
    first, peak = json.loads(output)
    return [
        Figure("shuffle(1e9): first batch", first, 1, at_least=False, unit="s"),
        Figure("shuffle(1e9): memory of the whole process", peak, 200, at_least=False, unit="MB"),
    ]


def huge_restore() -> list[Figure]:
    """State and restore in the middle of that epoch."""
    dataset = ps.Dataset.range(10**9).shuffle(10**9, seed=1).batch(1024)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    state["position"] = [500_000, 0, 500_000]
    resumed = iter(dataset)
    start = time.perf_counter()
    resumed.load_state_dict(state)
    next(resumed)
    restore = time.perf_counter() - start
    taken = min(seconds(iterator.state_dict) for _ in range(100))
    return [
        Figure("shuffle(1e9): state", len(json.dumps(state)), 1000, at_least=False, unit="bytes"),
        Figure("shuffle(1e9): taking the state", taken * 1e6, 100, at_least=False, unit="µs"),
        Figure("shuffle(1e9): restore and next batch in the middle", restore * 1e3, 10, at_least=False, unit="ms"),
    ]


def opening() -> list[Figure]:
    """Cost of an iteration beside its elements: opening and restoring it, by processor time."""
    dataset = ps.Dataset.from_tensor_slices(np.zeros((10, 3))).shuffle(10, seed=1).map(abs).batch(2).repeat(2)
    state = iter(dataset).state_dict()
    resumed = iter(dataset)

    def each(work: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(100):
                work()

        return min(processor_seconds(many) for _ in range(10)) / 100 * 1e6

    return [
        Figure("five steps: opening an iterator", each(lambda: iter(dataset)), 250, at_least=False, unit="µs"),
        Figure(
            "five steps: restoring one", each(lambda: resumed.load_state_dict(state)), 250, at_least=False, unit="µs"
        ),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)
