"""Operators that split batches into rows, and combine their rows into batches of other sizes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Column, column_of, is_ragged
from penstock.data.node import DependsOn, OneInput, Run, any_number, derived, scaled
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.stream import Cursor, OneInputStream, State
from penstock.errors import ElementError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.pacing import Pace
from penstock.spec import LeafSpec, batched, ragged_rows, row_of
from penstock.structure import flatten, map_structure


@dataclass(frozen=True, eq=False)
class Unbatch(OneInput):
    """The rows along the leading axis of every element."""

    name: ClassVar[str] = "unbatch"
    depends_on = DependsOn.ANY
    memory = "copies rows"

    @derived
    def cardinality(self) -> int:
        rows = _static_rows(self.input.spec)
        if rows is not None:
            return scaled(self.input.cardinality, lambda n: n * rows)
        return any_number(self.input)

    def spec_over(self, *inputs: Any) -> Any:
        return map_structure(row_of, inputs[0]) if _have_rows(inputs[0]) else None


def _static_rows(spec: Any) -> int | None:
    lengths = {leaf.shape[0] if leaf.shape else None for leaf in flatten(spec)[0]} if spec is not None else {None}
    return lengths.pop() if len(lengths) == 1 else None


def _have_rows(spec: Any) -> bool:
    return all(leaf.shape for leaf in flatten(spec)[0])


def _batch_of(row: LeafSpec, size: int | None) -> LeafSpec:
    """Return the specification of a batch of rows."""
    return ragged_rows(row, size) if None in row.shape else batched(row, size)


class UnbatchStream(OperatorStream[OneInput], of=Unbatch):
    """The rows of whole elements; the cursor that reads this stream stops between rows."""

    _rows_each: int | None = None
    """The number of rows of the last element, which is expected of the next one too."""

    def pull(self, need: int, allow: int) -> Block | None:
        pace = Pace(allow)  # more at a time while all are empty
        while (batches := self._next(pace.start())) is not None:
            columns = [self._taken_apart(column) for column in batches.columns]
            lengths = {len(column) for column in columns}
            if len(lengths) > 1:
                raise ElementError(f"{self._node.where()}: the leaves of an element have {sorted(lengths)} rows")
            if lengths and 0 not in lengths:
                rows = lengths.pop()
                self._rows_each = rows // len(batches)
                return Block(tuple(columns), batches.structure, rows)
            self._rows_each = self._rows_each or 1
            pace.stop(batches.nbytes, len(batches))
        return None

    def _next(self, allow: int) -> Block | None:
        """Return the next batches; a single one where they differ, or cannot be split."""
        batches = self._input.pull(1, max(1, allow // self._rows_each) if self._rows_each else 1)
        if batches is None or len(batches) == 1:
            return batches
        lengths = {column.shape[1:2] for column in batches.columns}
        if len(lengths) == 1 and () not in lengths:
            return batches
        self._input.give_back(len(batches) - 1)
        return batches.slice(0, 1)

    def _taken_apart(self, column: Column) -> Column:
        """Return the rows of the batches in this column: of all of them, or of one whose shape differs from others."""
        if column.ndim > 1:
            return column.reshape(column.shape[0] * column.shape[1], *column.shape[2:])
        batch = column[0]
        if not isinstance(batch, np.ndarray) or batch.ndim == 0:
            raise ElementError(f"{self._node.where()}: every leaf needs a leading axis to take apart, got a scalar")
        return batch


@dataclass(frozen=True, eq=False)
class Rebatch(OneInput):
    """The rows of batches, in batches of other sizes, which are used in turn."""

    name: ClassVar[str] = "rebatch"
    depends_on = DependsOn.ANY
    batch_sizes: tuple[int, ...]
    drop_remainder: bool = False

    @derived
    def cardinality(self) -> int:
        return scaled(Unbatch(self.input).cardinality, self._batches_of)

    def _batches_of(self, rows: int) -> int:
        cycles, left = divmod(rows, sum(self.batch_sizes))
        ends = np.cumsum(self.batch_sizes)
        whole = int(np.searchsorted(ends, left, side="right"))
        started = left > (int(ends[whole - 1]) if whole else 0)
        return cycles * len(self.batch_sizes) + whole + (started and not self.drop_remainder)

    @property
    def rows_per_batch(self) -> int:
        size = self.batch_sizes[0]
        return size if set(self.batch_sizes) == {size} else 0

    def spec_over(self, *inputs: Any) -> Any:
        size, rows = self.batch_sizes[0], Unbatch(self.input).cardinality
        whole = self.drop_remainder or rows == INFINITE_CARDINALITY or (rows > 0 and rows % size == 0)
        rows_of = (self.rows_per_batch or None) if whole else None
        return (
            map_structure(lambda leaf: _batch_of(row_of(leaf), rows_of), inputs[0]) if _have_rows(inputs[0]) else None
        )


def _one_batch(column: Column) -> Column:
    """Return all rows of a column as one batch; rows of unequal shape as one ragged batch."""
    if is_ragged(column) and all(row.shape == column[0].shape for row in column):
        column = column_of(list(column))
    return column[None]


class RebatchStream(OneInputStream, of=Rebatch):
    """The state is the position in the rows below, and in the cycle of sizes.

    Rows of a batch that a failure has interrupted belong to the next one: a state holds the position before them.
    """

    def __init__(self, node: Rebatch, run: Run, epoch: int) -> None:
        self._node = node
        self._input = Cursor(UnbatchStream(node, run, epoch))
        self._number = 0
        # The rows of the next batch that were read so far, and the position before them.
        self._rows: list[Block] = []
        self._begin: State = None

    def pull(self, need: int, allow: int) -> Block | None:
        size = self._node.batch_sizes[self._number]
        while (left := size - sum(map(len, self._rows))) > 0:
            before = self._input.state()
            block = self._input.pull(left, left)
            if block is None:
                break
            if not self._rows:
                self._begin = before
            self._rows.append(block)
        if not self._rows or (left and self._node.drop_remainder):
            return None
        blocks, self._rows = self._rows, []
        self._number = (self._number + 1) % len(self._node.batch_sizes)
        rows = Block.concatenate(blocks)
        return Block(tuple(map(_one_batch, rows.columns)), rows.structure, 1)

    def state(self) -> State:
        return [self._begin if self._rows else self._input.state(), self._number, self._input.known]

    def restore(self, state: State) -> None:
        position, self._number, known = state
        self._input.restore_at(position, known)
