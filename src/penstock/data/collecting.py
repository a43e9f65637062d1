"""Rows that come one by one, put together as columns.

The caller checks the first row in full. For each of its leaves a `Leaf` remembers what later rows may hold without
another check: values of the same type that fit the dtype, or arrays of the same dtype and shape. Only rows that differ
are checked again.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from sys import getrefcount
from typing import Any, Final

import numpy as np
from numpy import ndarray

from penstock.data.block import Block, Column, column_of, object_column, own
from penstock.data.functions.output import bounds
from penstock.runtime.memory import empty
from penstock.spec import LeafSpec
from penstock.structure import Structure, quick_leaves

Check = Callable[[Any], list[Any]]
"""Gives the leaves of a row that differs from the first, or raises an error that says what is wrong with it."""

_SMALL: Final = (1 << 30) - 1
"""Integers up to this size are one digit to Python, which compares such in a fifth of the time of others."""
_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 30


class Unlike(Exception):
    """A value that differs from the first, and must be checked."""


def _references_to_an_argument() -> int:
    """What `getrefcount` returns for an argument that only the caller's variable refers to."""

    def references(leaf: Any) -> int:
        return getrefcount(leaf)

    value = np.empty(1)
    return references(value)


def _references_in_a_loop() -> int:
    """What `getrefcount` returns for what only the variable of a loop refers to."""
    return next(getrefcount(value) for value in map(np.empty, (1,)))


_TO_AN_ARGUMENT: Final = _references_to_an_argument()
_IN_A_LOOP: Final = _references_in_a_loop()


class Leaf(ABC):
    """Collects the rows of one leaf.

    Attributes:
        put: takes a row; returns False, and takes nothing, if the row must be checked.
        alone: the row as it is in an element; raises `Unlike` if it must be checked.
        bytes_of_row: how many bytes a row needs.
        taken: how many rows were taken.
    """

    put: Callable[[Any], bool]
    alone: Callable[[Any], Any]
    bytes_of_row: int = 8
    taken: int

    @abstractmethod
    def begin(self, rows: int) -> None:
        """Begin a column of at most this many rows."""

    @abstractmethod
    def take(self, values: Iterable[Any], check: Check) -> None:
        """Take all rows; `check` checks those that are unlike the first."""

    def gather(self, values: Iterable[Any], check: Check) -> None:
        """As `take`, where it costs less to look at numbers when all were taken: `column` may raise `Unlike` then."""
        self.take(values, check)

    @abstractmethod
    def elements(self, values: Iterable[Any], checked: Callable[[Any], Any]) -> Iterator[Any]:
        """As `alone` for each row; `checked` makes the element of one that must be checked."""

    @abstractmethod
    def put_checked(self, leaf: Any) -> None:
        """Take a row that was checked."""

    @abstractmethod
    def cut(self, rows: int) -> None:
        """Keep the first rows only."""

    @abstractmethod
    def column(self, rows: int) -> Column:
        """The column of all rows that were taken, which nothing here refers to any more.

        Raises:
            Unlike: a row that was gathered must be checked. All rows are still here.
        """

    def raw(self) -> list[Any]:
        """The rows that were gathered and could not become a column; they can be taken again."""
        raise NotImplementedError


