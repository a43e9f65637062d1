"""The results of a function, put into the columns of one block.

The first result tells what may be taken of the others without a closer look: leaves of the same type, arrays of the
same dtype and shape. Arrays are copied at once, because a function may return one buffer again and again. Values that
nobody can change are collected, and become a column together.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any, Final, Protocol

import numpy as np

from penstock.data.block import Block, Column, column_of, object_column, own
from penstock.data.functions.layout import Layout, dtype_of_leaf
from penstock.data.functions.promise import Promise
from penstock.errors import ElementError, InvalidTypeError
from penstock.runtime.channel import Closed
from penstock.runtime.memory import empty
from penstock.runtime.threads import Threads, failures
from penstock.spec import alike, as_leaf, spec_of_leaf
from penstock.structure import LEAF, quick_leaves

_PIECE_SECONDS: Final = 0.01
"""About how long calls run before it is checked whether their results are still wanted."""
_PIECE_ROWS: Final = 256
"""This many collected results stay in the processor's cache, and do not start Python's garbage collector."""
_EXACT_IN_DOUBLES: Final = 1 << 53


class Results(Protocol):
    """Gives the results of rows start to stop, one by one; some write them to their rows of an output block."""

    def __call__(self, start: int, stop: int, output: "OutputBlock | None" = None) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Failure:
    """The row at which a function raised, and what."""

    row: int
    error: BaseException


def first_result(results: Iterator[Any]) -> Any:
    """The first of some results.

    Raises:
        InvalidTypeError: there is none: the function has raised StopIteration, which ends a loop in silence.
    """
    for value in results:
        return value
    raise InvalidTypeError("the function raised StopIteration: return a value for each element")


def bounds(kind: type, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Between which numbers of a type a dtype holds them, as NumPy rounds them; None where it does not."""
    if kind is int and dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if dtype.kind != "f" or dtype.itemsize not in (4, 8):
        return None
    largest = float(np.finfo(dtype).max) if kind is float else _EXACT_IN_DOUBLES
    return -largest, largest


def _references_to_one_alone() -> int:
    """What `getrefcount` says of a result that only the variable of a loop refers to: Python's versions differ."""
    for value in map(np.empty, [1]):
        return getrefcount(value)
    raise AssertionError


_ALONE: Final = _references_to_one_alone()


