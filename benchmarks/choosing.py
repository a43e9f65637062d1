"""Cost of taking elements from one of many datasets, for a row and against a loop, by processor time."""

from collections.abc import Iterator

import numpy as np

import penstock as ps
from benchmarks.rows import exhaust
from benchmarks.timing import Figure, processor_ratio, processor_seconds

ROWS = 100_000


def measure() -> list[Figure]:
    """The figures of this file."""
    return [figure for members in (10, 300, 3000) for figure in sampled(members)]


def sampled(members: int) -> Iterator[Figure]:
    """Batches of elements that are drawn from so many datasets; beginning the iteration counts too."""
    parts = [ps.Dataset.range(ROWS) for _ in range(members)]
    dataset = ps.Dataset.sample_from_datasets(parts, seed=1).take(ROWS).batch(256)

    def by_hand() -> None:
        iterators = [iter(range(ROWS)) for _ in range(members)]
        drawn = np.random.default_rng(1).integers(0, members, ROWS).tolist()
        exhaust(_batches(iterators, drawn))

    name = f"sample_from_datasets of {members:,}, {ROWS:,} rows, batch(256)"
    yield processor_ratio(
        f"{name} / loop", lambda: exhaust(dataset), by_hand, {10: 1.0, 300: 0.15, 3000: 0.02}[members]
    )
    times = sorted(processor_seconds(lambda: exhaust(dataset)) / ROWS * 1e6 for _ in range(5))
    yield Figure(name, times[2], {10: 0.2, 300: 1.5, 3000: 15}[members], False, "µs a row", (times[0], times[-1]))


def _batches(iterators: list[Iterator[int]], drawn: list[int]) -> Iterator[np.ndarray]:
    for start in range(0, len(drawn), 256):
        yield np.array([next(iterators[number]) for number in drawn[start : start + 256]])


if __name__ == "__main__":
    for figure in measure():
        print(figure)
