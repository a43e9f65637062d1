"""Operators that split batches into rows, and combine their rows into batches of other sizes."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, Indices, column_of, is_ragged
from penstock.data.node import DependsOn, OneInput, Origins, Run, any_number, derived, scaled
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State
from penstock.errors import ElementError
from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.options import INFINITE_CARDINALITY
from penstock.positions import as_positions, by_part, compact
from penstock.runtime.pacing import Pace
from penstock.spec import LeafSpec, batched, leading_rows_of, ragged_rows, row_of
from penstock.structure import flatten, map_structure

_KEPT_BYTES: Final = 64 << 20
"""The most memory for elements that are kept until more of their rows are asked for."""


class _Elements(DatasetCache[tuple[int, int], Block]):
    """The rows of elements of which not all rows were asked for, by epoch and element."""

    bound = ProcessBound(lambda: _KEPT_BYTES, 0)


class Unbatch(OneInput, name="unbatch"):
    """The rows along the leading axis of every element: by index where their number is known, else as a stream.

    By index, elements of which some rows were asked for are kept for the next ones, up to a bound.
    """

    depends_on = DependsOn.ANY

    @property
    def memory(self) -> str:
        return f"reads {self._each:,} rows for one" if self.indexable else "copies rows"

    @property
    def identity(self) -> dict[str, Any]:
        return {"rows": self.input.leading_rows}  # which decide whether a state is a position

    @property
    def _each(self) -> int:
        return self.input.leading_rows[0] if self.input.leading_rows else 0

    @derived
    def indexable(self) -> bool:
        return self.input.indexable and self._each > 0

    @derived
    def cardinality(self) -> int:
        rows = leading_rows_of(self.input.spec)
        first, last = self.input.leading_rows or (rows, rows)
        if first is None or last is None:
            return any_number(self.input)
        return scaled(self.input.cardinality, lambda n: (n - 1) * first + last if n else 0)

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        return np.minimum(np.arange(1, self.input.cardinality + 1) * self._each, self.cardinality)

    def spec_over(self, *inputs: Any) -> Any:
        return map_structure(row_of, inputs[0]) if _have_rows(inputs[0]) else None

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield self.input, epoch, np.arange(len(positions)), positions // self._each

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        positions, kept = as_positions(indices), run.called(self, _Elements)
        if not len(positions):
            return (yield from self._rows_of(run, epoch, range(0)))
        elements, which, counts = np.unique(positions // self._each, return_inverse=True, return_counts=True)
        found = [kept.get((epoch, int(element))) for element in elements]
        missing = np.array([rows is None for rows in found])
        parts = []
        # Elements that are not kept are read together, as part 0.
        for number, places, own in by_part(positions, np.where(missing, 0, np.arange(1, len(elements) + 1))[which]):
            within, rows = own % self._each, found[number - 1]
            if not number or rows is None:
                wanted = elements[missing]
                rows = yield from self._rows_of(run, epoch, compact(wanted))
                for at in np.flatnonzero(counts[missing] < self._each).tolist():
                    element = rows.take(np.arange(at * self._each, min((at + 1) * self._each, len(rows))))
                    kept.put({(epoch, int(wanted[at])): element}, element.nbytes)
                within = within + (np.cumsum(missing) - 1)[which[places]] * self._each
            parts.append((places, rows.take(within)))
        return Block.in_places(parts)

    def _rows_of(self, run: Run, epoch: int, elements: Indices) -> Reading:
        """Return the rows of some elements, one element after the other."""
        block = yield from self.input.reading(run, epoch, elements)
        return run.meter(self).measured(self._taken_apart, block, elements)

    def _taken_apart(self, block: Block, elements: Indices) -> Block:
        """Return the rows of a block of elements.

        Raises:
            ElementError: an element has another number of rows than is known.
        """
        sizes = [self._each] * len(block)
        if len(block) and int(elements[-1]) == self.input.cardinality - 1:
            sizes[-1] = self.cardinality - int(elements[-1]) * self._each
        columns = []
        for column in block.columns:
            found = [column.shape[1]] * len(block) if column.ndim > 1 else list(map(len, column))
            unlike = [number for number, size in enumerate(sizes) if found[number] != size]
            if unlike:
                raise ElementError(
                    f"{self.where()}: element {int(elements[unlike[0]]):,} has {found[unlike[0]]} rows, and is known "
                    f"to have {sizes[unlike[0]]}"
                )
            if column.ndim > 1:
                columns.append(column.reshape(column.shape[0] * column.shape[1], *column.shape[2:]))
            else:
                columns.append(column_of([*chain.from_iterable(column)]) if len(column) else column)
        return Block(tuple(columns), block.structure, sum(sizes)).read_only()


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


class Rebatch(OneInput, name="rebatch"):
    """The rows of batches, in batches of other sizes, which are used in turn."""

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
