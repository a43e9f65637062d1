"""Blocks: n elements of one structure, held as one column per leaf.

A column is an array whose leading axis has n rows. Where the rows of a leaf differ in shape, or are strings or other
Python objects, the column is an object array of shape (n,), with one array or object per row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import getrefcount, getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError
from penstock.positions import Indices as Indices
from penstock.runtime.copying import Copiers
from penstock.runtime.memory import output, shared_output
from penstock.spec import LeafSpec, TensorSpec, alike, as_leaf, is_untold, merged_specs, of_rows_like, spec_of_leaf
from penstock.structure import LEAF, PAIR, Structure, flatten

Column = npt.NDArray[Any]
_DTYPE, _SHAPE, _NDIM = attrgetter("dtype"), attrgetter("shape"), attrgetter("ndim")
_STRUCTURE, _COLUMNS, _LENGTH = attrgetter("structure"), attrgetter("columns"), attrgetter("length")


@dataclass(eq=False, slots=True)  # not frozen, which triples the cost of making one
class Block:
    """n elements, one column per leaf. It is never changed.

    Attributes:
        columns: the leaves' columns, in the order of the structure.
        structure: the structure of each element.
        length: n, needed if the structure has no leaves, and so no columns.
    """

    columns: tuple[Column, ...]
    structure: Structure
    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def nbytes(self) -> int:
        """About how many bytes the columns hold. An object column is estimated by its first entry."""
        return sum(map(_bytes_of, self.columns))

    def rows(self) -> Iterator[Any]:
        """The elements, one by one; rows of dense columns are views."""
        if self.structure.kind == "leaf":
            return iter(self.columns[0])
        if self.structure.leaf_count == 0:
            return iter([self.structure.unflatten(())] * self.length)
        leaves = zip(*self.columns, strict=True)
        return leaves if self.structure.is_flat_tuple else map(self.structure.unflatten, leaves)

    def row(self, position: int) -> Any:
        """The element at this position."""
        if self.structure.kind == "leaf":
            return self.columns[0][position]
        return self.structure.unflatten([column[position] for column in self.columns])

    def slice(self, start: int, stop: int) -> "Block":
        """Rows start to stop, as views."""
        if start == 0 and stop >= self.length:
            return self
        stop = min(stop, self.length)
        return Block(tuple(column[start:stop] for column in self.columns), self.structure, stop - start)

    def take(self, indices: Indices, copiers: Copiers | None = None) -> "Block":
        """The rows at these positions: views for a range, copies for an array, which `copiers` make in parallel."""
        columns = tuple(take_rows(column, indices, copiers) for column in self.columns)
        return Block(columns, self.structure, len(indices))

    def beside(self, column: Column) -> "Block":
        """Return pairs of these rows and those of a column."""
        return Block((*self.columns, column), PAIR.nested([self.structure, LEAF]), self.length)

    def without_last(self) -> "Block":
        """Return the first rows of such pairs."""
        return Block(self.columns[:-1], self.structure.children[0], self.length)

    def repeated(self, count: int) -> "Block":
        """A block of one row as `count` equal rows, without copying it."""
        if count == 1:
            return self
        columns = tuple(np.broadcast_to(column, (count, *column.shape[1:])) for column in self.columns)
        return Block(columns, self.structure, count)

    def read_only(self) -> "Block":
        """The same rows as read-only views, because they share their memory with other data."""
        return Block(tuple(map(locked, self.columns)), self.structure, self.length)

    def spec(self) -> Any:
        """The specification of an element of this block."""
        return self.structure.unflatten([spec_of_column(column) for column in self.columns])

    @staticmethod
    def of_rows(rows: Sequence[Any]) -> "Block":
        """A block of these elements (at least one).

        Raises:
            ElementError: the elements differ in structure or dtype.
        """
        leaves, structure = flatten(rows[0])
        return Block.of_leaves([leaves, *(structure.flatten_like(row) for row in rows[1:])], structure)

    @staticmethod
    def of_leaves(rows: Sequence[Sequence[Any]], structure: Structure) -> "Block":
        """A block of elements (at least one) that were flattened already."""
        columns = tuple(column_of([as_leaf(leaf) for leaf in column]) for column in zip(*rows, strict=True))
        return Block(columns, structure, len(rows))

    @staticmethod
    def concatenate(blocks: Sequence["Block"], copiers: Copiers | None = None) -> "Block":
        """The rows of all blocks (at least one), in order, which `copiers` copy in parallel.

        Raises:
            ElementError: the blocks differ in structure or dtype.
        """
        first = blocks[0]
        if len(blocks) == 1:
            return first
        if len(set(map(id, map(_STRUCTURE, blocks)))) > 1:
            for other in blocks[1:]:
                if other.structure != first.structure:
                    raise ElementError(
                        f"elements of one dataset must have one structure, got {first.structure} and {other.structure}"
                    )
        columns = zip(*map(_COLUMNS, blocks), strict=True)
        joined = tuple(_joined(parts, copiers) for parts in columns)
        return Block(joined, first.structure, sum(map(_LENGTH, blocks)))

    @staticmethod
    def in_places(parts: Iterable[tuple[npt.NDArray[np.intp], "Block"]], copiers: Copiers | None = None) -> "Block":
        """One block of several (at least one), each given with the places of its rows, which are sorted.

        Places of which there is no row leave no gap.
        """
        places, blocks = zip(*parts, strict=True)
        if len(blocks) == 1:
            return blocks[0]  # type: ignore[no-any-return]  # zip loses the types
        rows, place = Block.concatenate(blocks, copiers), np.concatenate(places)
        if (place[1:] > place[:-1]).all():
            return rows
        order = np.full(int(place.max()) + 1, -1)
        order[place] = np.arange(len(place))
        return rows.take(order if len(order) == len(place) else order[order >= 0], copiers)


def take_rows(column: Column, indices: Indices, copiers: Copiers | None = None) -> Column:
    """Rows of a column: a view for a range, a copy for an array."""
    if isinstance(indices, range):
        if len(indices) == 0:
            return column[:0]
        # A negative stop would count from the end of the column.
        stop = indices[-1] + (1 if indices.step > 0 else -1)
        return column[indices.start : None if stop < 0 else stop : indices.step]
    out = output((len(indices), *column.shape[1:]), column.dtype)
    if out is None:
        return gathered(column, indices)

    def copy(start: int, stop: int) -> None:
        if column.flags.c_contiguous:
            # This mode writes straight into `out` without checking positions, which operators have checked.
            column.take(indices[start:stop], axis=0, out=out[start:stop], mode="clip")
        else:
            out[start:stop] = gathered(column, indices[start:stop])

    if copiers is None:
        copy(0, len(out))
    else:
        copiers.copy(copy, len(out), out.nbytes)
    return out


def gathered(column: Column, rows: Column) -> Column:
    """Copies of the rows of a column at these positions, which may have several axes."""
    # `take` is faster, but would copy the whole of a strided array first.
    return column.take(rows, axis=0) if column.flags.c_contiguous else column[rows]


def column_of(leaves: Sequence[Any]) -> Column:
    """One column of these rows of one leaf (at least one).

    Dense where their shapes agree, an object column where they do not.

    Raises:
        ElementError: the rows' dtypes differ.
    """
    first = leaves[0]
    if not isinstance(first, (np.ndarray, np.generic)):
        return object_column(leaves)
    if first.dtype.kind in "biufc" and isinstance(first, np.generic) and len(set(map(type, leaves))) == 1:
        # `stack` takes ten times as long for scalars.
        numbers = np.fromiter(leaves, first.dtype, len(leaves))
        out = output(numbers.shape, numbers.dtype)
        if out is None:
            return numbers
        out[:] = numbers
        return out
    if len(leaves) == 1:
        out = output((1, *first.shape), first.dtype)
        if out is None:
            return np.array(first)[None]  # a copy, as below
        out[0] = first
        return out
    if set(map(type, leaves)) == {np.ndarray} and set(map(id, map(_DTYPE, leaves))) == {id(first.dtype)}:
        if len(set(map(_SHAPE, leaves))) > 1:
            return object_column(leaves)
        return _stacked(leaves)
    told = next((leaf for leaf in leaves if isinstance(leaf, np.ndarray) and not is_untold(leaf)), None)
    if told is not None:
        leaves = [of_rows_like(leaf, told.dtype, told.shape) for leaf in leaves]
        first = leaves[0]
    for leaf in leaves:
        if not isinstance(leaf, (np.ndarray, np.generic)) or not (
            leaf.dtype is first.dtype or alike(leaf.dtype, first.dtype)
        ):
            raise ElementError(
                f"rows of one leaf must have one dtype, got {spec_of_leaf(first)} and {spec_of_leaf(leaf)}"
            )
    if any(leaf.shape != first.shape for leaf in leaves):
        return object_column([np.asarray(leaf) for leaf in leaves])
    if first.dtype.kind in "US":
        return np.stack(leaves)  # as long as the longest string
    return _stacked(leaves)


def _stacked(leaves: Sequence[Any]) -> Column:
    """Rows of one shape and dtype as a column. NumPy would change the order of their bytes to this machine's."""
    first = leaves[0]
    out = output((len(leaves), *first.shape), first.dtype)
    return np.stack(leaves, dtype=first.dtype) if out is None else np.stack(leaves, out=out)


