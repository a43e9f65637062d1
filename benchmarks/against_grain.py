"""Shuffled batches and packed documents against Grain: `python -m benchmarks.against_grain`, with Grain installed too.

It is not among the benchmarks that `make bench` runs, because Grain is no development dependency.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.timing import processor_seconds, speed_ratio

IMAGES = 20_000
BATCH = 256
DOCUMENTS, LENGTH, BINS = 2048, 2048, 64
"""Of packing: how many documents, how many tokens a row, and how many rows Grain fills at a time."""


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


def packed() -> None:
    """Print how fast documents are packed, by processor time, and how many rows they make beside the least possible."""
    grain, experimental = import_module("grain"), import_module("grain.experimental")
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.8, 1.0, DOCUMENTS).astype(np.int64), 1, LENGTH)
    tokens = rng.integers(0, 30_000, int(lengths.sum())).astype(np.uint16)
    documents = np.split(tokens, np.cumsum(lengths)[:-1])
    source = ps.Dataset.from_list(documents).with_lengths()
    rows = grain.MapDataset.source([{"tokens": document} for document in documents]).to_iter_dataset()
    sizes: dict[str, Any] = {"length_struct": {"tokens": LENGTH}}
    ways = {
        "best_fit": lambda: experimental.BestFitPackIterDataset(rows, num_packing_bins=BINS, **sizes),
        "first_fit": lambda: experimental.FirstFitPackIterDataset(rows, num_packing_bins=BINS, **sizes),
        "concat_split": lambda: experimental.ConcatThenSplitIterDataset(rows, **sizes),
    }
    for how, other in ways.items():

        def ours(how: str = how) -> None:
            exhaust(source.pack(LENGTH, how).batch(8))

        def theirs(other: Callable[[], Any] = other) -> None:
            exhaust(other().batch(8))

        ratio = min(processor_seconds(theirs) for _ in range(3)) / min(processor_seconds(ours) for _ in range(3))
        counts = f"{len(source.pack(LENGTH, how))} rows, Grain's {sum(1 for _ in other())}"
        print(f"pack {how}: {ratio:.0f} times Grain's speed; {counts}, the least {-(-len(tokens) // LENGTH)}")


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
    packed()


if __name__ == "__main__":
    main()
