"""Batches as tensors, against PyTorch's DataLoader: `python -m benchmarks.against_torch` where torch is installed too.

It is not among the benchmarks that `make bench` runs, because torch is no development dependency: `.venv-torch`, which
`make test-torch` makes, has it. Figures are by the clock and by processor time; the latter say more where the machine
has other work. That of worker processes is included once they have ended, as `DataLoader`'s have after an epoch. Those
of `map(processes=True)` go on, so only the clock tells of the map that keeps the lock.
"""

import os
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import penstock as ps
from penstock.torch.tensors import tensor_of

IMAGES = 20_000
BATCH = 256
ROUNDS = 5
WORKERS = (0, 1, 2)


class Rows(Dataset[Any]):  # type: ignore[misc]  # torch is not installed where types are checked
    """Images as PyTorch reads them, each put through a function."""

    def __init__(self, images: Any, labels: Any, function: Callable[[Any], Any]) -> None:
        self.images, self.labels, self.function = images, labels, function

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.images[index]), self.labels[index]


def same(image: Any) -> Any:
    """The image itself."""
    return image


def bound(image: Any) -> Any:
    """The image, after half a millisecond or so of Python that holds the interpreter's lock."""
    total = 0
    for number in range(5_000):
        total += number & 3
    return image


def bound_row(image: Any, label: Any) -> tuple[Any, Any]:
    """As `bound`, with the label."""
    return bound(image), label


def cost(batches: Callable[[], Iterable[object]]) -> tuple[float, float]:
    """Seconds by the clock and of processor time, of all processes, that one epoch takes."""
    start, used = time.perf_counter(), os.times()
    for _ in batches():
        pass
    now = os.times()
    return time.perf_counter() - start, sum(now[:4]) - sum(used[:4])


def compare(name: str, ours: Callable[[], Iterable[object]], theirs: dict[str, Callable[[], Iterable[object]]]) -> None:
    """Print our speed over that of each of theirs, the ways in turn."""
    ways = {"penstock": ours, **theirs}
    for way in ways.values():
        cost(way)
    rounds = [{key: cost(way) for key, way in ways.items()} for _ in range(ROUNDS)]
    for key in theirs:
        clock, processor = (median(one[key][kind] / one["penstock"][kind] for one in rounds) for kind in (0, 1))
        print(f"{name}: {clock:.1f} times the speed of {key}, {processor:.1f} times by processor time")


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (IMAGES, 28, 28), np.uint8), rng.integers(0, 10, IMAGES)
    print(f"{IMAGES:,} images of 28 x 28, shuffled, batches of {BATCH}, against torch {torch.__version__}")
    for name, function, count in (
        ("images in memory", same, IMAGES),
        ("a map that keeps the lock", bound, IMAGES // 10),
    ):
        rows = ps.Dataset.from_tensor_slices((images[:count], labels[:count])).shuffle(seed=1)
        if function is not same:
            rows = rows.map(bound_row, num_parallel_calls=2, processes=True)
        data = Rows(images[:count], labels[:count], function)
        theirs = {
            f"num_workers={number}": lambda number=number, data=data: DataLoader(
                data, batch_size=BATCH, shuffle=True, num_workers=number
            )
            for number in WORKERS
        }
        with ps.torch.loader(rows.batch(BATCH)) as loader:
            compare(name, lambda loader=loader: loader, theirs)
    batch = np.zeros((BATCH, 224, 224, 3), np.uint8)
    microseconds = min(cost(lambda: (tensor_of(batch) for _ in range(1000)))[0] for _ in range(ROUNDS)) * 1e3
    print(f"a tensor of a batch of {batch.nbytes >> 20} MiB: {microseconds:.1f} microseconds")
    with ps.torch.loader(rows.batch(BATCH)) as loader:
        next(iter(loader))
        state = loader.state_dict()
        taken = min(cost(lambda: (loader.state_dict() for _ in range(1000)))[0] for _ in range(ROUNDS))
        restored = min(cost(lambda: (loader.load_state_dict(state) for _ in range(100)))[0] for _ in range(ROUNDS))
    print(f"a state of {len(state['penstock'])} bytes: {taken:.3f} ms to take, {restored * 10:.3f} ms to restore")


if __name__ == "__main__":
    main()