def column_of_one(array: Column) -> Column:
    """A column of one row, whose memory it takes over: a view, unless other processes are to read the column."""
    out = shared_output((1, *array.shape), array.dtype)
    if out is None:
        return array[None]
    out[0] = array
    return out


def object_column(values: Iterable[Any]) -> Column:
    """An object column with these entries, even if NumPy could stack them."""
    entries = list(values)
    return np.fromiter(entries, object, len(entries))


def placed(kept: Column, positions: npt.NDArray[np.int64], column: Column, filled: Iterable[int]) -> Column:
    """`kept` with these rows at these positions; rows of another shape make it an object column.

    Args:
        filled: the positions at which it has rows.
    """
    if kept.shape[1:] == column.shape[1:] and alike(kept.dtype, column.dtype):
        if kept.dtype.itemsize < column.dtype.itemsize:  # strings: the dtype is that of the widest
            kept = kept.astype(column.dtype)
        kept[positions] = column
        return kept
    if kept.dtype != object or kept.ndim > 1:
        rows = np.empty(len(kept), dtype=object)
        for position in filled:
            rows[position] = kept[position]
        kept = rows
    for position, row in zip(positions, column, strict=True):
        kept[position] = np.asarray(row)
    return kept


def is_ragged(column: Column) -> bool:
    """Return whether this is an object column of arrays."""
    return column.dtype.kind == "O" and column.ndim == 1 and len(column) > 0 and isinstance(column[0], np.ndarray)


