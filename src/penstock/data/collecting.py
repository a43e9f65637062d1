"""Rows that come one by one, put together as columns.

The caller checks the first row in full. For each of its leaves a `Leaf` remembers what later rows may hold without
another check: values of the same type that fit the dtype, or arrays of the same dtype and shape. Only rows that differ
are checked again.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy import ndarray

from penstock.data.block import Block, Column, column_of, object_column, own, owned
from penstock.data.functions.alike import ALL_ALIKE, Unlike, given_by_users, take_loop
from penstock.data.functions.output import bounds
from penstock.errors import ElementError
from penstock.runtime.memory import empty
from penstock.spec import LeafSpec
from penstock.structure import Structure

Check = Callable[[Any], list[Any]]
"""Gives the leaves of a row that differs from the first, or raises an error that says what is wrong with it."""

_SMALL: Final = (1 << 30) - 1
"""Integers up to this size are one digit to Python, which compares such in a fifth of the time of others."""
_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 30


class Leaf(ABC):
    """Collects the rows of one leaf.

    Attributes:
        way: how a row like the first is taken (`alike.py`); it has the attributes that this way needs.
        bytes_of_row: how many bytes a row needs.
        taken: how many rows were taken.
    """

    way: str
    bytes_of_row: int = 8
    taken: int

    @abstractmethod
    def begin(self, rows: int, *, gathers: bool) -> None:
        """Begin a column of at most this many rows.

        Args:
            gathers: whether numbers are looked at when all were taken, where that costs less: `made` may raise
                `Unlike` then.
        """

    @abstractmethod
    def take(self, values: Iterable[Any], check: Check) -> None:
        """Take all rows; `check` checks those that are unlike the first."""

    @abstractmethod
    def one(self, value: Any) -> Any:
        """A row as a leaf, which is not taken; None if it must be checked."""

    @abstractmethod
    def put_checked(self, leaf: Any) -> None:
        """Take a row that was checked."""

    @abstractmethod
    def cut(self, rows: int) -> None:
        """These rows were taken; any more that were begun are dropped."""

    @abstractmethod
    def made(self) -> Column:
        """The column of all rows that were taken.

        Raises:
            Unlike: one of them must be checked.
        """

    @abstractmethod
    def clear(self) -> None:
        """Refer to no row any more."""

    @abstractmethod
    def raw(self) -> Iterable[Any]:
        """The rows, which can be taken again."""


class Values(Leaf):
    """Immutable values of one type: NumPy's scalars, strings and bytes."""

    def __init__(self, kind: type, dtype: np.dtype[Any]) -> None:
        self.way = "value"
        self.kind = kind
        self._dtype = dtype
        self.found: list[Any] = []
        self._mixed = False

    def begin(self, rows: int, *, gathers: bool) -> None:
        self.found.clear()
        self._mixed = False

    def take(self, values: Iterable[Any], check: Check) -> None:
        rows, kind = self.found, self.kind
        # This reads no further than the first value of another type, and keeps what came before an exception.
        for found, run in groupby(values, type):
            if found is kind:
                rows.extend(run)
            else:
                for value in run:
                    self.put_checked(check(value)[0])

    @property
    def taken(self) -> int:  # type: ignore[override]  # it follows from the rows
        return len(self.found)

    def one(self, value: Any) -> Any:
        return value if type(value) is self.kind else None

    def put_checked(self, leaf: Any) -> None:
        self._mixed = True
        self.found.append(own(leaf))

    def cut(self, rows: int) -> None:
        del self.found[rows:]

    def made(self) -> Column:
        if self._mixed:
            return column_of([self._leaf(value) for value in self.found])
        if self._dtype.kind == "O":
            return object_column(self.found)
        if issubclass(self.kind, np.generic):  # they are buffers, which are joined in half the time
            return np.frombuffer(bytearray().join(self.found), self._dtype)
        return np.fromiter(self.found, self._dtype, len(self.found))

    def clear(self) -> None:
        self.found.clear()

    def raw(self) -> list[Any]:
        return self.found.copy()

    def _leaf(self, value: Any) -> Any:
        return value


