"""Operators that put rows together into batches."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, Indices, column_of, is_ragged, object_column
from penstock.data.functions.apply import note
from penstock.data.node import DependsOn, OneInput, Origins, Run, any_number, derived, scaled, spans
from penstock.data.origins import source_row
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import OneInputStream, State, Stream
from penstock.errors import ElementError, InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions, by_part
from penstock.runtime.threads import failures, threads_of
from penstock.sharding import SliceRule
from penstock.spec import LeafSpec, TensorSpec, as_leaf, assuming, batched, cast, leaf_spec, ragged_rows
from penstock.structure import LEAF, Structure, flatten, map_structure

_COUNT = TensorSpec((), np.int64)
_DTYPE, _NDIM, _SHAPE = attrgetter("dtype"), attrgetter("ndim"), attrgetter("shape")
_SHORT = 512
"""The length up to which rows of one axis are padded all at once."""


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


@dataclass(frozen=True, eq=False)
class Batching(OneInput):
    """A node of batches: it decides which rows go into which batch; `batches` puts them together."""

    depends_on = DependsOn.ANY
    keeps_numbers = True
    batch_size: int
    drop_remainder: bool = False
    own: LocalSlices | None = field(default=None, repr=False, kw_only=True)
    """The rows of each batch to read, if not all; an element is then the pair of these and the number of all rows.

    For states and random keys such a pair counts as the batch. Only over an indexable input.
    """

    @property
    def identity(self) -> dict[str, Any]:
        return self._arguments_without("num_parallel_calls", "own")

    @property
    def lengths(self) -> tuple[int, int] | None:
        """The number of rows of each batch, and that of the last one; None where it is unknown."""
        length, size = self.input.cardinality, self.batch_size
        if length == UNKNOWN_CARDINALITY:
            return None
        even = self.drop_remainder or length == INFINITE_CARDINALITY or length % size == 0
        return size, size if even else length % size

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

    @derived
    def indexable(self) -> bool:
        return self.input.indexable

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
            return (yield from self._read(run, epoch, indices, size))
        shorter = (as_positions(indices) == last).astype(np.int8)
        parts = []
        for short, which, batches in by_part(indices, shorter):
            rows = length % size if short else size
            parts.append((which, (yield from self._read(run, epoch, batches, rows))))
        return Block.in_places(parts)

    def _read(self, run: Run, epoch: int, batches: Indices, whole: int) -> Reading:
        """Read the batches with these numbers, which have `whole` rows each; or only the worker's rows of them."""
        size = self.batch_size
        own, real = (range(whole), whole) if self.own is None else self.own.rows_of(whole)
        rows: Indices
        if isinstance(own, range) and len(batches) == 1:  # the most frequent case of large batches
            rows = range(int(batches[0]) * size + own.start, int(batches[0]) * size + own.stop)
        elif len(own) == size and isinstance(batches, range) and batches.step == 1:
            rows = range(batches.start * size, batches.stop * size)
        else:
            rows = (as_positions(batches)[:, None] * size + as_positions(own)).reshape(-1)
        block = yield from self.input.reading(run, epoch, rows)
        numbered = run.meter(self).measuring(self.numbered)
        made = numbered(block, len(own), int(batches[0]) if len(batches) else 0)
        if self.own is None:
            return made
        columns = made.columns
        if real < len(own) and len(made):  # one is read where the worker gets none
            columns = tuple(column_of([batch[:real] for batch in column]) for column in columns)
        return Block((*columns, np.full(len(made), whole)), made.structure.beside_a_leaf, len(made))

    def stream(self, run: Run, epoch: int) -> Stream:
        return BatchStream(self, run, epoch)


class BatchStream(OneInputStream):
    """Batches of a stream. Rows read beyond whole batches are given back, so the state is the input's alone."""

    def __init__(self, node: Batching, run: Run, epoch: int) -> None:
        self._node = node
        run = run.copying(node.parallelism)
        self._input = node.input.cursor(run, epoch)
        self._copiers = run.copiers

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
        return self._node.numbered(Block.concatenate(parts, self._copiers), count, number)

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