def dtype_of_rows(column: Column) -> np.dtype[Any]:
    """The dtype of the rows of a column with at least one; rows of unequal shape have the same."""
    return column[0].dtype if is_ragged(column) else column.dtype


def spec_of_column(column: Column) -> LeafSpec:
    """The specification of a row of this column; axes along which its rows differ are None."""
    if column.dtype != object or column.size == 0 or not isinstance(column.flat[0], np.ndarray):
        return TensorSpec(column.shape[1:], column.dtype)
    try:
        return merged_specs(map(spec_of_leaf, column))
    except ElementError:  # objects of any kind
        return TensorSpec(column.shape[1:], object)


def _joined(columns: Sequence[Column], copiers: Copiers | None) -> Column:
    first = columns[0]
    if first.dtype.kind == "O" or not _surely_alike(columns):
        if all(map(is_ragged, columns)):
            rows = np.concatenate(columns)
            arrays = set(map(type, rows)) == {np.ndarray}
            if arrays and len(set(map(_DTYPE, rows))) == 1 and len(set(map(_SHAPE, rows))) > 1:
                return rows
        if any(is_ragged(column) or column.shape[1:] != first.shape[1:] for column in columns):
            return column_of([row if isinstance(row, np.ndarray) else as_leaf(row) for col in columns for row in col])
        for other in columns[1:]:
            if not alike(other.dtype, first.dtype):
                raise ElementError(f"rows of one leaf must have one dtype, got {first.dtype} and {other.dtype}")
    if first.dtype.kind in "US":
        return np.concatenate(columns)  # as long as the longest string
    out = output((sum(map(len, columns)), *first.shape[1:]), first.dtype)
    if out is None:
        return np.concatenate(columns, dtype=first.dtype)
    if copiers is None or copiers.count == 1:
        return np.concatenate(columns, out=out)
    ends = np.cumsum([len(column) for column in columns])

    def copy(start: int, stop: int) -> None:
        number = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            column, end = columns[number], int(ends[number])
            until = min(stop, end)
            skipped = len(column) - end
            out[start:until] = column[start + skipped : until + skipped]
            start, number = until, number + 1

    copiers.copy(copy, len(out), out.nbytes)
    return out