class Numbers(Values):
    """Python's numbers between two bounds, within which converting them together gives what converting each would.

    Attributes:
        least: as `low`, or a bound with which Python compares quickly.
        most: as `high`, likewise.
    """

    def __init__(self, kind: type, dtype: np.dtype[Any], low: Any, high: Any) -> None:
        super().__init__(kind, dtype)
        self.low = low
        self.high = high
        self.least, self.most = (max(low, -_SMALL), min(high, _SMALL)) if kind is int else (low, high)
        # Whether NumPy rounds integers once when they become floats, their column does not tell.
        self._column_tells = not (dtype.kind == "f" and kind is int)
        self._gathered = False

    def begin(self, rows: int, *, gathers: bool) -> None:
        self.found.clear()
        self._mixed = False
        self._gathered = gathers and self._column_tells
        self.way = "value" if self._gathered else "number"

    def one(self, value: Any) -> Any:
        return self._dtype.type(value) if type(value) is self.kind and self.low <= value <= self.high else None

    def take(self, values: Iterable[Any], check: Check) -> None:
        if self._gathered:
            super().take(values, check)
            return
        append, kind, least, most = self.found.append, self.kind, self.least, self.most
        for value in values:
            # `least <= value <= most` takes twice as long, and NaN is not between bounds.
            if type(value) is kind and (not (value > most or value < least) or self.low <= value <= self.high):
                append(value)
            else:
                self.put_checked(check(value)[0])

    def made(self) -> Column:
        if not self._gathered:
            return super().made()
        if self._mixed:
            if not all(type(value) is not self.kind or self.low <= value <= self.high for value in self.found):
                raise Unlike
            return super().made()
        if self.kind is not float:
            try:
                return np.fromiter(self.found, self._dtype, len(self.found))
            except OverflowError:
                raise Unlike from None
        exact = np.fromiter(self.found, np.float64, len(self.found))
        sizes = np.abs(exact)
        # The first test is the quick one, which NaN does not pass.
        if not np.maximum.reduce(sizes) <= self.high and np.any((sizes > self.high) & (sizes < np.inf)):
            raise Unlike
        return exact.astype(self._dtype, copy=False)

    def _leaf(self, value: Any) -> Any:
        return self._dtype.type(value) if type(value) is self.kind else value


