"""Cost of looking strings up, against Arrow's lookup, and of random flips and crops against NumPy, in the same run."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as ps
from benchmarks.timing import Figure, best_in_turn, seconds, speed_ratio

KEYS = 100_000
STRINGS = 1_000_000


def measure() -> list[Figure]:
    """The figures of this file."""
    keys = [f"token{number}" for number in range(KEYS)]
    strings = np.array(keys, dtype=object)[np.random.default_rng(0).integers(0, KEYS, STRINGS)]
    layer = ps.preprocessing.StringLookup(vocabulary=keys)
    images = [flipped(2048, 32), flipped(256, 224), cropped(2048, 32)]
    return [*lookups(layer, keys, strings), in_file(keys, strings), mapped(layer, strings), *images]


def lookups(layer: ps.preprocessing.StringLookup, keys: list[str], strings: np.ndarray) -> list[Figure]:
    """A million strings in a vocabulary of a hundred thousand: as Arrow holds them, and as Python objects."""
    in_arrow, known = pa.array(strings), pa.array(keys)

    def index_in() -> object:
        return pc.index_in(in_arrow, value_set=known)

    def index_in_of_objects() -> object:
        return pc.index_in(pa.array(strings), value_set=known)

    def by_hand() -> object:
        found = pc.fill_null(index_in(), -1).to_numpy().astype(np.int64)
        return found + 1

    ways = [partial(seconds, way) for way in (lambda: layer(in_arrow), by_hand, index_in)]
    ours, theirs, alone = best_in_turn(ways, rounds=15)
    return [
        Figure("StringLookup of 1e6 strings in Arrow / by hand", theirs / ours, 0.7),
        Figure("the same / index_in alone", alone / ours, 0.5),
        Figure(
            "StringLookup of 1e6 objects / index_in of them",
            speed_ratio(lambda: layer(strings), index_in_of_objects),
            0.5,
        ),
        Figure("StringLookup of 1e6 objects / index_in in Arrow", speed_ratio(lambda: layer(strings), index_in), 0.15),
    ]


def in_file(keys: list[str], strings: np.ndarray) -> Figure:
    """The same vocabulary in a file that is mapped into memory."""
    in_arrow, known = pa.array(strings), pa.array(keys)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.txt"
        path.write_text("\n".join(keys))
        layer = ps.preprocessing.StringLookup(vocabulary=str(path))
        ratio = speed_ratio(lambda: layer(in_arrow), lambda: pc.index_in(in_arrow, value_set=known))
    return Figure("the same, vocabulary in a mapped file / index_in", ratio, 0.2)


def mapped(layer: ps.preprocessing.StringLookup, strings: np.ndarray) -> Figure:
    """map before batch: the layer is called once for a block."""
    dataset = ps.Dataset.from_tensor_slices(strings).map(layer).batch(1024)

    def exhaust() -> None:
        for _ in dataset:
            pass

    exhaust()
    return Figure(
        "map(StringLookup).batch(1024)", STRINGS / min(seconds(exhaust) for _ in range(3)) / 1e6, 1, unit="M elements/s"
    )


def flipped(count: int, size: int) -> Figure:
    """Images flipped at random in map, each by its own numbers, against a loop with one generator for all."""
    generator = np.random.default_rng(1)

    def by_hand(image: np.ndarray) -> np.ndarray:
        return image[:, ::-1] if generator.random() < 0.5 else image

    layer = ps.preprocessing.RandomFlip("horizontal")
    return changed(f"map(RandomFlip) of {size} x {size} images / NumPy by hand", layer, by_hand, (count, size, size))


def cropped(count: int, size: int) -> Figure:
    """Images of which a part is taken at random, likewise."""
    generator = np.random.default_rng(1)
    larger = size * 5 // 4

    def by_hand(image: np.ndarray) -> np.ndarray:
        top, left = generator.integers(0, larger - size + 1, 2)
        return image[top : top + size, left : left + size]

    layer = ps.preprocessing.RandomCrop(size, size)
    return changed(f"map(RandomCrop) to {size} x {size} / NumPy by hand", layer, by_hand, (count, larger, larger))


def changed(
    question: str, layer: object, by_hand: Callable[[np.ndarray], np.ndarray], shape: tuple[int, int, int]
) -> Figure:
    """A layer over images in batches of 64, against a function called for each of them."""
    images = np.random.default_rng(0).integers(0, 255, (*shape, 3)).astype(np.uint8)
    dataset = ps.Dataset.from_tensor_slices(images).map(layer, seed=1).batch(64)
    batch = np.empty((64, *by_hand(images[0]).shape), np.uint8)

    def ours() -> None:
        for _ in dataset:
            pass

    def theirs() -> None:
        for place, image in enumerate(images):
            batch[place % 64] = by_hand(image)

    return Figure(question, speed_ratio(ours, theirs), 1)
