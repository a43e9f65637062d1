"""Batches as tensors, against PyTorch's DataLoader: `python -m benchmarks.against_torch` where torch is installed too.

It is not among the benchmarks that `make bench` runs, because torch is no development dependency: `.venv-torch`, which
`make test-torch` makes, has it. Figures are by the clock and by processor time; the latter say more where the machine
has other work. That of worker processes is included, of those that have ended and of those that go on.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import penstock as ps
from benchmarks.images import write_images
from penstock.torch.tensors import tensor_of

IMAGES = 20_000
BATCH = 256
JPEG_BATCH = 32
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


class Files(Dataset[Any]):  # type: ignore[misc]  # as above
    """A folder of JPEG files as PyTorch reads it."""

    def __init__(self, names: list[str], decode: Callable[[str], Any]) -> None:
        self.names, self.decode = names, decode

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.decode(self.names[index]))


def by_pillow(name: str) -> Any:
    """As the image folders of torchvision decode."""
    with Image.open(name) as image:
        return np.array(image.convert("RGB"))


def by_simplejpeg(name: str) -> Any:
    """By the decoder that penstock prefers."""
    return simplejpeg.decode_jpeg(Path(name).read_bytes())


def same(image: Any) -> Any:
    """The image itself."""
    return image


def bound(image: Any) -> Any:
    """The image, after 0.2 ms or so of Python that holds the interpreter's lock."""
    total = 0
    for number in range(5_000):
        total += number & 3
    return image


def bound_row(image: Any, label: Any) -> tuple[Any, Any]:
    """Variant of `bound` with the label."""
    return bound(image), label


def processor_seconds() -> float:
    """The processor time of this process and of all that it has started, so far."""
    running = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
            fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
        except FileNotFoundError:  # a thread or a process that has just ended
            continue
        running += sum(int(own[11]) + int(own[12]) for own in fields)
    return time.process_time() + sum(os.times()[2:4]) + running / os.sysconf("SC_CLK_TCK")


def cost(batches: Callable[[], Iterable[object]]) -> tuple[float, float]:
    """Seconds by the clock and of processor time, of all processes, that one epoch takes."""
    start, used = time.perf_counter(), processor_seconds()
    for _ in batches():
        pass
    return time.perf_counter() - start, processor_seconds() - used


def compare(name: str, ours: Callable[[], Iterable[object]], theirs: dict[str, Callable[[], Iterable[object]]]) -> None:
    """Print our speed over that of each of theirs, the ways in turn."""
    ways = {"penstock": ours, **theirs}
    for way in ways.values():
        cost(way)
    rounds = [{key: cost(way) for key, way in ways.items()} for _ in range(ROUNDS)]
    for key in theirs:
        clock, processor = (median(one[key][kind] / one["penstock"][kind] for one in rounds) for kind in (0, 1))
        print(f"{name}: {clock:.2f} times the speed of {key}, {processor:.2f} times by processor time")


def loaders_of(data: Dataset[Any], batch: int, more: str = "") -> dict[str, Callable[[], Iterable[object]]]:
    """DataLoaders with all numbers of workers."""
    return {
        f"num_workers={number}{more}": partial(DataLoader, data, batch_size=batch, shuffle=True, num_workers=number)
        for number in WORKERS
    }


def jpeg_files() -> None:
    """A folder of JPEG files, shuffled, in batches of images of 500 x 375."""
    with tempfile.TemporaryDirectory() as directory:
        names = write_images(Path(directory))
        rows = ps.Dataset.from_tensor_slices(names).shuffle(seed=1)
        images = rows.map(lambda name: ps.image.decode(Path(name).read_bytes()), num_parallel_calls=2)
        theirs = loaders_of(Files(names, by_pillow), JPEG_BATCH, ", Pillow")
        theirs |= loaders_of(Files(names, by_simplejpeg), JPEG_BATCH, ", the same decoder")
        with ps.torch.loader(images.batch(JPEG_BATCH)) as loader:
            compare(f"{len(names)} JPEG files", lambda: loader, theirs)


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (IMAGES, 28, 28), np.uint8), rng.integers(0, 10, IMAGES)
    print(f"{IMAGES:,} images of 28 x 28, shuffled, batches of {BATCH}, against torch {torch.__version__}")
    for name, function, count in (
        ("images in memory", same, IMAGES),
        ("a map that keeps the lock", bound, IMAGES // 4),
    ):
        rows = ps.Dataset.from_tensor_slices((images[:count], labels[:count])).shuffle(seed=1)
        if function is not same:
            rows = rows.map(bound_row, num_parallel_calls=2, processes=True)
        theirs = loaders_of(Rows(images[:count], labels[:count], function), BATCH)
        with ps.torch.loader(rows.batch(BATCH)) as loader:
            compare(name, lambda loader=loader: loader, theirs)
    jpeg_files()
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
