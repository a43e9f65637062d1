"""Operators that put rows together into batches, of a number of rows."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, Indices, column_of, is_ragged, object_column
from penstock.data.functions.apply import note
from penstock.data.node import ByIndex, DependsOn, Origins, Run, derived, scaled, spans
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import State
from penstock.errors import ElementError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions, by_part
from penstock.runtime.threads import failures, threads_of
from penstock.sharding import SliceRule
from penstock.spec import LeafSpec, TensorSpec, batched, ragged_rows
from penstock.structure import flatten, map_structure

_COUNT = TensorSpec((), np.int64)


@dataclass(frozen=True)
class LocalSlices:
    """The rows of each batch that the replicas of one worker get.

    Attributes:
        rule: the rule that cuts batches into slices.
        local: the numbers of this worker's slices.
    """

    rule: SliceRule
    local: tuple[int, ...]

    @lru_cache  # noqa: B019  # it holds a few numbers for each worker of a dataset
    def rows_of(self, whole: int) -> tuple[Indices, int]:
        """Return the rows to read of a batch of `whole`, and the number of them that the worker gets.

        Where it gets none, one is read nevertheless: it determines dtypes and shapes.
        """
        bounds = self.rule.bounds(whole)
        slices = [bounds[number] for number in self.local]
        size = sum(stop - start for start, stop in slices)
        start, stop = min(slices[0][0], whole - 1), slices[-1][1]
        if size == slices[-1][1] - slices[0][0] or not size:
            return range(start, max(stop, start + 1)), size
        return np.concatenate([np.arange(start, stop) for start, stop in slices]), size


class Batching(ByIndex):
    """A node of batches: it decides which rows go into which batch; `batches` puts them together."""

    depends_on = DependsOn.ANY
    not_in_states: ClassVar[tuple[str, ...]] = ("num_parallel_calls", "own")
    keeps_numbers = True
    batch_size: int
    drop_remainder: bool = False
    own: LocalSlices | None = field(default=None, repr=False, kw_only=True)
    """The rows of each batch to read, if not all; an element is then the pair of these and the number of all rows.

    For states and random keys such a pair counts as the batch. Only over an indexable input.
    """

    @property
    def lengths(self) -> tuple[int, int] | None:
        """The number of rows of each batch, and that of the last one; None where it is unknown."""
        length, size = self.input.cardinality, self.batch_size
        if length == UNKNOWN_CARDINALITY:
            return None
        even = self.drop_remainder or length == INFINITE_CARDINALITY or length % size == 0
        return size, size if even else length % size

    @derived
    def leading_rows(self) -> tuple[int, int] | None:
        return self.lengths if self.indexable else None

    def local_slices(self, rule: SliceRule, local: Sequence[int]) -> Self | None:
        """Return this node with the rows of some slices of each batch only; None where that is impossible.

        Its elements are pairs of these rows and the number of rows of the whole batch.
        """
        apart = self.indexable and self.own is None and self.slices_alike
        return replace(self, own=LocalSlices(rule, tuple(local))) if apart else None

    @property
    def slices_alike(self) -> bool:
        """Return whether a batch of some rows is independent of the batch's other rows."""
        return True

    @property
    def rows_per_batch(self) -> int:
        return self.batch_size

    @property
    def parallelism(self) -> int:
        """The number of threads that copy the rows of a batch together."""
        return 1

    @derived
    def cardinality(self) -> int:
        return scaled(
            self.input.cardinality, lambda n: n // self.batch_size if self.drop_remainder else -(-n // self.batch_size)
        )

    @property
    def rows(self) -> int | None:
        """The number of rows of every batch; None where the last one may be shorter, or not all are read."""
        if self.own is not None:
            return None
        length, size = self.input.cardinality, self.batch_size
        even = length > 0 and length % size == 0
        return size if self.drop_remainder or even or length == INFINITE_CARDINALITY else None

    @property
    def fails(self) -> bool:
        spec = self.input.spec if self.indexable else None  # that of a stream is no guarantee
        return spec is None or not all(_is_dense(leaf) for leaf in flatten(spec)[0])

    def spec_over(self, *inputs: Any) -> Any:
        batch = self.spec_of_batches(inputs[0])
        return batch if self.own is None else (batch, _COUNT)

    @abstractmethod
    def spec_of_batches(self, rows: Any) -> Any:
        """Return the specification of batches of such rows."""

    @abstractmethod
    def batches(self, block: Block, size: int) -> Block:
        """Return a block of n · size rows as a block of n batches."""

    def numbered(self, block: Block, size: int, number: int) -> Block:
        """Call `batches`; the failure of a single batch names its number. `number` is that of the first batch."""
        try:
            return self.batches(block, size)
        except ElementError as error:
            if len(block) == size:
                note(error, self, number)
            raise

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield spans(self.input, epoch, positions * self.batch_size, range(self.batch_size))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        run = run.copying(self.parallelism)
        size, length = self.batch_size, self.input.cardinality
        # Only the last batch can be short.
        last = length // size if length != INFINITE_CARDINALITY else math.inf
        if len(indices) == 0 or (isinstance(indices, range) and max(indices[0], indices[-1]) < last):
            return (yield from self._read(run, epoch, indices[0] if indices else 0, self._firsts(indices), size))
        shorter = (as_positions(indices) == last).astype(np.int8)
        parts = []
        for short, which, batches in by_part(indices, shorter):
            rows = length % size if short else size
            parts.append((which, (yield from self._read(run, epoch, int(batches[0]), self._firsts(batches), rows))))
        return Block.in_places(parts)

    def _firsts(self, batches: Indices) -> Indices:
        """Return the first row of each of these batches."""
        size = self.batch_size
        if isinstance(batches, range):
            return range(batches.start * size, batches.stop * size, batches.step * size)
        return batches * size

    def _read(self, run: Run, epoch: int, number: int, firsts: Indices, whole: int) -> Reading:
        """Read the batches that begin at these rows and have `whole` each; or only the worker's rows of them.

        Batch `number` is the first of them.
        """
        own, real = (range(whole), whole) if self.own is None else self.own.rows_of(whole)
        rows: Indices
        if isinstance(own, range) and len(firsts) == 1:  # the most frequent case of large batches
            rows = range(int(firsts[0]) + own.start, int(firsts[0]) + own.stop)
        elif len(own) == whole and isinstance(firsts, range) and firsts.step == whole:
            rows = range(firsts.start, firsts.stop)
        else:
            rows = (as_positions(firsts)[:, None] + as_positions(own)).reshape(-1)
        block = yield from self.input.reading(run, epoch, rows)
        made = run.meter(self).measured(self.numbered, block, len(own), number)
        if self.own is None:
            return made
        if real < len(own) and len(made):  # one is read where the worker gets none
            columns = tuple(column_of([batch[:real] for batch in column]) for column in made.columns)
            made = Block(columns, made.structure, len(made))
        return made.beside(np.full(len(made), whole))


