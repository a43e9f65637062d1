"""Rows that come one by one, put together as columns.

The first row is checked in full. As long as later rows are like it, a loop takes them without further checks: immutable
values are collected, and become a column together; arrays are copied at once, because the function or generator may use
the same buffer again. A row that is unlike the one before it is checked in full as well.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy import ndarray

from penstock.data.block import Block, Column, column_of, column_of_one, object_column, own, owned
from penstock.data.layout import Layout, Unlike
from penstock.runtime.memory import empty
from penstock.runtime.threads import failures

_ALL_ALIKE: Final = object()
_EXACT_IN_DOUBLES: Final = 1 << 53


class ColumnBuilder:
    """Makes blocks of rows of one layout, most of which have its shapes and kinds.

    Attributes:
        row: the place of the next row in the block.
        unread: rows that were taken after one that `settle` has refused, unchanged.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        self._begin(layout, [_Leaf(layout, number) for number in range(len(layout.dtypes))], 0)
        self.begin(rows)

    def _begin(self, layout: Layout, leaves: list["_Leaf"], start: int) -> None:
        self._layout = layout
        self._leaves = leaves
        self.row = start
        self.unread: list[Any] = []
        # The first of the rows that were only collected.
        self._since = start
        self._checks_numbers = False
        self._came = layout.kinds
        self._expect(layout.quick_kinds)

    def begin(self, rows: int) -> None:
        """Begin a block of at most `rows` rows."""
        for leaf in self._leaves:
            leaf.begin(rows)
        self.row = self._since = 0
        self.unread = []

    def allocate(self) -> None:
        """Make the arrays now, because several threads will fill parts of them."""
        for leaf in self._leaves:
            leaf.allocate()

    def part(self, start: int) -> "ColumnBuilder":
        """Return a builder that fills the same block from row `start` on, perhaps in another thread."""
        part = object.__new__(ColumnBuilder)
        part._begin(self._layout, self._leaves, start)
        return part

    def check_each_number(self) -> None:
        """From now on, check each of Python's numbers before the next row is requested: `settle` then refuses none."""
        self._checks_numbers = True
        self._expect(self._kinds)

    def _expect(self, kinds: Sequence[type]) -> None:
        """Take rows whose leaves are of these types without further checks."""
        self._kinds = kinds
        self._arrays = [leaf for leaf, kind in zip(self._leaves, kinds, strict=True) if kind is ndarray]
        self._collecting = [leaf for leaf, kind in zip(self._leaves, kinds, strict=True) if kind is not ndarray]
        expected = [kind for kind in kinds if kind is not ndarray]
        self._expected = [Unlike if self._checks_numbers and kind in (int, float) else kind for kind in expected]
        self._found: list[list[Any]] = [[] for _ in expected]

    @property
    def collected(self) -> int:
        """Return how many of the rows before `row` are collected, but not yet in a column."""
        return self.row - self._since

    def take(self, values: Iterator[Any]) -> None:
        """Take all rows; raise the error of the first that cannot be read or is refused.

        The rows before it were taken, unless `settle` refuses one.
        """
        while (value := self._take_alike(values)) is not _ALL_ALIKE:
            refused = self.settle()
            if refused is not None:
                self.unread.append(value)
                raise refused
            came, leaves = self._layout.leaves_of(value)
            for leaf, found in zip(self._leaves, leaves, strict=True):
                leaf.put(self.row, found)
            self.row += 1
            self._since = self.row
            kinds = tuple(map(type, came))
            if kinds != self._came:
                self._came = kinds
                self._expect([kind if self._layout.quick(n, kind) else Unlike for n, kind in enumerate(kinds)])

    def _take_alike(self, values: Iterator[Any]) -> Any:
        """Take rows as long as they are as expected; return the first that is not, or `_ALL_ALIKE`."""
        if self._layout.structure.kind != "leaf" or self._arrays:
            return self._parts_alike(values)
        (expected,), (found,) = self._expected, self._found
        try:
            # This reads no further than the first value of another type, and keeps the values before an exception.
            for kind, run in groupby(values, type):
                if kind is not expected:
                    return next(run)
                found.extend(run)
        finally:
            self.row = self._since + len(found)
        return _ALL_ALIKE

    def _parts_alike(self, values: Iterator[Any]) -> Any:
        """Variant of `_take_alike`, for arrays, which are copied at once, and for several leaves."""
        quick_leaves: Callable[[Any], Any] = self._layout.structure.quick_leaves
        arrays = [leaf.as_array for leaf in self._arrays]
        others = [
            (leaf.number, kind, found.append)
            for leaf, kind, found in zip(self._collecting, self._expected, self._found, strict=True)
        ]
        row = self.row
        try:
            for value in values:
                leaves = quick_leaves(value)
                if leaves is None:
                    return value
                for number, dtype, shape, column, put in arrays:
                    array = leaves[number]
                    if type(array) is ndarray and array.dtype is dtype and array.shape == shape:
                        column[row] = array
                    elif not put(row, array):
                        return value
                for number, kind, collect in others:
                    leaf = leaves[number]
                    if type(leaf) is not kind:
                        return value
                    collect(leaf)
                row += 1
        finally:
            self.row = row
            for found in self._found:
                del found[row - self._since :]
        return _ALL_ALIKE

    def settle(self) -> BaseException | None:
        """Write the collected values; return the error of the first row that is refused, whose number `row` then is."""
        if self.row == self._since or not self._collecting:
            self._since = self.row
            return None
        refused = [leaf.write(self._since, found) for leaf, found in zip(self._collecting, self._found, strict=True)]
        first = min(filter(None, refused), key=itemgetter(0), default=None)
        if first is not None:
            self.unread = [self._as_it_came(row) for row in range(first[0] + 1, self.row)]
            self.row = first[0]
        self._since = self.row
        for found in self._found:
            found.clear()
        return None if first is None else first[1]

    def _as_it_came(self, row: int) -> Any:
        """Return a row as it was given, with its collected values."""
        leaves = [leaf.row(row) for leaf in self._leaves]
        for leaf, found in zip(self._collecting, self._found, strict=True):
            leaves[leaf.number] = found[row - self._since]
        return self._layout.structure.unflatten(leaves)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the columns hold."""
        return sum(leaf.nbytes for leaf in self._leaves)

    def block(self, rows: int) -> Block | None:
        """End the block, and return its first rows, which share no memory; None if there are none."""
        if rows == 0:
            return None
        return Block(tuple([leaf.column(rows) for leaf in self._leaves]), self._layout.structure, rows)


class _Leaf:
    """The rows of one leaf: those of the layout's shape and dtype in one array, others each by itself."""

    def __init__(self, layout: Layout, number: int) -> None:
        self.number = number
        self._layout = layout
        self._dtype = layout.dtypes[number]
        self._shape = layout.shapes[number]
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Begin a column of at most `rows` rows."""
        self._length = rows
        self._rows: Column | None = None
        self.apart: dict[int, Any] = {}

    def allocate(self) -> Column:
        """The array of all rows."""
        if self._rows is None:
            self._rows = empty((self._length, *self._shape), self._dtype)
        return self._rows

    @property
    def as_array(self) -> tuple[int, Any, tuple[int, ...], Column, Callable[[int, Any], bool]]:
        """The number of the leaf, the dtype and shape of arrays that need no check, their place, and that of others."""
        return self.number, self._dtype, self._shape, self.allocate(), self._put_array

    @property
    def nbytes(self) -> int:
        return self.allocate().nbytes

    def put(self, row: int, leaf: Any) -> None:
        """Write a row that was checked."""
        if isinstance(leaf, (ndarray, np.generic)):
            fits = leaf.dtype == self._dtype and leaf.shape == self._shape
        else:
            fits = not self._shape
        if not fits:
            self.apart[row] = own(leaf)
            return
        self.apart.pop(row, None)
        if self._shape or isinstance(leaf, ndarray):
            self.allocate()[row, ...] = leaf  # of an array of objects without axes, the object
        else:
            self.allocate()[row] = leaf  # NumPy would make an array of an object in some cases

    def _put_array(self, row: int, array: Any) -> bool:
        """Write a row if it is an array that differs only in shape."""
        if type(array) is not ndarray or not self._layout.takes_array(self.number, array):
            return False
        self.apart[row] = array.copy()
        return True

    def write(self, start: int, values: Sequence[Any]) -> tuple[int, BaseException] | None:
        """Write values of one type; return the first row that is refused, and its error."""
        column = _together(values, self._dtype)
        if column is None:
            for row, value in enumerate(values, start):
                try:
                    self.put(row, self._layout.leaf(self.number, value))
                except failures() as error:
                    return row, error
        elif self._rows is None and len(values) == self._length:
            self._rows = column
        else:
            self.allocate()[start : start + len(values)] = column
        return None

    def row(self, row: int) -> Any:
        """One row that was written."""
        return self.apart[row] if row in self.apart else self.allocate()[row, ...]

    def column(self, rows: int) -> Column:
        """Return the first rows, and drop the references to them."""
        column, apart = self.allocate(), self.apart
        self._rows, self.apart = None, {}
        if not apart or min(apart) >= rows:  # those that are apart came after a failure
            return column[:rows]
        leaves = [apart[row] if row in apart else column[row, ...] for row in range(rows)]
        arrays = all(issubclass(kind, (ndarray, np.generic)) for kind in set(map(type, leaves)))
        return column_of(leaves) if arrays else object_column(leaves)


def _together(values: Sequence[Any], dtype: np.dtype[Any]) -> Column | None:
    """Values of one type as a column, as `Layout.quick` allows; None if one of them may be out of bounds."""
    kind = type(values[0])
    if dtype.kind == "O":
        return object_column(values)
    if issubclass(kind, np.generic):  # they are buffers, which are joined in half the time
        return np.frombuffer(bytearray().join(values), dtype)
    if kind is int and dtype.kind == "f" and max(map(abs, values)) > _EXACT_IN_DOUBLES:
        return None
    try:
        if kind is not float:
            return np.fromiter(values, dtype, len(values))
        with np.errstate(over="raise"):
            return np.fromiter(values, dtype, len(values))
    except (FloatingPointError, OverflowError):
        return None


def block_of_row(layout: Layout, value: Any) -> Block:
    """A block of one row, which one variable of the caller refers to. It may be a view of the row's arrays.

    Raises:
        ElementError: it is not of the layout.
    """
    columns = _columns_of_row(layout, value)
    if columns is not None:
        return Block(tuple(columns), layout.structure, 1)
    builder = ColumnBuilder(layout, 1)
    builder.take(iter((value,)))
    refused = builder.settle()
    if refused is not None:
        raise refused
    block = builder.block(1)
    assert block is not None
    return block


def _columns_of_row(layout: Layout, value: Any) -> list[Column] | None:
    """Columns of one row that is like the first; None for another."""
    found = layout.structure.quick_leaves(value)
    if found is None or tuple(map(type, found)) != layout.quick_kinds:
        return None
    leaves = list(found)
    del found  # `owned` counts what refers to the value and its parts
    if ndarray in layout.quick_kinds:
        leaves = owned(value, leaves, flat=layout.structure.is_flat, variables=3)
    columns = []
    for number, leaf in enumerate(leaves):
        if type(leaf) is ndarray:
            column = column_of_one(leaf) if layout.takes_array(number, leaf) else None
        else:
            column = _together((leaf,), layout.dtypes[number])
        if column is None:
            return None
        columns.append(column)
    return columns
