"""Sources of elements: numbers and arrays."""

from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from penstock.data.block import Block, Column, Indices, gathered, locked_entries
from penstock.data.node import ByMethod, KnownLength, Node, Run, derived
from penstock.options import INFINITE_CARDINALITY
from penstock.paths import names_in_directory
from penstock.positions import as_positions, strided
from penstock.printing import in_bytes
from penstock.rng import Shares, hash_positions, mix, uniform_positions
from penstock.spec import TensorSpec
from penstock.structure import LEAF, Structure


class Integers(Node):
    """int64 numbers that are computed from their positions."""

    indexable = True
    fails = False
    spec = TensorSpec((), np.int64)


class Range(Integers, name="range"):
    """The integers of `range(start, stop, step)`."""

    start: int
    stop: int
    step: int

    @derived
    def cardinality(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return Block((as_positions(strided(indices, self.start, self.step)),), LEAF, len(indices))


class Counter(Integers, name="counter"):
    """The infinite sequence of start, start + step and so on."""

    cardinality = INFINITE_CARDINALITY
    start: int
    step: int

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return Block((as_positions(strided(indices, self.start, self.step)),), LEAF, len(indices))


class Draws(Integers):
    """Infinitely many random integers: a function of (seed, epoch, position)."""

    draws_random = True
    cardinality = INFINITE_CARDINALITY
    seed: int | None
    rerandomize_each_iteration: bool

    @derived
    def varies(self) -> bool:
        return self.rerandomize_each_iteration

    def _key(self, run: Run, epoch: int) -> int:
        return mix(run.key(self, self.seed), epoch if self.rerandomize_each_iteration else 0)


class Random(Draws, name="random"):
    """Numbers in [0, 2**32)."""

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        words = hash_positions(self._key(run, epoch), indices) >> np.uint64(32)
        return Block((words.astype(np.int64),), LEAF, len(indices))


class Choices(Draws, name="choices"):
    """Numbers of datasets, drawn by weight: the choice of `sample_from_datasets`."""

    weights: tuple[float, ...]

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return Block((self._shares.at(uniform_positions(self._key(run, epoch), indices)),), LEAF, len(indices))

    @cached_property
    def _shares(self) -> Shares:
        return Shares(self.weights)


class Slices(KnownLength, ByMethod):
    """The rows of arrays: `from_tensor_slices`, and with one row `from_tensors`."""

    indexable = True
    fails = False

    columns: tuple[Column, ...] = field(repr=False)
    structure: Structure = field(repr=False)
    length: int = field(repr=False)

    @property
    def memory(self) -> str:
        return f"holds {in_bytes(sum(column.nbytes for column in self.columns))}"

    @derived
    def spec(self) -> Any:  # cached, because it looks at every row of an object column
        return Block(self.columns, self.structure, self.length).spec()

    def arguments(self) -> list[str]:
        return [f"{column.dtype}{list(column.shape)}" for column in self.columns]

    @cached_property
    def _row(self) -> Block:
        return Block(self.columns, self.structure, self.length).read_only()

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        if self.length == 1:  # one row, perhaps repeated, is not copied
            return self._row.repeated(len(indices))
        block = Block(self.columns, self.structure, self.length).take(indices, run.copiers)
        if not isinstance(indices, range):
            return Block(tuple(map(locked_entries, block.columns)), block.structure, len(block))
        # Rows taken by a range share their memory with the user's arrays.
        return block.read_only()


class FileNames(Slices):
    """Names of files. Their order matters, but not the directory that contains all of them."""

    @property
    def identity(self) -> dict[str, Any]:
        return {"names": "\0".join(names_in_directory(self.columns[0].tolist()))}

    def rows_at(self, positions: Column) -> tuple[list[str | None], Column]:
        return [str(name) for name in self.columns[0][positions]], np.zeros_like(positions)

    @property
    def row_files(self) -> list[str]:
        return [str(name) for name in self.columns[0]]

    def row_name(self, position: int) -> str:
        return str(self.columns[0][position])

    def arguments(self) -> list[str]:
        return ["1 name" if self.length == 1 else f"{self.length:,} names"]


class PlannedNames(FileNames):
    """Names of the files of a version of a table, by which a state knows them."""

    identity = {}  # noqa: RUF012  # as everywhere, it is not written to


class Listing(FileNames):
    """Names of the files that existed when the dataset was made, and the classes named by their folders."""

    classes: tuple[str, ...] = field(default=(), repr=False)


class TimeseriesWindows(KnownLength, Node, name="timeseries_windows"):
    """Windows of `sequence_length` rows of the data; window i begins at row `start + i * sequence_stride`."""

    indexable = True
    fails = False
    columns: tuple[Column, ...] = field(repr=False)
    targets: tuple[Column, ...] = field(repr=False)
    structure: Structure = field(repr=False)
    """The structure of an element: the leaves of the data, then those of the targets."""
    length: int = field(repr=False)
    start: int = field(repr=False)
    sequence_length: int
    sequence_stride: int
    sampling_rate: int

    @property
    def memory(self) -> str:
        return f"holds {in_bytes(sum(column.nbytes for column in (*self.columns, *self.targets)))}"

    @derived
    def spec(self) -> Any:
        data = [TensorSpec((self.sequence_length, *column.shape[1:]), column.dtype) for column in self.columns]
        targets = [TensorSpec(column.shape[1:], column.dtype) for column in self.targets]
        return self.structure.unflatten([*data, *targets])

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        starts = as_positions(strided(indices, self.start, self.sequence_stride))
        rows = starts[:, None] + np.arange(self.sequence_length) * self.sampling_rate
        data = (gathered(column, rows) for column in self.columns)
        columns = (*data, *(gathered(column, starts) for column in self.targets))
        return Block(columns, self.structure, len(indices))
