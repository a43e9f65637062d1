"""`num_parallel_calls=ps.AUTOTUNE` against every fixed number, over functions that gain by threads and that do not.

Each case is read for so long that what is tried at the beginning counts as it does in a short epoch. The ways take
turns, so that all meet the same machine, and of each the median counts.
"""

import hashlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, processor_ratio

NUMBERS = (None, 2, 4, 8)
"""The fixed numbers of calls at once; None is serial."""
ROUNDS = 5
SHORT_ROUNDS = 15
"""Of cases that take hundredths of a second: the pace of the processor itself varies by more than is looked for."""
_RNG = np.random.default_rng(0)
_IMAGE = _RNG.integers(0, 256, (224, 224, 3), np.uint8)
_SMALL = _RNG.integers(0, 256, (32, 32, 3), np.uint8)
_WIDE = _RNG.random((400, 400))


@dataclass(frozen=True)
class Case:
    """A function, and how many rows to read for a measurement.

    Attributes:
        name: what it does.
        function: of an integer.
        rows: how many.
        batch: how many of them make a batch above the map; 0 for none.
        below: what stands below the map: "index" or "generator".
        batched_below: how many integers make a batch below the map, so that the function is one of batches; 0 for none.
        in_worker: whether a data worker calls it.
        short: whether its calls are too short for threads: then it is compared with serial calls by processor time, on
            which other processes weigh less.
    """

    name: str
    function: Callable[[np.int64], object]
    rows: int
    batch: int = 0
    below: str = "index"
    batched_below: int = 0
    in_worker: bool = False
    short: bool = False

    def dataset(self, calls: int | None) -> ps.Dataset:
        """The dataset with so many calls at once."""
        rows = self.rows * max(1, self.batched_below)
        below = (
            ps.Dataset.range(rows)
            if self.below == "index"
            else ps.Dataset.from_generator(lambda: iter(range(rows)), output_signature=ps.TensorSpec((), np.int64))
        )
        if self.batched_below:
            below = below.batch(self.batched_below)
        mapped = below.map(self.function, num_parallel_calls=calls)
        return mapped.batch(self.batch) if self.batch else mapped


def add_one(x: np.int64) -> np.int64:
    """An integer: next to nothing."""
    return x + 1


def small_image(x: np.int64) -> np.ndarray:
    """A small image: NumPy's calls cost more than their work."""
    return np.flip(_SMALL, axis=int(x) % 2).astype(np.float32) / np.float32(255)


def image(x: np.int64) -> np.ndarray:
    """An image of 150 kB flipped and made floating: work without Python's lock."""
    return np.flip(_IMAGE, axis=int(x) % 2).astype(np.float32) / np.float32(255)


def product(x: np.int64) -> np.float64:
    """Sorting 160,000 numbers: milliseconds without Python's lock, on processors with wide vectors too."""
    return np.sort(_WIDE + x, axis=None, kind="stable")[0]


def digest(x: np.int64) -> int:
    """A hash of 150 kB: a call of a library that lets go of Python's lock."""
    return hashlib.sha256(_IMAGE).digest()[0] + int(x) % 2


def spin(x: np.int64) -> int:
    """Python alone, for about a millisecond: threads cannot gain."""
    total = 0
    for number in range(15_000):
        total += number ^ int(x)
    return total


def pair(x: np.int64) -> tuple[np.int64, np.int64]:
    """A tuple of numbers."""
    return x, x + 1


def named(x: np.int64) -> dict[str, np.int64]:
    """A dictionary of numbers."""
    return {"x": x, "y": x + 1}


def double(batch: np.ndarray) -> np.ndarray:
    """A function of batches."""
    return batch * 2


def scaled(batch: np.ndarray) -> np.ndarray:
    """A function of batches that computes for milliseconds."""
    return np.sqrt(np.sin(batch * 1e-3) ** 2 + np.cos(batch * 1e-3) ** 2)


def wait(x: np.int64) -> np.int64:
    """A disk or a network that answers after 1 ms."""
    time.sleep(0.001)
    return x


def wait_long(x: np.int64) -> np.int64:
    """One that answers after 20 ms."""
    time.sleep(0.02)
    return x


def wait_in_the_tail(x: np.int64) -> np.int64:
    """One that answers after 2 ms, and one time in ten after 20."""
    time.sleep(0.02 if int(x) % 10 == 7 else 0.002)
    return x


def wait_and_work(x: np.int64) -> np.ndarray:
    """Waits for 2 ms, then works on an image."""
    time.sleep(0.002)
    return image(x)