class OutputBlock:
    """The output block of one call, allocated for results of a known layout; threads fill disjoint rows."""

    def __init__(self, threads: Threads, layout: Layout, rows: int, promise: Promise | None) -> None:
        self._threads = threads
        self._layout = layout
        self._promise = promise
        self.structure = layout.structure
        self.columns = [empty((rows, *shape), dtype) for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)]
        # Results of another shape than the layout's, by row: their columns become ragged in the end.
        self.odd: list[dict[int, Any]] = [{} for _ in self.columns]

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return sum(column.nbytes for column in self.columns)

    def place(self, row: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Column | None:
        """Where an array of this row's result will stand; None where none of this shape and dtype is expected."""
        for column in self.columns:
            if column.shape[1:] == shape and column.dtype == dtype:
                place: Column = column[row]
                return place
        return None

    def fill(self, results: Results, start: int, stop: int) -> Failure | None:
        """Write rows start to stop; gives the failure at which it ended, if it did."""
        part = self._part(start)
        piece = 1
        try:
            while part.row < stop:
                if self._threads.stopped:
                    raise Closed
                until = min(part.row + piece, stop)
                begun = time.perf_counter()
                part.take(results(part.row, until, self))
                if part.row < until:
                    first_result(iter(()))
                failure = part.settled()
                if failure is not None:
                    return failure
                short = time.perf_counter() - begun < _PIECE_SECONDS
                piece = min(2 * piece, _PIECE_ROWS) if short else max(1, piece // 2)
        except failures() as error:
            return part.settled() or Failure(part.row, error)
        return None

    def _part(self, start: int) -> "_Part":
        scalars = self._layout.scalars
        if self.structure == LEAF:
            return _Values(self, start) if scalars[0] else _Arrays(self, start)
        if not self.structure.is_flat or not scalars:
            return _Part(self, start)
        if not all(scalars):
            return _Leaves(self, start, scalars)
        return _Tuples(self, start) if self.structure.is_flat_tuple else _Containers(self, start)

    def put(self, row: int, value: Any) -> None:
        """Write one result, whatever it looks like. What stands in its place already is not moved by NumPy.

        Raises:
            ElementError: it is not of the layout.
        """
        leaves = self.structure.flatten_like(value)
        leaves = [as_leaf(leaf) for leaf in leaves] if self._promise is None else self._promise.fit(leaves)
        for number, leaf in enumerate(leaves):
            self._put_leaf(row, number, leaf)

    def put_each(self, start: int, number: int, leaves: list[Any]) -> Failure | None:
        """Write one leaf of consecutive results; gives the first row whose leaf is not of the layout."""
        for row, leaf in enumerate(leaves, start):
            try:
                self._put_leaf(
                    row, number, as_leaf(leaf) if self._promise is None else self._promise.fit_leaf(number, leaf)
                )
            except failures() as error:
                return Failure(row, error)
        return None

    def _put_leaf(self, row: int, number: int, leaf: Any) -> None:
        column = self.columns[number]
        if not isinstance(leaf, (np.ndarray, np.generic)):
            if column.dtype != object:
                self._refuse(number, leaf)
            column[row] = leaf
        elif leaf.dtype == column.dtype and leaf.shape == column.shape[1:]:
            column[row] = leaf
        elif alike(leaf.dtype, column.dtype):
            self.odd[number][row] = own(leaf)
        else:
            self._refuse(number, leaf)

    def put_alike(self, start: int, number: int, values: Sequence[Any]) -> bool:
        """Write values of one type, if they become a column together as they do one by one; False if not."""
        column = self.columns[number]
        dtype, kind = column.dtype, type(values[0])
        if kind in (str, bytes) and dtype.kind == "O":
            column[start : start + len(values)] = object_column(values)
            return True
        if not self._becomes(values[0], dtype):
            return False
        if kind is int and dtype.kind == "f" and max(map(abs, values)) > _EXACT_IN_DOUBLES:
            return False
        stop = start + len(values)
        try:
            if kind not in (int, float):
                column[start:stop] = np.fromiter(values, dtype, stop - start)
            else:
                with np.errstate(over="raise"):
                    column[start:stop] = np.fromiter(values, dtype, stop - start)
        except (FloatingPointError, OverflowError):
            return False
        return True

    def _becomes(self, value: Any, dtype: np.dtype[Any]) -> bool:
        """Whether values of this one's type become numbers of the dtype."""
        kind = type(value)
        if self._promise is not None and kind in (int, float):
            return dtype.kind == "f" or (kind is int and dtype.kind in "iu")
        return dtype.kind in "biufc" and dtype_of_leaf(as_leaf(value)) == dtype

    def _refuse(self, number: int, leaf: Any) -> None:
        if self._promise is not None:
            raise self._promise.broken_by(number, leaf)
        path = self.structure.paths()[number]
        raise ElementError(
            f"the function returned {spec_of_leaf(leaf)}{' at ' + path if path else ''} after it had returned "
            f"{self._layout.dtypes[number]}; return one kind of element "
            "(object stands for strings, bytes and other Python objects)"
        )

    def finished(self, failure: Failure | None, rows: int) -> tuple[Block | None, Failure | None]:
        """The block up to the failure, if there was one; None if nothing came before it."""
        done = rows if failure is None else failure.row
        return (self._block(done) if done else None), failure

    def _block(self, rows: int) -> Block:
        columns = [
            self._with_odd(column, odd, rows) if odd and rows else column[:rows]
            for column, odd in zip(self.columns, self.odd, strict=True)
        ]
        return Block(tuple(columns), self.structure, rows)

    @staticmethod
    def _with_odd(column: Column, odd: dict[int, Any], rows: int) -> Column:
        if len(odd) >= rows or column.dtype.kind in "US":  # they may agree among each other
            return column_of([odd[row] if row in odd else column[row] for row in range(rows)])
        return object_column([odd[row] if row in odd else column[row, ...] for row in range(rows)])


class _Part:
    """Consecutive rows of an output block that one thread writes, here one by one.

    Attributes:
        row: the next one.
    """

    def __init__(self, output: OutputBlock, start: int) -> None:
        self._output = output
        self.row = start

    def take(self, values: Iterator[Any]) -> None:
        """Take results. What getting one raises ends it, and what is wrong with one: those before it were taken."""
        for value in values:
            self._output.put(self.row, value)
            self.row += 1

    def settled(self) -> Failure | None:
        """Write what was only collected; gives the first row that is not of the layout."""
        return None


class _Collected(_Part, ABC):
    """Results that nobody can change: they are looked at when all are there."""

    def __init__(self, output: OutputBlock, start: int) -> None:
        super().__init__(output, start)
        self._start = start
        self._values: list[Any] = []

    def take(self, values: Iterator[Any]) -> None:
        try:
            self._values.extend(values)  # keeps what came before an exception
        finally:
            self.row = self._start + len(self._values)

    def settled(self) -> Failure | None:
        start, values = self._start, self._values
        self._start, self._values = self.row, []
        if not values or self._written(start, values):
            return None
        for row, value in enumerate(values, start):
            try:
                self._output.put(row, self._whole(value))
            except failures() as error:
                return Failure(row, error)
        return None

    def _whole(self, value: Any) -> Any:
        """A result as it came."""
        return value

    @abstractmethod
    def _written(self, start: int, values: list[Any]) -> bool:
        """Write results that begin at row `start`, if they are alike; False if they must be written one by one."""


class _Values(_Collected):
    """Results of one leaf."""

    def _written(self, start: int, values: list[Any]) -> bool:
        return len(set(map(type, values))) == 1 and self._output.put_alike(start, 0, values)


class _Tuples(_Collected):
    """Tuples of such values."""

    def _written(self, start: int, values: list[Any]) -> bool:
        if set(map(type, values)) != {tuple}:
            return False
        try:
            columns = list(zip(*values, strict=True))
        except ValueError:  # they differ in length
            return False
        if len(columns) != len(self._output.columns) or any(len(set(map(type, column))) != 1 for column in columns):
            return False
        return all(self._output.put_alike(start, number, column) for number, column in enumerate(columns))


class _Containers(_Tuples):
    """Dictionaries, named tuples and dataclasses of such values, of which the values are collected."""

    def __init__(self, output: OutputBlock, start: int) -> None:
        super().__init__(output, start)
        self._structure = output.structure
        self._apart = quick_leaves(output.structure)

    def take(self, values: Iterator[Any]) -> None:
        apart, append = self._apart, self._values.append
        try:
            for value in values:
                leaves = apart(value)
                append(tuple(self._structure.flatten_like(value)) if leaves is None else leaves)
        finally:
            self.row = self._start + len(self._values)

    def _whole(self, value: Any) -> Any:
        return self._structure.unflatten(value)


class _Arrays(_Part):
    """Results of one leaf that are arrays."""

    def take(self, values: Iterator[Any]) -> None:
        output, column, odd, row = self._output, self._output.columns[0], self._output.odd[0], self.row
        shape, dtype = column.shape[1:], column.dtype
        try:
            for value in values:
                if type(value) is np.ndarray and value.dtype is dtype:
                    if value.shape == shape:
                        column[row] = value
                    else:
                        # Nobody else can change an array that nobody else refers to.
                        odd[row] = value if value.base is None and getrefcount(value) == _ALONE else value.copy()
                else:
                    output.put(row, value)
                row += 1
        finally:
            self.row = row


class _Leaves(_Part):
    """Results of several leaves: arrays are written at once, what nobody can change is collected."""

    def __init__(self, output: OutputBlock, start: int, scalars: tuple[bool, ...]) -> None:
        super().__init__(output, start)
        self._apart = quick_leaves(output.structure)
        self._arrays = [
            (number, column, column.shape[1:], column.dtype)
            for number, (column, scalar) in enumerate(zip(output.columns, scalars, strict=True))
            if not scalar
        ]
        # Of each other leaf its number, the type of those that were collected, and these, which begin at row `_since`.
        self._scalars: list[tuple[int, type, list[Any]]] = [
            (number, _Unlike, []) for number, scalar in enumerate(scalars) if scalar
        ]
        self._since = start

    def take(self, values: Iterator[Any]) -> None:
        while (value := self._take_alike(values)) is not _Unlike:
            self._look(value)
            self.row += 1

    def _take_alike(self, values: Iterator[Any]) -> Any:
        """Take results that are like the one before; gives the first that is not, `_Unlike` if all are."""
        apart, arrays, row = self._apart, self._arrays, self.row
        scalars = [(number, kind, found.append) for number, kind, found in self._scalars]
        try:
            for value in values:
                leaves = apart(value)
                if leaves is None:
                    return value
                for number, kind, append in scalars:
                    leaf = leaves[number]
                    if type(leaf) is not kind:
                        return value
                    append(leaf)
                for number, column, shape, dtype in arrays:
                    leaf = leaves[number]
                    if type(leaf) is not np.ndarray or leaf.dtype is not dtype or leaf.shape != shape:
                        return value
                    column[row] = leaf
                row += 1
        finally:
            self.row = row
        return _Unlike

    def _look(self, value: Any) -> None:
        """Write a result that must be looked at."""
        failure = self.settled()
        if failure is not None:
            self.row = failure.row
            raise failure.error
        self._output.put(self.row, value)
        leaves = self._apart(value)
        if leaves is not None:
            self._scalars = [(number, type(leaves[number]), []) for number, *_ in self._scalars]
        self._since = self.row + 1

    def settled(self) -> Failure | None:
        failed = []
        for number, _, found in self._scalars:
            del found[self.row - self._since :]  # of a result that was not taken
            if found and not self._output.put_alike(self._since, number, found):
                failed.append(self._output.put_each(self._since, number, found))
            found.clear()
        self._since = self.row
        return min(filter(None, failed), key=lambda failure: failure.row, default=None)


class _Unlike:
    """The type of no result."""