class Arrays(Leaf):
    """Arrays of one dtype. They are copied at once, because a generator may yield the same buffer again.

    Arrays of the first one's shape are copied straight into one array.

    Args:
        shape: of the first.
        spec: what was promised of their shapes; None if they may have any.
    """

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], spec: LeafSpec | None) -> None:
        self.dtype = dtype
        self._shape = shape
        self._spec = spec
        self._nothing = np.empty((0, *shape), dtype)
        # One array of all rows or, as soon as shapes differ, a list of them.
        self.column = self._nothing
        self.found: list[Any] = []
        self._unequal = False
        self.taken = 0
        self.bytes_of_row = max(1, dtype.itemsize * math.prod(shape))

        self.way = "array"

    def begin(self, rows: int, *, gathers: bool) -> None:
        self.taken = 0
        self.found = []
        if not self._unequal:
            self.column = empty((rows, *self._shape), self.dtype)

    def take(self, values: Iterable[Any], check: Check) -> None:
        column, dtype, shape = self.column, self.dtype, self._shape
        for value in values:
            # Written out here as well, because a call for each row would cost as much as copying a small one.
            if type(value) is ndarray and value.dtype is dtype and value.shape == shape and not self._unequal:
                column[self.taken] = value
                self.taken += 1
            elif not self._put(value):
                self.put_checked(check(value)[0])

    def one(self, value: Any) -> Any:
        like = type(value) is ndarray and value.dtype is self.dtype and value.ndim and self.fits(value.shape)
        return value if like else None

    def _put(self, leaf: Any) -> bool:
        if type(leaf) is not ndarray or leaf.dtype is not self.dtype:
            return False
        if leaf.shape == self._shape and not self._unequal:
            self.column[self.taken] = leaf
            self.taken += 1
            return True
        if not self.fits(leaf.shape):
            return False
        self._keep(leaf)
        return True

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a row may have this shape."""
        if self._spec is None or shape == self._shape:
            return True
        promised = self._spec.shape
        return len(promised) == len(shape) and all(a is None or a == b for a, b in zip(promised, shape, strict=True))

    def put_checked(self, leaf: Any) -> None:
        if not self._put(leaf):
            self._keep(leaf)

    def _keep(self, leaf: Any) -> None:
        if not self._unequal:
            self.found, self._unequal, self.way = list(self.column[: self.taken]), True, "copy"
        self.found.append(own(leaf))
        self.taken += 1

    def cut(self, rows: int) -> None:
        self.taken = rows
        del self.found[rows:]

    def made(self) -> Column:
        return column_of(self.found) if self._unequal else self.column[: self.taken]

    def clear(self) -> None:
        self.found, self.column = [], self._nothing

    def raw(self) -> Iterable[Any]:
        return self.found if self._unequal else self.column[: self.taken]


def _leaf_like(raw: Any, leaf: Any, spec: LeafSpec | None) -> Leaf:
    """A `Leaf` for values like `raw`, which was converted to `leaf`."""
    kind = type(raw)
    dtype = leaf.dtype if isinstance(leaf, (np.ndarray, np.generic)) else np.dtype(object)
    if kind in (int, float) and dtype.kind in "iuf":
        limits = bounds(kind, dtype)
        if limits is not None:
            return Numbers(kind, dtype, *limits)
    elif kind is bool and dtype == np.bool_:
        return Numbers(kind, dtype, False, True)
    elif leaf is raw and (kind in (str, bytes) or (isinstance(raw, np.generic) and dtype.kind in "biufc")):
        return Values(kind, dtype)
    elif leaf is raw and kind is np.ndarray and dtype.kind in "biufc":
        return Arrays(dtype, raw.shape, spec)
    return Values(Unlike, dtype)  # no row is of this type, so each is checked


class Collector:
    """Collects rows like one that was checked, as a block.

    Args:
        value: the row as it came.
        leaves: its leaves, checked and converted.
        structure: its structure.
        specs: what was promised of the leaves.
        check: checks a row that differs from it, and gives its leaves.

    Attributes:
        row: how many rows of several leaves were taken.
    """

    def __init__(
        self, value: Any, leaves: Sequence[Any], structure: Structure, specs: Sequence[LeafSpec] | None, check: Check
    ) -> None:
        raw = structure.flatten_like(value)
        promised: Sequence[LeafSpec | None] = [None] * len(raw) if specs is None else specs
        self._leaves = [_leaf_like(*each) for each in zip(raw, leaves, promised, strict=True)]
        largest = max((leaf.bytes_of_row for leaf in self._leaves), default=1)
        self._most = max(1, min(_MOST_ROWS, _MOST_BYTES // largest))
        self._only = self._leaves[0] if structure.kind == "leaf" else None
        self._structure = structure
        self._given_by_user = given_by_users(structure)
        self._check = check
        self.row = 0

    def begin(self, rows: int, *, gathers: bool = False) -> int:
        """Begin a block of at most this many rows; returns how many it may have: fewer if they are huge.

        Args:
            gathers: whether the rows can be taken again: `block` may raise `Unlike` then.
        """
        if rows > self._most:
            rows = self._most
        self.row = 0
        for leaf in self._leaves:
            leaf.begin(rows, gathers=gathers)
        return rows

    def one(self, value: Any) -> Block:
        """A block of a single row, which one variable of the caller refers to; no other row may be under way.

        Raises:
            Exception: what checking it has raised.
        """
        if self._only is not None and type(value) is not ndarray:
            leaf = self._only.one(value)
            if leaf is not None:
                return Block.of_row((leaf,), self._structure)
        with suppress(ElementError):  # of another structure, which the check tells better
            leaves = self._structure.flatten_like(value)
            for number, leaf in enumerate(self._leaves):
                leaves[number] = leaf.one(leaves[number])
            if not any(leaf is None for leaf in leaves):
                leaves = owned(value, leaves, flat=self._structure.is_flat, variables=2)
                return Block.of_row(leaves, self._structure)
        return Block.of_leaves([self._check(value)], self._structure)

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return self.row if self._only is None else self._only.taken

    def take(self, values: Iterator[Any]) -> None:
        """Take rows. If getting or checking a row raises an exception, the rows before it were taken."""
        if self._only is not None:
            self._only.take(values, self._check)
            return
        try:
            while (value := self._take_alike(values)) is not ALL_ALIKE:
                checked = self._check(value)
                self._cut()
                for leaf, part in zip(self._leaves, checked, strict=True):
                    leaf.put_checked(part)
                self.row += 1
        finally:
            self._cut()

    def _take_alike(self, values: Iterator[Any]) -> Any:
        """Take rows up to one that must be checked, which this returns."""
        loop = take_loop(self._structure.form, tuple([leaf.way for leaf in self._leaves]))
        return loop(self, self._leaves, self._given_by_user, values)

    def _cut(self) -> None:
        """Tell each leaf how many rows were taken of all."""
        for leaf in self._leaves:
            leaf.cut(self.row)

    def raw(self) -> Iterable[Any]:
        """The rows that were taken, if `block` has raised `Unlike`."""
        rows = [leaf.raw() for leaf in self._leaves]
        return rows[0] if self._only is not None else map(self._structure.unflatten, zip(*rows, strict=True))

    def block(self) -> Block | None:
        """The rows that were taken, whose memory is theirs alone then; None if there are none.

        Raises:
            Unlike: one of those that were gathered must be checked.
        """
        rows = self.rows
        if rows == 0:
            for leaf in self._leaves:
                leaf.begin(0, gathers=False)
            return None
        if self._only is not None:
            columns: tuple[Column, ...] = (self._only.made(),)
            self._only.clear()
        else:
            columns = tuple([leaf.made() for leaf in self._leaves])
            for leaf in self._leaves:
                leaf.clear()
        return Block(columns, self._structure, rows)