def slow_in_the_end(x: np.int64) -> np.int64:
    """An integer, and after 100,000 of them one that takes 1 ms to come."""
    if int(x) >= 100_000:
        time.sleep(0.001)
    return x


def quick_in_the_end(x: np.int64) -> np.int64:
    """The other way round: 200 that take 5 ms to come, then integers."""
    if int(x) < 200:
        time.sleep(0.005)
    return x


CASES = (
    Case("integers", add_one, 200_000, batch=256, short=True),
    Case("integers one by one, of a generator", add_one, 20_000, below="generator", short=True),
    Case("tuples", pair, 100_000, batch=256, short=True),
    Case("dictionaries", named, 100_000, batch=256, short=True),
    Case("images of 3 kB", small_image, 20_000, batch=32, short=True),
    Case("images of 150 kB", image, 1_500, batch=16),
    Case("batches of 1,024 integers", double, 4_000, batched_below=1024, short=True),
    Case("batches of 100,000 integers, 5 ms", scaled, 150, batched_below=100_000),
    Case("sorting, 10 ms", product, 80),
    Case("hashing 150 kB", digest, 3_000, batch=16),
    Case("Python alone, 1 ms", spin, 600),
    Case("waiting for 1 ms", wait, 600),
    Case("waiting for 1 ms, of a generator", wait, 600, below="generator"),
    Case("waiting for 20 ms", wait_long, 80),
    Case("waiting for 2 ms, one in ten for 20", wait_in_the_tail, 200),
    Case("waiting for 2 ms, then an image", wait_and_work, 400, batch=16),
    Case("integers, then waiting for 1 ms", slow_in_the_end, 102_000, batch=8),
    Case("waiting for 5 ms, then integers", quick_in_the_end, 100_200, batch=8),
    Case("integers, in a data worker", add_one, 200_000, batch=256, in_worker=True),
    Case("images of 150 kB, in a data worker", image, 1_000, batch=16, in_worker=True),
    Case("Python alone, 1 ms, in a data worker", spin, 600, in_worker=True),
    Case("waiting for 20 ms, in a data worker", wait_long, 80, in_worker=True),
)


def measure() -> list[Figure]:
    """The figures of this file; the whole table goes to standard error."""
    figures = [fixed_number_over_single_rows()]
    with ps.service.local(num_workers=1) as service:
        for case in CASES:
            figures += _figures(case, service.target)
    return figures


def fixed_number_over_single_rows() -> Figure:
    """Short calls for rows that come one by one, by a number of threads that they do not need, against none."""
    case = next(case for case in CASES if case.below == "generator" and case.short)
    four, none = case.dataset(4), case.dataset(None)
    question = f"4 calls at once, {case.name} / serial"
    return processor_ratio(question, lambda: _read(four), lambda: _read(none), 0.3)


def _figures(case: Case, target: str) -> list[Figure]:
    rates: dict[int | None, list[float]] = {calls: [] for calls in (ps.AUTOTUNE, *NUMBERS)}
    computed: dict[int | None, list[float]] = {calls: [] for calls in rates}
    for number in range((SHORT_ROUNDS if case.short else ROUNDS) + 1):
        # In another order each time: what comes after eight threads shares the machine with their end.
        for calls in random.Random(number).sample(list(rates), len(rates)):
            dataset = case.dataset(calls)
            if case.in_worker:
                dataset = dataset.apply(ps.service.distribute("distributed_epoch", target))
            before = time.process_time()
            seconds = _read(dataset)
            if number:  # the first round warms everything up
                rates[calls].append(case.rows / seconds)
                computed[calls].append(case.rows / (time.process_time() - before))
    best = max(NUMBERS, key=lambda calls: statistics.median(rates[calls]))
    words = {ps.AUTOTUNE: "AUTOTUNE", None: "serial"}
    cells = [f"{words.get(calls, calls)} {statistics.median(seen):,.0f}" for calls, seen in rates.items()]
    compared = computed if case.short else rates
    print(f"{case.name}, rows/s: {', '.join(cells)}", file=sys.stderr)
    return [
        _ratio(f"AUTOTUNE, {case.name} / serial", compared[ps.AUTOTUNE], compared[None], 0.9),
        _ratio(f"AUTOTUNE, {case.name} / {words.get(best, best)}, the best", rates[ps.AUTOTUNE], rates[best], 0.7),
    ]


def _ratio(question: str, ours: list[float], theirs: list[float], goal: float) -> Figure:
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    return Figure(question, statistics.median(ours) / statistics.median(theirs), goal, spread=(ratios[0], ratios[-1]))


def _read(dataset: ps.Dataset) -> float:
    begun = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - begun
