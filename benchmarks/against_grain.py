"""Shuffled batches in memory, against Grain: `python -m benchmarks.against_grain` where Grain is installed too.

It is not among the benchmarks that `make bench` runs, because Grain is no development dependency.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.timing import speed_ratio

IMAGES = 20_000
BATCH = 256


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


class Rows:
    """The images as Grain reads them: any row by its number."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


def main() -> None:
    """Print the ratios."""
    grain = import_module("grain")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (IMAGES, 28, 28), np.uint8), rng.integers(0, 10, IMAGES)

    def scale(image: Any) -> Any:
        return image / np.float32(255)

    ours = ps.Dataset.from_tensor_slices((images, labels)).shuffle(seed=1)
    theirs = grain.MapDataset.source(Rows(images, labels)).shuffle(seed=1)
    pairs: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "shuffle and batch": (
            lambda: exhaust(ours.batch(BATCH)),
            lambda: exhaust(theirs.batch(BATCH).to_iter_dataset()),
        ),
        "shuffle, a NumPy function for each image, and batch": (
            lambda: exhaust(ours.map(lambda image, label: (scale(image), label)).batch(BATCH)),
            lambda: exhaust(theirs.map(lambda row: (scale(row[0]), row[1])).batch(BATCH).to_iter_dataset()),
        ),
    }
    print(f"{IMAGES:,} images of 28 x 28, batches of {BATCH}, against Grain {version('grain')}")
    for name, (one, other) in pairs.items():
        print(f"{name}: {speed_ratio(one, other, rounds=5):.1f} times Grain's speed")


if __name__ == "__main__":
    main()