class BatchStream(OperatorStream[Batching], of=Batching):
    """Batches of a stream. Rows read beyond whole batches are given back, so the state is the input's alone."""

    def __init__(self, node: Batching, run: Run, epoch: int) -> None:
        super().__init__(node, run.copying(node.parallelism), epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        size = self._node.batch_size
        first = self._pulled(need * size, allow * size, 0)
        if first is None:
            return None
        number = (self._input.met - len(first)) // size
        if len(first) >= size:
            return self._input.made(first, partial(self._node.numbered, size=size, number=number), size)
        parts, count = [first], len(first)
        while count < size and (part := self._pulled(size - count, size - count, count)) is not None:
            parts.append(part)
            count += len(part)
        if count < size and self._node.drop_remainder:
            return None
        return self._node.numbered(Block.concatenate(parts, self._run.copiers), count, number)

    def advanced(self, state: State, rows: int) -> State:
        return self._input.later(state, rows * self._node.batch_size)  # only the last batch may have fewer

    def _pulled(self, need: int, allow: int, collected: int) -> Block | None:
        """Pull the next rows of a batch after `collected` others. Where one fails, the whole batch is skipped."""
        try:
            return self._input.pull(need, allow)
        except failures():
            for _ in range(self._node.batch_size - collected - 1):
                with suppress(Exception):  # one failure is enough for the batch
                    if self._input.pull(1, 1) is None:
                        break
            raise


class Batch(Batching, name="batch"):
    """`batch_size` consecutive elements stacked along a new leading axis."""

    num_parallel_calls: int | None = None

    @property
    def parallelism(self) -> int:
        return threads_of(self.num_parallel_calls)

    @property
    def mode(self) -> str:
        return super().mode if self.parallelism == 1 else f"{super().mode}, {self.parallelism} threads"

    def spec_of_batches(self, rows: Any) -> Any:
        return map_structure(lambda leaf: batched(leaf, self.rows), rows)

    def batches(self, block: Block, size: int) -> Block:
        count = block.length // size
        shape = count, size
        columns = [
            self._stacked(column, size, block.structure.paths()[number])
            if is_ragged(column)
            else column.reshape(shape if column.ndim == 1 else shape + column.shape[1:])
            for number, column in enumerate(block.columns)
        ]
        return Block(tuple(columns), block.structure, count)

    def _stacked(self, column: Column, size: int, leaf: str) -> Column:
        stacked = []
        for start in range(0, len(column), size):
            rows = column[start : start + size]
            shapes = list(dict.fromkeys(map(np.shape, rows)))
            if len(shapes) > 1:
                raise ElementError(
                    f"{self.where()}: the rows of a batch must have one shape, got {shapes[0]} and {shapes[1]}"
                    f"{at_leaf(leaf)}; use padded_batch or ragged_batch"
                )
            stacked.append(column_of(list(rows)))
        return column_of(stacked)


class RaggedBatch(Batching, name="ragged_batch"):
    """`batch_size` consecutive elements; a leaf with an axis of unknown length becomes an object array of its rows.

    The input's specification decides, not the rows of one batch: all batches must be of one kind.
    """

    memory = "copies rows"

    @property
    def fails(self) -> bool:
        return not self.indexable  # it refuses no rows

    def batches(self, block: Block, size: int) -> Block:
        spec = self.input.spec
        dense = [False] * len(block.columns) if spec is None else [_is_dense(leaf) for leaf in flatten(spec)[0]]
        columns = [
            column.reshape(len(column) // size, size, *column.shape[1:])
            if known or (column.ndim == 1 and not is_ragged(column))
            else np.stack([object_column(column[start : start + size]) for start in range(0, len(column), size)])
            for column, known in zip(block.columns, dense, strict=True)
        ]
        return Block(tuple(columns), block.structure, len(block) // size)

    def spec_of_batches(self, rows: Any) -> Any:
        # An assumed specification of the input is not available when rows are batched.
        known = self.input.spec is not None
        return map_structure(lambda leaf: (batched if _is_dense(leaf, known) else ragged_rows)(leaf, self.rows), rows)


def at_leaf(leaf: str) -> str:
    """Return the path of a leaf, for errors; an element that is one leaf has none."""
    return f" at {leaf}" if leaf else ""


def _is_dense(leaf: LeafSpec, known: bool = True) -> bool:
    """Return whether all rows of this specification have one known shape."""
    return leaf.shape == () or (known and None not in leaf.shape)