def _surely_alike(columns: Sequence[Column]) -> bool:
    """Return whether columns have one dtype and rows of one shape, by a test without a step of Python per column."""
    if len(set(map(id, map(_DTYPE, columns)))) > 1:
        return False
    return set(map(_NDIM, columns)) == {1} or len({column.shape[1:] for column in columns}) == 1


def _bytes_of(column: Column) -> int:
    if column.dtype.kind != "O" or column.size == 0:
        return column.nbytes
    return column.nbytes + column.size * getsizeof(column.flat[0])


def own(leaf: Any) -> Any:
    """Return a leaf whose memory no other code can write: a copy of an array, anything else unchanged."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _references() -> tuple[int, int, int]:
    """Return the result of `getrefcount` in `owned` for an unshared array, container and part of a container."""
    found: list[int] = []

    def look(value: Any, leaves: list[Any]) -> None:
        found.extend([getrefcount(value), *[getrefcount(leaf) for leaf in leaves]])

    leaves: list[Any] = [np.empty(0)]
    value = leaves[0]
    look(value, leaves)
    value = (np.empty(0),)
    leaves = list(value)
    look(value, leaves)
    return found[0], found[2], found[3]


_ARRAY, _CONTAINER, _PART = _references()


def owned(value: Any, leaves: list[Any], *, flat: bool, variables: int = 1) -> list[Any]:
    """Return the leaves of a value that a user's function returned, in memory that no other code can write.

    Arrays without other references stay as they are, others are copied.

    Args:
        flat: whether `value` is an array, or holds its leaves itself.
        variables: how many variables of callers refer to it.
    """
    kind, more = type(value), variables - 1
    if kind is np.ndarray:
        return leaves if getrefcount(value) == _ARRAY + more and value.base is None else [value.copy()]
    if flat and kind in (tuple, dict) and getrefcount(value) == _CONTAINER + more:
        return [leaf if getrefcount(leaf) == _PART and _has_own_memory(leaf) else own(leaf) for leaf in leaves]
    return list(map(own, leaves))


def _has_own_memory(leaf: Any) -> bool:
    return type(leaf) is np.ndarray and leaf.base is None


def locked_entries(column: Column) -> Column:
    """An object column whose arrays are read-only; a dense column as it is."""
    if column.dtype.kind != "O" or np.ndarray not in set(map(type, column.ravel().tolist())):
        return column
    entries = np.empty(column.shape, dtype=object)
    for position, entry in enumerate(column.flat):
        entries.flat[position] = locked(entry) if isinstance(entry, np.ndarray) else entry
    return entries


def locked(column: Column) -> Column:
    """A read-only view of a column, and of the arrays in it; the column itself where it is read-only."""
    if column.dtype.kind != "O" and not column.flags.writeable:  # as of Arrow's memory
        return column
    view = column.view() if column.dtype.kind != "O" else locked_entries(column).view()
    view.flags.writeable = False
    return view
