"""Operators that put rows together into batches, and take them apart."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Column, Indices, column_of, is_ragged, object_column
from penstock.data.node import Node, OneInput, Run, scaled
from penstock.data.stream import Cursor, State, Stream
from penstock.errors import ElementError, InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.rng import as_positions
from penstock.spec import TensorSpec, as_leaf
from penstock.structure import LEAF, Structure, flatten, map_structure


@dataclass(frozen=True, eq=False)
class Batching(OneInput):
    """What batches have in common: which rows go into which; `combined` says what they become."""

    batch_size: int
    drop_remainder: bool = False

    @property
    def cardinality(self) -> int:
        return scaled(
            self.input.cardinality, lambda n: n // self.batch_size if self.drop_remainder else -(-n // self.batch_size)
        )

    @property
    def indexable(self) -> bool:
        return self.input.indexable

    @abstractmethod
    def combined(self, column: Column, size: int, number: int) -> Column:
        """The rows of leaf `number`, `size` at a time, as a column of batches."""

    def batches(self, block: Block, size: int) -> Block:
        """A block of n · size rows as a block of n batches."""
        columns = tuple(self.combined(column, size, number) for number, column in enumerate(block.columns))
        return Block(columns, block.structure, len(block) // size)

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        length = self.input.cardinality
        if length == INFINITE_CARDINALITY or len(indices) == 0:
            return self._read_full(run, epoch, indices)
        # The last batch is the only one that can be short.
        last = length // self.batch_size
        if isinstance(indices, range) and max(indices[0], indices[-1]) < last:
            return self._read_full(run, epoch, indices)
        batches = as_positions(indices)
        full, short = np.flatnonzero(batches < last), np.flatnonzero(batches == last)
        parts = [(full, self._read_full(run, epoch, batches[full]))] if full.size else []
        if short.size:
            rows = self.input.read(run, epoch, range(last * self.batch_size, length))
            one = self.batches(rows, len(rows))
            parts.append((short, one.take(np.zeros(short.size, dtype=np.int64)) if short.size > 1 else one))
        return Block.scattered(parts)

    def _read_full(self, run: Run, epoch: int, indices: Indices) -> Block:
        size = self.batch_size
        rows: Indices
        if isinstance(indices, range) and indices.step == 1:
            rows = range(indices.start * size, indices.stop * size)
        else:
            rows = (as_positions(indices)[:, None] * size + np.arange(size)).reshape(-1)
        return self.batches(self.input.read(run, epoch, rows), size)

    def stream(self, run: Run, epoch: int) -> "BatchStream":
        return BatchStream(self, run, epoch)


class BatchStream(Stream):
    """Batches of a stream. What was read beyond whole batches is given back, so the state is the input's alone."""

    def __init__(self, node: Batching, run: Run, epoch: int) -> None:
        self._node = node
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        size = self._node.batch_size
        first = self._input.pull(need * size, allow * size)
        if first is None:
            return None
        if len(first) >= size:
            extra = len(first) % size
            self._input.give_back(extra)
            return self._node.batches(first.slice(0, len(first) - extra), size)
        rest = self._input.exactly(size - len(first))
        rows = first if rest is None else Block.concatenate([first, rest])
        if len(rows) < size and self._node.drop_remainder:
            return None
        return self._node.batches(rows, len(rows))

    def state(self) -> State:
        return self._input.state()

    def restore(self, state: State) -> None:
        self._input.restore(state)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Batch(Batching):
    """`batch_size` consecutive elements stacked along a new leading axis."""

    name: ClassVar[str] = "batch"

    @property
    def spec(self) -> Any:
        return batched_spec(self.input, self.batch_size, self.drop_remainder)

    def combined(self, column: Column, size: int, number: int) -> Column:
        if not is_ragged(column):
            return column.reshape(len(column) // size, size, *column.shape[1:])
        stacked = []
        for start in range(0, len(column), size):
            rows = column[start : start + size]
            odd = next((row for row in rows if row.shape != rows[0].shape), None)
            if odd is not None:
                raise ElementError(
                    f"{self.where()}: the rows of a batch must have one shape, got {rows[0].shape} and {odd.shape}; "
                    "use padded_batch or ragged_batch"
                )
            stacked.append(np.stack(list(rows)))
        return column_of(stacked)


def batched_spec(node: Node, size: int, drop_remainder: bool) -> Any:
    """The specification of batches of a node's elements: the leading length is known only if every batch has it."""
    if node.spec is None:
        return None
    divides = node.cardinality > 0 and node.cardinality % size == 0
    static = drop_remainder or divides or node.cardinality == INFINITE_CARDINALITY
    return map_structure(lambda leaf: leaf.batched(size if static else None), node.spec)


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batching):
    """`batch_size` consecutive elements padded to one shape and stacked."""

    name: ClassVar[str] = "padded_batch"
    padded_shapes: Any = None
    padding_values: Any = None

    @property
    def spec(self) -> Any:
        if self.input.spec is None:
            return None
        rows, structure = flatten(batched_spec(self.input, self.batch_size, self.drop_remainder))
        shapes = _per_leaf(self.padded_shapes, structure, is_shape=True)
        return structure.unflatten(
            [
                spec if shape is None else TensorSpec((spec.shape[0], *shape), spec.dtype)
                for spec, shape in zip(rows, shapes, strict=True)
            ]
        )

    def batches(self, block: Block, size: int) -> Block:
        shapes = _per_leaf(self.padded_shapes, block.structure, is_shape=True)
        values = _per_leaf(self.padding_values, block.structure, is_shape=False)
        columns = [
            self._padded(column, size, shape, value)
            for column, shape, value in zip(block.columns, shapes, values, strict=True)
        ]
        return Block(tuple(columns), block.structure, len(block) // size)

    def combined(self, column: Column, size: int, number: int) -> Column:
        return self._padded(column, size, None, None)

    def _padded(self, column: Column, size: int, shape: Sequence[int | None] | None, value: Any) -> Column:
        if not is_ragged(column) and (shape is None or tuple(shape) == column.shape[1:]):
            return column.reshape(len(column) // size, size, *column.shape[1:])
        batches = [self._pad(list(column[start : start + size]), shape, value) for start in range(0, len(column), size)]
        return column_of(batches)

    def _pad(self, rows: list[Any], shape: Sequence[int | None] | None, value: Any) -> Column:
        rows = [np.asarray(row) for row in rows]
        axes = rows[0].ndim
        if any(row.ndim != axes for row in rows) or (shape is not None and len(shape) != axes):
            wanted = f"padded_shapes has {len(shape)}" if shape is not None else "the first row has another number"
            raise ElementError(f"{self.where()}: a row has {axes} axes where {wanted}")
        longest = [max(row.shape[axis] for row in rows) for axis in range(axes)]
        target = [
            long if shape is None or shape[axis] in (None, -1) else int(shape[axis] or 0)
            for axis, long in enumerate(longest)
        ]
        if any(long > limit for long, limit in zip(longest, target, strict=True)):
            raise ElementError(
                f"{self.where()}: a row of shape {tuple(longest)} does not fit into padded_shapes {tuple(target)}"
            )
        fill = value if value is not None else _default_padding(rows)
        batch = np.full((len(rows), *target), fill, dtype=rows[0].dtype)
        for number, row in enumerate(rows):
            corner: tuple[Any, ...] = (number, *(slice(length) for length in row.shape))
            batch[corner] = row
        return batch


def _default_padding(rows: list[Any]) -> Any:
    """0, or the empty string or bytes."""
    dtype = rows[0].dtype
    if dtype.kind != "O":
        return np.zeros((), dtype)
    sample = next((row.flat[0] for row in rows if row.size), "")
    return b"" if isinstance(sample, bytes) else ""


def _per_leaf(value: Any, structure: Structure, *, is_shape: bool) -> list[Any]:
    """An argument given once for all leaves, or in the structure of the elements, as a list with one entry per leaf."""
    count = structure.leaf_count
    if value is None:
        return [None] * count
    if structure == LEAF or (is_shape and _is_shape(value)) or (not is_shape and not isinstance(value, (tuple, dict))):
        return [value if is_shape else as_leaf(value)] * count
    return list(_leaves_like(value, structure))


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(entry is None or isinstance(entry, int) for entry in value)


def _leaves_like(value: Any, structure: Structure) -> list[Any]:
    """`value` taken apart only as far as `structure` goes: its leaves may be tuples (shapes) or None themselves."""
    if structure.kind == "leaf":
        return [value]
    if structure.kind == "none":
        return []
    parts: list[Any] = []
    for name, child in zip(structure.names, structure.children, strict=True):
        try:
            part = getattr(value, name) if structure.kind == "record" else value[name]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"expected one entry for each of {structure}, got {value!r}") from error
        parts.extend(_leaves_like(part, child))
    return parts


@dataclass(frozen=True, eq=False)
class RaggedBatch(Batching):
    """`batch_size` consecutive elements; rows of unequal shape become an object array with one array per row."""

    name: ClassVar[str] = "ragged_batch"

    def combined(self, column: Column, size: int, number: int) -> Column:
        if column.ndim == 1 and not is_ragged(column):
            return column.reshape(len(column) // size, size)
        batches = [object_column(column[start : start + size]) for start in range(0, len(column), size)]
        return np.stack(batches)

    @property
    def spec(self) -> Any:
        batched = batched_spec(self.input, self.batch_size, self.drop_remainder)
        if batched is None:
            return None
        return map_structure(lambda leaf: leaf if len(leaf.shape) == 1 else TensorSpec(leaf.shape[:1], object), batched)


@dataclass(frozen=True, eq=False)
class Unbatch(OneInput):
    """The rows along the leading axis of every element."""

    name: ClassVar[str] = "unbatch"

    @property
    def cardinality(self) -> int:
        rows = _static_rows(self.input.spec)
        if rows is not None:
            return scaled(self.input.cardinality, lambda n: n * rows)
        return 0 if self.input.cardinality == 0 else UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        if self.input.spec is None or any(not leaf.shape for leaf in flatten(self.input.spec)[0]):
            return None
        return map_structure(lambda leaf: leaf.row(), self.input.spec)

    def stream(self, run: Run, epoch: int) -> "UnbatchStream":
        return UnbatchStream(self, self.input, run, epoch)


def _static_rows(spec: Any) -> int | None:
    lengths = {leaf.shape[0] if leaf.shape else None for leaf in flatten(spec)[0]} if spec is not None else {None}
    return lengths.pop() if len(lengths) == 1 else None


class UnbatchStream(Stream):
    """Every element is taken apart whole; the cursor that reads this stream stops between the rows."""

    def __init__(self, node: Node, input: Node, run: Run, epoch: int) -> None:
        self._node = node
        self._input = input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        while True:
            # How many rows an element has is only known when it has come.
            batches = self._input.pull(1, 1)
            if batches is None:
                return None
            columns = [self._taken_apart(column) for column in batches.columns]
            lengths = {len(column) for column in columns}
            if len(lengths) > 1:
                raise ElementError(f"{self._node.where()}: the leaves of an element have {sorted(lengths)} rows")
            if lengths and 0 not in lengths:
                return Block(tuple(columns), batches.structure, lengths.pop())

    def _taken_apart(self, column: Column) -> Column:
        """The rows of the one batch in this column."""
        batch = column[0]
        if not isinstance(batch, np.ndarray) or batch.ndim == 0:
            raise ElementError(f"{self._node.where()}: every leaf needs a leading axis to take apart, got a scalar")
        return batch

    def state(self) -> State:
        return self._input.state()

    def restore(self, state: State) -> None:
        self._input.restore(state)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Rebatch(OneInput):
    """The rows of batches put together again in batches of other sizes, which are used in turn."""

    name: ClassVar[str] = "rebatch"
    batch_sizes: tuple[int, ...]
    drop_remainder: bool = False

    @property
    def cardinality(self) -> int:
        return scaled(Unbatch(self.input).cardinality, self._batches_of)

    def _batches_of(self, rows: int) -> int:
        cycles, left = divmod(rows, sum(self.batch_sizes))
        ends = np.cumsum(self.batch_sizes)
        whole = int(np.searchsorted(ends, left, side="right"))
        started = left > (int(ends[whole - 1]) if whole else 0)
        return cycles * len(self.batch_sizes) + whole + (started and not self.drop_remainder)

    @property
    def spec(self) -> Any:
        if self.input.spec is None or any(not leaf.shape for leaf in flatten(self.input.spec)[0]):
            return None
        static = self.drop_remainder and len(set(self.batch_sizes)) == 1
        return map_structure(lambda leaf: leaf.row().batched(self.batch_sizes[0] if static else None), self.input.spec)

    def stream(self, run: Run, epoch: int) -> "RebatchStream":
        return RebatchStream(self, run, epoch)


def _one_batch(column: Column) -> Column:
    """All rows of a column as one batch; rows of unequal shape as one ragged batch."""
    if is_ragged(column) and all(row.shape == column[0].shape for row in column):
        column = np.stack(list(column))
    return column[None]


class RebatchStream(Stream):
    """The state is the position in the rows below, and in the cycle of sizes."""

    def __init__(self, node: Rebatch, run: Run, epoch: int) -> None:
        self._node = node
        self._rows = Cursor(UnbatchStream(node, node.input, run, epoch))
        self._number = 0

    def pull(self, need: int, allow: int) -> Block | None:
        size = self._node.batch_sizes[self._number]
        rows = self._rows.exactly(size)
        if rows is None or (len(rows) < size and self._node.drop_remainder):
            return None
        self._number = (self._number + 1) % len(self._node.batch_sizes)
        columns = tuple(_one_batch(column) for column in rows.columns)
        return Block(columns, rows.structure, 1)

    def state(self) -> State:
        return [self._rows.state(), self._number]

    def restore(self, state: State) -> None:
        position, self._number = state
        self._rows.restore(position)

    def close(self) -> None:
        self._rows.close()
