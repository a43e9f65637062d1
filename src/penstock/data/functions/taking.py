"""Takes a function's results one after the other, and writes them to their rows of an output block.

Values that nobody can change are collected for up to 1,024 rows, which become a column together. The type of each is
looked at before the next call, because that call may change what is no such value: an array without axes, say. Arrays
are copied at once. A result that is not like the one before it is looked at as the first was.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from sys import getrefcount
from typing import Any, Final

import numpy as np

from penstock.data.block import Column
from penstock.data.functions.alike import ALL_ALIKE, Unlike, given_by_users, take_loop
from penstock.data.functions.output import Failure, OutputBlock, Results, first_result
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures
from penstock.structure import LEAF

_PIECE_SECONDS: Final = 0.01
"""About how long calls run before it is checked whether their results are still wanted."""
_PIECE_ROWS: Final = 1024
"""This many collected results stay in the processor's cache; Python's garbage collector counts none of them."""
_UNCHANGING: Final = frozenset({int, float, complex, bool, str, bytes})


def fill(
    output: OutputBlock,
    results: Results,
    start: int,
    stop: int,
    first: Sequence[Any] = (),
) -> Failure | None:
    """Write rows start to stop; gives the failure at which it ended, if it did.

    Args:
        first: the results of the first of these rows, which are there already.
    """
    part = _part_of(output, start)
    piece = 1
    try:
        values = chain(first, results(start + len(first), stop))
        while part.row < stop:
            if output.unwanted:
                raise Closed
            until = min(part.row + piece, stop)
            begun = time.perf_counter()
            part.take(islice(values, until - part.row))
            if part.row < until:
                first_result(iter(()))
            if part.collected >= _PIECE_ROWS and (failure := part.settled()) is not None:
                return failure
            piece = _next_piece(piece, time.perf_counter() - begun)
    except failures() as error:
        return part.settled() or Failure(part.row, error)
    return part.settled()


def _next_piece(rows: int, seconds: float) -> int:
    """How many rows to take after a piece of so many rows that took so long."""
    if seconds > _PIECE_SECONDS:
        return max(1, rows // 2)
    return min(_PIECE_ROWS, (8 if seconds < _PIECE_SECONDS / 8 else 2) * rows)


def _part_of(output: OutputBlock, start: int) -> "_Part":
    """The way to take results of the output's layout."""
    structure, scalars = output.structure, output.scalars
    if structure == LEAF and not scalars[0]:
        return _Arrays(output, start)
    return _Leaves(output, start) if scalars else _Part(output, start)


class _Part:
    """Consecutive rows of an output block that one thread writes, here one by one.

    Attributes:
        row: the next one.
        collected: how many of those before it were only collected so far.
    """

    collected = 0

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


def _references_to_one_alone() -> int:
    """What `getrefcount` says of a result that only the variable of a loop refers to: Python's versions differ."""
    for value in map(np.empty, [1]):
        return getrefcount(value)
    raise AssertionError


_ALONE: Final = _references_to_one_alone()


class _Arrays(_Part):
    """Results of one leaf that are arrays: in one array, from the first on that has another shape each by itself."""

    def __init__(self, output: OutputBlock, start: int) -> None:
        super().__init__(output, start)
        self._entries: list[Any] | None = None

    def take(self, values: Iterator[Any]) -> None:
        output, column, row = self._output, self._output.columns[0], self.row
        kind, shape, dtype = np.ndarray, column.shape[1:], column.dtype
        entries = self._entries
        try:
            for value in values:
                if type(value) is not kind or value.dtype is not dtype:
                    output.put(row, value)
                elif entries is None and value.shape == shape:
                    column[row] = value
                else:
                    if entries is None:
                        entries = self._entries = output.entries(0)
                    # Nobody else can change an array that nobody else refers to.
                    entries[row] = value if value.base is None and getrefcount(value) == _ALONE else value.copy()
                row += 1
        finally:
            self.row = row


class _Leaf:
    """What is known of one leaf, as `take_loop` needs it.

    Attributes:
        kind: the type that results must have.
        found: what was collected.
        column: where arrays are written.
    """

    def __init__(self, scalar: bool, column: Column) -> None:
        self.kind: type = Unlike if scalar else np.ndarray
        self.found: list[Any] = []
        self.column = column


class _Leaves(_Part):
    """Results of one or several leaves: arrays are written at once, what nobody can change is collected.

    So long as leaves have the types of the result before, and arrays the shape and dtype of the first, a loop takes
    them without another look.
    """

    def __init__(self, output: OutputBlock, start: int) -> None:
        super().__init__(output, start)
        self._given_by_users = given_by_users(output.structure)
        ways = tuple(["value" if scalar else "array" for scalar in output.scalars])
        self._loop = take_loop(output.structure.form, ways)
        self._leaves = [_Leaf(*each) for each in zip(output.scalars, output.columns, strict=True)]
        self._scalars = [number for number, scalar in enumerate(output.scalars) if scalar]
        # The row at which what was collected begins.
        self._since = start

    @property
    def collected(self) -> int:  # type: ignore[override]  # it follows from the rows
        return self.row - self._since

    def take(self, values: Iterator[Any]) -> None:
        while (value := self._loop(self, self._leaves, self._given_by_users, values)) is not ALL_ALIKE:
            self._look(value)
            self.row += 1

    def _look(self, value: Any) -> None:
        """Write a result that must be looked at."""
        failure = self.settled()
        if failure is not None:
            self.row = failure.row
            raise failure.error
        leaves = self._output.put(self.row, value)
        self._since = self.row + 1
        for number in self._scalars:
            kind = type(leaves[number])
            self._leaves[number].kind = kind if _unchanging(kind) else Unlike

    def settled(self) -> Failure | None:
        if self._since == self.row:
            return None
        failed = []
        for number in self._scalars:
            found = self._leaves[number].found
            if not self._output.put_alike(self._since, number, found):
                failed.append(self._output.put_each(self._since, number, found))
            found.clear()
        self._since = self.row
        return min(filter(None, failed), key=lambda failure: failure.row, default=None)


def _unchanging(kind: type) -> bool:
    """Whether nobody can change values of a type."""
    return kind in _UNCHANGING or (issubclass(kind, np.generic) and kind is not np.void)