class Values(Leaf):
    """Immutable values of one type: NumPy's scalars, strings and bytes."""

    def __init__(self, kind: type, dtype: np.dtype[Any]) -> None:
        self._kind = kind
        self._dtype = dtype
        self._rows: list[Any] = []
        self._mixed = False
        self.put, self.alone = self._ways()

    def _ways(self) -> tuple[Callable[[Any], bool], Callable[[Any], Any]]:
        """The functions `put` and `alone`: closures instead of methods, because they run for every row."""
        append, kind = self._rows.append, self._kind

        def put(leaf: Any) -> bool:
            if type(leaf) is not kind:
                return False
            append(leaf)
            return True

        def alone(leaf: Any) -> Any:
            if type(leaf) is not kind:
                raise Unlike
            return leaf

        return put, alone

    def begin(self, rows: int) -> None:
        self._rows.clear()
        self._mixed = False

    def take(self, values: Iterable[Any], check: Check) -> None:
        rows, kind = self._rows, self._kind
        # This reads no further than the first value of another type, and keeps what came before an exception.
        for found, run in groupby(values, type):
            if found is kind:
                rows.extend(run)
            else:
                for value in run:
                    self.put_checked(check(value)[0])

    def elements(self, values: Iterable[Any], checked: Callable[[Any], Any]) -> Iterator[Any]:
        kind = self._kind
        for value in values:
            yield value if type(value) is kind else checked(value)

    @property
    def taken(self) -> int:  # type: ignore[override]  # it follows from the rows
        return len(self._rows)

    def put_checked(self, leaf: Any) -> None:
        self._mixed = True
        self._rows.append(own(leaf))

    def cut(self, rows: int) -> None:
        del self._rows[rows:]

    def column(self, rows: int) -> Column:
        column = self._column(rows)
        self._rows.clear()
        return column

    def _column(self, rows: int) -> Column:
        if self._mixed:
            return column_of([self._leaf(value) for value in self._rows])
        if self._dtype.kind == "O":
            return object_column(self._rows)
        if issubclass(self._kind, np.generic):  # they are buffers, which are joined in half the time
            return np.frombuffer(bytearray().join(self._rows), self._dtype)
        return np.fromiter(self._rows, self._dtype, rows)

    def raw(self) -> list[Any]:
        return self._rows.copy()

    def _leaf(self, value: Any) -> Any:
        return value


class Numbers(Values):
    """Python's numbers between two bounds, within which converting them together gives what converting each would."""

    def __init__(self, kind: type, dtype: np.dtype[Any], low: Any, high: Any) -> None:
        self._low = low
        self._high = high
        self._gathered = False
        super().__init__(kind, dtype)

    def _ways(self) -> tuple[Callable[[Any], bool], Callable[[Any], Any]]:
        append, kind, low, high = self._rows.append, self._kind, self._low, self._high
        place = np.empty((), self._dtype)

        def put(leaf: Any) -> bool:
            if type(leaf) is kind and low <= leaf <= high:
                append(leaf)
                return True
            return False

        def alone(leaf: Any) -> Any:
            if type(leaf) is kind and low <= leaf <= high:
                place[()] = leaf
                return place[()]  # a scalar; the dtype's own type takes twice as long to make one
            raise Unlike

        return put, alone

    def _compared(self) -> tuple[Any, Any]:
        """Bounds with which Python compares quickly; beyond them a value may still be valid."""
        return (max(self._low, -_SMALL), min(self._high, _SMALL)) if self._kind is int else (self._low, self._high)

    def elements(self, values: Iterable[Any], checked: Callable[[Any], Any]) -> Iterator[Any]:
        kind, (low, high), alone = self._kind, self._compared(), self.alone
        place = np.empty((), self._dtype)
        for value in values:
            if type(value) is kind and value <= high and value >= low:
                place[()] = value  # as in `alone`, whose call would cost as much again
                yield place[()]
                continue
            try:
                element = alone(value)
            except Unlike:
                element = checked(value)
            yield element

    def take(self, values: Iterable[Any], check: Check) -> None:
        append, kind, (low, high), put = self._rows.append, self._kind, self._compared(), self.put
        for value in values:
            if type(value) is kind and value <= high and value >= low:  # `low <= value <= high` takes twice as long
                append(value)
            elif not put(value):
                self.put_checked(check(value)[0])

    def begin(self, rows: int) -> None:
        super().begin(rows)
        self._gathered = False

    def gather(self, values: Iterable[Any], check: Check) -> None:
        if self._dtype.kind == "f" and self._kind is int:  # whether NumPy rounds them once, their column does not tell
            self.take(values, check)
        else:
            self._gathered = True
            super().take(values, check)

    def _column(self, rows: int) -> Column:
        if not self._gathered:
            return super()._column(rows)
        if self._mixed:
            if not all(type(value) is not self._kind or self._low <= value <= self._high for value in self._rows):
                raise Unlike
            return super()._column(rows)
        if self._kind is not float:
            try:
                return super()._column(rows)
            except OverflowError:
                raise Unlike from None
        exact = np.fromiter(self._rows, np.float64, rows)
        if not np.maximum.reduce(np.abs(exact)) <= self._high:  # NaN is not, either
            raise Unlike
        return exact.astype(self._dtype, copy=False)

    def _leaf(self, value: Any) -> Any:
        return self._dtype.type(value) if type(value) is self._kind else value


