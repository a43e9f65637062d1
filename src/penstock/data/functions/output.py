"""The columns of one block, into which the results of a function are written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import is_
from typing import Any, Final

import numpy as np

from penstock.data.block import Block, Column, column_of, object_column, own
from penstock.data.functions.layout import KINDS, Layout, dtype_of_leaf
from penstock.data.functions.output_signature import Promise
from penstock.errors import ElementError, InvalidTypeError
from penstock.runtime.memory import empty
from penstock.runtime.threads import Threads, failures
from penstock.spec import alike, as_leaf, of_rows_like, spec_of_leaf

_EXACT_IN_DOUBLES: Final = 1 << 53


Results = Callable[[int, int], Iterator[Any]]
"""Gives the results of rows start to stop, one by one."""


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
    raise no_result()


def no_result() -> InvalidTypeError:
    """The error of a function that raised StopIteration in place of a result."""
    return InvalidTypeError("the function raised StopIteration: return a value for each element")


def bounds(kind: type, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Between which numbers of a type a dtype holds them, as NumPy rounds them; None where it does not."""
    if kind is int and dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if dtype.kind != "f" or dtype.itemsize not in (4, 8):
        return None
    largest = float(np.finfo(dtype).max) if kind is float else _EXACT_IN_DOUBLES
    return -largest, largest


class OutputBlock:
    """The output block of one call, allocated for results of a known layout; threads fill disjoint rows."""

    def __init__(self, threads: Threads, layout: Layout, rows: int, promise: Promise | None) -> None:
        self._threads = threads
        self._layout = layout
        self._promise = promise
        self._rows = rows
        self.structure = layout.structure
        self.scalars = layout.scalars
        self.columns = [empty((rows, *shape), dtype) for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)]
        # Of the leaves that have results of another shape than the layout's, an entry for each row, None for those that
        # are in their column: that becomes ragged in the end.
        self._entries: dict[int, list[Any]] = {}

    @property
    def unwanted(self) -> bool:
        """Whether nobody needs it any more."""
        return self._threads.stopped

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return sum(column.nbytes for column in self.columns)

    def entries(self, number: int) -> list[Any]:
        """What holds the results of a leaf whose shapes differ, by row; who writes one owns its memory."""
        found = self._entries.get(number)
        return self._entries.setdefault(number, [None] * self._rows) if found is None else found

    def put(self, row: int, value: Any) -> list[Any]:
        """Write one result, whatever it looks like. What stands in its place already is not moved by NumPy.

        Returns:
            its leaves, as they came.

        Raises:
            ElementError: it is not of the layout.
        """
        came = self.structure.flatten_like(value)
        leaves = [as_leaf(leaf) for leaf in came] if self._promise is None else self._promise.fit(came)
        for number, leaf in enumerate(leaves):
            self._put_leaf(row, number, leaf)
        return came

    def put_each(self, start: int, number: int, leaves: Sequence[Any]) -> Failure | None:
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
        leaf = of_rows_like(leaf, column.dtype, column.shape[1:])
        if not isinstance(leaf, (np.ndarray, np.generic)):
            if column.dtype != object:
                self._refuse(number, leaf)
            column[row] = leaf
        elif leaf.dtype == column.dtype and leaf.shape == column.shape[1:]:
            column[row, ...] = leaf  # of an array of objects without axes, the object
        elif alike(leaf.dtype, column.dtype):
            self.entries(number)[row] = own(leaf)
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
        if issubclass(kind, np.generic):
            column[start:stop] = np.frombuffer(b"".join(values), dtype)
            return True
        try:
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
        if dtype.kind not in "biufc":
            return False
        try:
            return dtype_of_leaf(as_leaf(value)) == dtype
        except (ElementError, OverflowError):  # this very value has an error, which comes at its row
            return False

    def _refuse(self, number: int, leaf: Any) -> None:
        if self._promise is not None:
            raise self._promise.broken_by(number, leaf)
        path = self.structure.paths()[number]
        raise ElementError(
            f"the function returned {spec_of_leaf(leaf)}{' at ' + path if path else ''} after it had returned "
            f"{self._layout.dtypes[number]}; return one kind of element "
            f"({KINDS})"
        )

    def finished(self, failure: Failure | None, rows: int) -> tuple[Block | None, Failure | None]:
        """The block up to the failure, if there was one; None if nothing came before it."""
        done = rows if failure is None else failure.row
        return (self._block(done) if done else None), failure

    def _block(self, rows: int) -> Block:
        columns = [
            _ragged(self._entries[number], column, rows) if number in self._entries else column[:rows]
            for number, column in enumerate(self.columns)
        ]
        return Block(tuple(columns), self.structure, rows)


def _ragged(entries: list[Any], column: Column, rows: int) -> Column:
    """A column of results of several shapes; those without an entry are in `column`."""
    rest = list(compress(range(rows), map(is_, entries, repeat(None))))
    if len(rest) == rows:  # those of other shapes came after a failure
        return column[:rows]
    entries = entries[:rows]
    for row in rest:
        entries[row] = column[row, ...]
    if not rest or column.dtype.kind in "US":  # they may agree among each other
        return column_of(entries)
    return object_column(entries)