@dataclass(frozen=True, eq=False)
class Batch(Batching):
    """`batch_size` consecutive elements stacked along a new leading axis."""

    name: ClassVar[str] = "batch"
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
                    f"{_at(leaf)}; use padded_batch or ragged_batch"
                )
            stacked.append(column_of(list(rows)))
        return column_of(stacked)


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batching):
    """`batch_size` consecutive elements padded to one shape and stacked."""

    name: ClassVar[str] = "padded_batch"
    padded_shapes: Any = None
    padding_values: Any = None
    memory = "copies rows"

    @property
    def slices_alike(self) -> bool:
        """Return whether all batches are padded to one shape, regardless of their longest row."""
        if _is_fixed(self.padded_shapes):
            return True
        return self.spec is not None and not any(None in leaf.shape[1:] for leaf in flatten(self.spec)[0])

    def spec_of_batches(self, rows: Any) -> Any:
        leaves, structure = flatten(rows)
        shapes = _per_leaf(self.padded_shapes, structure, is_shape=True)
        values = _per_leaf(self.padding_values, structure, is_shape=False)
        return structure.unflatten(
            [batched(_padded_spec(*leaf), self.rows) for leaf in zip(leaves, shapes, values, strict=True)]
        )

    def batches(self, block: Block, size: int) -> Block:
        shapes = _per_leaf(self.padded_shapes, block.structure, is_shape=True)
        values = _per_leaf(self.padding_values, block.structure, is_shape=False)
        columns = [
            self._padded(column, size, path, shape, value)
            for column, path, shape, value in zip(block.columns, block.structure.paths(), shapes, values, strict=True)
        ]
        return Block(tuple(columns), block.structure, len(block) // size)

    def _padded(self, column: Column, size: int, leaf: str, shape: Sequence[int | None] | None, value: Any) -> Column:
        if not is_ragged(column) and (shape is None or tuple(shape) == column.shape[1:]):
            return column.reshape(len(column) // size, size, *column.shape[1:])
        starts = range(0, len(column), size)
        return column_of([self._pad(list(column[start : start + size]), leaf, shape, value) for start in starts])

    def _pad(self, rows: list[Any], leaf: str, shape: Sequence[int | None] | None, value: Any) -> Column:
        if set(map(type, rows)) != {np.ndarray}:
            rows = [np.asarray(row) for row in rows]
        axes = rows[0].ndim
        if set(map(_NDIM, rows)) != {axes} or (shape is not None and len(shape) != axes):
            wanted = f"padded_shapes has {len(shape)}" if shape is not None else "the first row has another number"
            raise ElementError(f"{self.where()}: a row has {axes} axes{_at(leaf)} where {wanted}")
        lengths = list(map(len, rows)) if axes == 1 else []
        longest = [max(lengths)] if axes == 1 else list(map(max, zip(*map(_SHAPE, rows), strict=True)))
        target = [
            long if shape is None or shape[axis] in (None, -1) else int(shape[axis] or 0)
            for axis, long in enumerate(longest)
        ]
        if any(long > limit for long, limit in zip(longest, target, strict=True)):
            raise ElementError(
                f"{self.where()}: a row of shape {tuple(longest)}{_at(leaf)} does not fit into padded_shapes "
                f"{tuple(target)}"
            )
        dtypes = set(map(_DTYPE, rows))  # they differ at most in the width of strings
        dtype: np.dtype[Any] = dtypes.pop() if len(dtypes) == 1 else np.result_type(*dtypes)
        if dtype.kind == "O" and any(row.size and isinstance(row.flat[0], np.ndarray) for row in rows):
            raise ElementError(f"{self.where()}: a row holds arrays of unequal shape{_at(leaf)}: pad them first")
        fill = _default_padding(rows)
        if value is not None:
            self._check_padding(value, dtype, fill, leaf)
            fill = value
        if dtype.kind in "US":
            dtype = np.result_type(dtype, np.asarray(fill))  # the width of the widest string
        shape_of_all = (len(rows), *target)
        zeros = value is None and dtype.kind in "biufc"
        batch = np.zeros(shape_of_all, dtype) if zeros else np.full(shape_of_all, fill, dtype=dtype)
        if axes == 1 and max(longest) <= _SHORT:  # all at once: copying each short row costs more than a mask
            batch[np.arange(target[0]) < np.array(lengths)[:, None]] = np.concatenate(rows)
            return batch
        for number, row in enumerate(rows):
            corner: tuple[Any, ...] = (number, *map(slice, row.shape))
            batch[corner] = row
        return batch

    def _check_padding(self, value: Any, dtype: np.dtype[Any], default: Any, leaf: str) -> None:
        """Refuse a padding value that rows of this dtype cannot hold."""
        given = np.asarray(value)
        if dtype.kind in "US" and given.dtype.kind == dtype.kind:
            return
        if dtype.kind == "O" and (default is None or isinstance(value, type(default))):
            return
        with suppress(TypeError, ValueError, OverflowError):
            exact = dtype.kind != "O" and cast(given, dtype) == given  # raises where a number becomes infinite
            if exact or (dtype.kind in "fc" and given.dtype.kind in "biufc"):
                return
        kind = type(default).__name__ if dtype.kind == "O" else dtype
        raise InvalidArgumentError(f"{self.where()}: rows of {kind}{_at(leaf)} cannot be padded with {value!r}")


def _at(leaf: str) -> str:
    """Return the path of a leaf, for errors; an element that is one leaf has none."""
    return f" at {leaf}" if leaf else ""


def _padded_spec(row: LeafSpec, shape: Sequence[int | None] | None, value: Any) -> LeafSpec:
    """Return the specification of a row that is padded to this shape, whose open axes depend on the longest row."""
    dtype = row.dtype
    if dtype.kind in "US" and dtype.itemsize and value is not None:
        dtype = np.result_type(dtype, np.asarray(value))
    if shape is None or len(shape) != len(row.shape):
        return assuming(leaf_spec(row.shape, dtype, row.ragged_rank), row.assumed_axes, dtype=row.assumed_dtype)
    given = [None if length == -1 else length for length in shape]
    lengths = [own if length is None else length for own, length in zip(row.shape, given, strict=True)]
    assumed = [axis for axis in row.assumed_axes if given[axis] is None]
    return assuming(TensorSpec(lengths, dtype), assumed, dtype=row.assumed_dtype)


def _default_padding(rows: list[Any]) -> Any:
    """Return 0, or the empty string or bytes; None for other objects."""
    dtype = rows[0].dtype
    if dtype.kind != "O":
        return np.zeros((), dtype)
    sample = next((row.flat[0] for row in rows if row.size), "")
    return b"" if isinstance(sample, bytes) else "" if isinstance(sample, str) else None


def _per_leaf(value: Any, structure: Structure, *, is_shape: bool) -> list[Any]:
    """Return an argument, given once for all leaves or in the elements' structure, as a list with an entry per leaf."""
    count = structure.leaf_count
    if value is None:
        return [None] * count
    if is_shape and structure == LEAF and not _is_shape(value):
        raise InvalidArgumentError(
            f"padded_batch(padded_shapes=...) takes a shape for elements of one leaf, got {value!r}"
        )
    if structure == LEAF or (is_shape and _is_shape(value)) or (not is_shape and not isinstance(value, (tuple, dict))):
        return [value if is_shape else as_leaf(value)] * count
    return list(_leaves_like(value, structure))


def bounded_shapes(structure: Structure, unknown: list[list[bool]], padded_shapes: Any, length: int) -> Any:
    """Return `padded_shapes` of elements of this structure, with `length` on every open axis.

    A leaf without a shape is padded on its unknown axes.
    """
    shapes = _per_leaf(padded_shapes, structure, is_shape=True)
    bounded = [
        tuple(length if open_ else None for open_ in axes)
        if shape is None
        else tuple(length if size in (None, -1) else size for size in shape)
        for shape, axes in zip(shapes, unknown, strict=True)
    ]
    return structure.unflatten(bounded)


def _is_fixed(shapes: Any) -> bool:
    """Return whether `padded_shapes` leaves no axis open, however deep they are."""
    if _is_shape(shapes):
        return None not in shapes and -1 not in shapes
    parts = shapes.values() if isinstance(shapes, dict) else shapes if isinstance(shapes, (tuple, list)) else [None]
    return all(part is not None and _is_fixed(part) for part in parts)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(entry is None or hasattr(entry, "__index__") for entry in value)


def _leaves_like(value: Any, structure: Structure) -> list[Any]:
    """Return the entries of `value` at the leaves of `structure`; they may be tuples (shapes) or None."""
    if structure.kind == "leaf":
        return [value]
    if structure.kind == "none":
        return []
    parts: list[Any] = []
    for name, child in zip(structure.names, structure.children, strict=True):
        try:
            part = getattr(value, name) if structure.kind == "class" else value[name]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"expected one entry for each of {structure}, got {value!r}") from error
        parts.extend(_leaves_like(part, child))
    return parts


@dataclass(frozen=True, eq=False)
class BatchBy(PaddedBatch):
    """Consecutive rows, as many as fit into a budget, padded to one shape. The input gives pairs of `WithCosts`."""

    name: ClassVar[str] = "batch_by"
    keeps_numbers = False
    indexable = False
    fails = True
    rows_per_batch = 0
    rows = None
    lengths = None
    budget: float = field(kw_only=True)
    multiple_of: int = field(default=1, kw_only=True)

    @derived
    def cardinality(self) -> int:
        return any_number(self.input)

    def spec_over(self, *inputs: Any) -> Any:
        return self.spec_of_batches(inputs[0][0])

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield from ()

    def stream(self, run: Run, epoch: int) -> "BatchByStream":
        return BatchByStream(self, run, epoch)


class BatchByStream(OneInputStream):
    """Batches by size. Rows that did not fit any more are kept for the next batch, and the state is that before them.

    A row that fails ends the batch before it.
    """

    def __init__(self, node: BatchBy, run: Run, epoch: int) -> None:
        self._node = node
        self._run, self._epoch = run, epoch
        self._input = node.input.cursor(run, epoch)
        self._kept: Block | None = None
        self._before: State = None

    def pull(self, need: int, allow: int) -> Block | None:
        parts: list[Block] = []
        size = 0.0
        while sum(map(len, parts)) < self._node.batch_size:
            try:
                rows = self._next_rows()
            except failures() as error:
                if not parts:
                    raise
                self._input.withhold(error)
                break
            if rows is None:
                break
            size += float(rows.columns[-1].sum())
            if size > self._node.budget and parts:
                self._kept = rows
                break
            if size > self._node.budget:
                raise self._too_large(rows, size)
            parts.append(rows)
        if not parts:
            return None
        pairs = Block.concatenate(parts, self._run.copiers)
        block = Block(pairs.columns[:-1], pairs.structure.children[0], len(pairs))
        return self._node.numbered(block, len(block), self._input.met - len(block))

    def _next_rows(self) -> Block | None:
        """Return the next rows that are in one batch, as many as `multiple_of` if no row fails; None at the end."""
        if self._kept is not None:
            rows, self._kept = self._kept, None
            return rows
        self._before = self._input.state()
        parts: list[Block] = []
        while (left := self._node.multiple_of - sum(map(len, parts))) > 0:
            try:
                block = self._input.pull(left, left)
            except failures() as error:
                if not parts:
                    raise
                self._input.withhold(error)
                break
            if block is None:
                break
            parts.append(block)
        return Block.concatenate(parts, self._run.copiers) if parts else None

    def _too_large(self, rows: Block, size: float) -> ElementError:
        first = self._input.met - len(rows)
        what = "a row" if len(rows) == 1 else f"{len(rows)} rows, which are in one batch by multiple_of,"
        error = ElementError(
            f"batch_by: {what} of size {size:g} is more than the budget of {self._node.budget:g}: raise the budget, or "
            "cut or filter such rows before"
        )
        note(error, self._node, first, source_row(self._node.input, self._run, self._epoch, first))
        return error

    def state(self) -> State:
        return self._input.state() if self._kept is None else self._before


@dataclass(frozen=True, eq=False)
class RaggedBatch(Batching):
    """`batch_size` consecutive elements; a leaf with an axis of unknown length becomes an object array of its rows.

    The input's specification decides, not the rows of one batch: all batches must be of one kind.
    """

    name: ClassVar[str] = "ragged_batch"
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


def _is_dense(leaf: LeafSpec, known: bool = True) -> bool:
    """Return whether all rows of this specification have one known shape."""
    return leaf.shape == () or (known and None not in leaf.shape)