class Arrays(Leaf):
    """Arrays of one dtype. They are copied at once, because a generator may yield the same buffer again.

    Arrays of the first one's shape are copied straight into one array.

    Args:
        shape: of the first.
        spec: what was promised of their shapes; None if they may have any.
    """

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], spec: LeafSpec | None) -> None:
        self._dtype = dtype
        self._shape = shape
        self._spec = spec
        self._nothing = np.empty((0, *shape), dtype)
        self._stacked = self._nothing
        self.taken = 0
        self._rows: list[Any] = []
        self._unequal = False
        self.bytes_of_row = max(1, dtype.itemsize * math.prod(shape))
        self.put = self._put
        self.alone = self._alone_of()

    def begin(self, rows: int) -> None:
        self.taken = 0
        self._rows = []
        if not self._unequal:
            self._stacked = empty((rows, *self._shape), self._dtype)

    def take(self, values: Iterable[Any], check: Check) -> None:
        stacked, dtype, shape = self._stacked, self._dtype, self._shape
        for value in values:
            # Written out here as well, because a call for each row would cost as much as copying a small one.
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape and not self._unequal:
                stacked[self.taken] = value
                self.taken += 1
            elif not self._put(value):
                self.put_checked(check(value)[0])

    def elements(self, values: Iterable[Any], checked: Callable[[Any], Any]) -> Iterator[Any]:
        dtype, fits, any_shape = self._dtype, self._fits, self._spec is None
        shape = self._shape or None  # None: no row has it
        for value in values:
            if (
                type(value) is ndarray
                and value.dtype is dtype
                and ((any_shape and value.ndim) or value.shape == shape or (value.ndim and fits(value.shape)))
            ):
                # As in `alone`, whose call would cost more than its tests.
                yield value if value.base is None and getrefcount(value) == _IN_A_LOOP else value.copy()
            else:
                yield checked(value)

    def _put(self, leaf: Any) -> bool:
        if type(leaf) is not np.ndarray or leaf.dtype is not self._dtype:
            return False
        if leaf.shape == self._shape and not self._unequal:
            self._stacked[self.taken] = leaf
            self.taken += 1
            return True
        if not self._fits(leaf.shape):
            return False
        self.put_checked(leaf)
        return True

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self._spec is None or shape == self._shape:
            return True
        promised = self._spec.shape
        return len(promised) == len(shape) and all(a is None or a == b for a, b in zip(promised, shape, strict=True))

    def put_checked(self, leaf: Any) -> None:
        if not self._unequal:
            self._rows, self._unequal = list(self._stacked[: self.taken]), True
        self._rows.append(own(leaf))
        self.taken += 1

    def cut(self, rows: int) -> None:
        self.taken = rows
        del self._rows[rows:]

    def column(self, rows: int) -> Column:
        kept, stacked = self._rows, self._stacked
        self._rows, self._stacked = [], self._nothing
        return column_of(kept) if self._unequal else stacked[:rows]

    def _alone_of(self) -> Callable[[Any], Any]:
        """The function `alone`: a closure instead of a method, because it runs for every row."""
        dtype, fits = self._dtype, self._fits
        any_shape = self._spec is None

        def alone(leaf: Any) -> Any:
            # A row without axes is a scalar in an element.
            if type(leaf) is ndarray and leaf.dtype is dtype and leaf.ndim and (any_shape or fits(leaf.shape)):
                # Nobody else can change an array that nobody else refers to.
                return leaf if leaf.base is None and getrefcount(leaf) == _TO_AN_ARGUMENT else leaf.copy()
            raise Unlike

        return alone


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
        alone: a row as an element, which does not become part of the block; raises `Unlike` if it must be checked.
    """

    alone: Callable[[Any], Any]

    def __init__(
        self, value: Any, leaves: Sequence[Any], structure: Structure, specs: Sequence[LeafSpec] | None, check: Check
    ) -> None:
        raw = structure.flatten_like(value)
        promised: Sequence[LeafSpec | None] = [None] * len(raw) if specs is None else specs
        self._leaves = [_leaf_like(*each) for each in zip(raw, leaves, promised, strict=True)]
        largest = max((leaf.bytes_of_row for leaf in self._leaves), default=1)
        self._most = max(1, min(_MOST_ROWS, _MOST_BYTES // largest))
        only = self._leaves[0] if structure.kind == "leaf" else None
        self._only = only
        self._structure = structure
        self._check = check
        self._of_row = quick_leaves(structure)
        self._rows = 0
        self.alone = only.alone if only is not None else _row_alone(self._of_row, self._leaves, structure)

    def begin(self, rows: int) -> int:
        """Begin a block of at most this many rows; returns how many it may have: fewer if they are huge."""
        if rows > self._most:
            rows = self._most
        self._rows = 0
        for leaf in self._leaves:
            leaf.begin(rows)
        return rows

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return self._rows if self._only is None else self._only.taken

    def take(self, values: Iterable[Any]) -> None:
        """Take rows. If getting or checking a row raises an exception, the rows before it were taken."""
        if self._only is not None:
            self._only.take(values, self._check)
            return
        of_row, puts = self._of_row, [leaf.put for leaf in self._leaves]
        for value in values:
            found = of_row(value)
            if found is not None:
                for put, part in zip(puts, found):  # of equal length, and it runs per row
                    if not put(part):
                        break
                else:
                    self._rows += 1
                    continue
            self._put_checked(value)
            self._rows += 1

    def _put_checked(self, value: Any) -> None:
        for leaf in self._leaves:
            leaf.cut(self._rows)
        for leaf, part in zip(self._leaves, self._check(value), strict=True):
            leaf.put_checked(part)

    def gather(self, values: Iterable[Any]) -> None:
        """As `take`, of rows that can be taken again: `block` may raise `Unlike` then."""
        if self._only is not None:
            self._only.gather(values, self._check)
        else:
            self.take(values)

    def raw(self) -> list[Any]:
        """The rows that were gathered, if `block` has raised `Unlike`."""
        assert self._only is not None
        return self._only.raw()

    def block(self) -> Block | None:
        """The rows that were taken, whose memory is theirs alone then; None if there are none.

        Raises:
            Unlike: one of those that were gathered must be checked.
        """
        rows = self.rows
        if rows == 0:
            for leaf in self._leaves:
                leaf.begin(0)
            return None
        if self._only is not None:
            return Block((self._only.column(rows),), self._structure, rows)
        for leaf in self._leaves:
            leaf.cut(rows)
        return Block(tuple([leaf.column(rows) for leaf in self._leaves]), self._structure, rows)

    def elements(self, values: Iterable[Any]) -> Iterator[Any]:
        """Rows as elements, which do not become part of the block, each when it is asked for."""
        if self._only is not None:
            return self._only.elements(values, self.checked_alone)
        return self._elements(values)

    def _elements(self, values: Iterable[Any]) -> Iterator[Any]:
        alone = self.alone
        for value in values:
            try:
                element = alone(value)
            except Unlike:
                element = self.checked_alone(value)
            yield element

    def checked_alone(self, value: Any) -> Any:
        """As `alone`, after checking the row."""
        return Block.of_leaves([self._check(value)], self._structure).row(0)


def _row_alone(
    of_row: Callable[[Any], Sequence[Any] | None], leaves: Sequence[Leaf], structure: Structure
) -> Callable[[Any], Any]:
    """The function `Collector.alone` for rows of several leaves."""
    ways = [leaf.alone for leaf in leaves]
    together = tuple if structure.is_flat_tuple else structure.unflatten

    def alone(value: Any) -> Any:
        found = of_row(value)
        if found is None:
            raise Unlike
        return together([way(part) for way, part in zip(ways, found)])  # of equal length, and it runs per row

    return alone
