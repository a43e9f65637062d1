"""timeseries_windows: consecutive rows of arrays, and the targets that belong to them."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Column, Indices
from penstock.data.node import KnownLength, Run, derived
from penstock.printing import in_bytes
from penstock.spec import TensorSpec
from penstock.structure import Structure


@dataclass(frozen=True, eq=False)
class TimeseriesWindows(KnownLength):
    """Window i has `sequence_length` rows of the data, beginning with row `start + i * sequence_stride`."""

    name: ClassVar[str] = "timeseries_windows"
    indexable = True
    fails = False
    columns: tuple[Column, ...] = field(repr=False)
    targets: tuple[Column, ...] = field(repr=False)
    structure: Structure = field(repr=False)
    """Of an element: the leaves of the data, and then those of the targets."""
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
        starts = np.asarray(indices, np.int64) * self.sequence_stride + self.start
        rows = starts[:, None] + np.arange(self.sequence_length) * self.sampling_rate
        data = (column.take(rows, axis=0) for column in self.columns)
        columns = (*data, *(column.take(starts, axis=0) for column in self.targets))
        return Block(columns, self.structure, len(indices))
