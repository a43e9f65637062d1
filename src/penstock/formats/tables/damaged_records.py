"""Records that are decoded together, without those that are damaged: these are found first, by few calls of Arrow."""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError

DAMAGE: Final = (pa.ArrowException, InvalidArgumentError, InvalidTypeError, ValueError)
"""The errors of damaged records."""
_FEW: Final = 64
"""Where many records are damaged, no fewer than these are tried together as long as Arrow's errors name the record."""
_ROW: Final = re.compile(r"(Row #|in row )(\d+)")
"""The record in an error of Arrow's: those of CSV are counted from 1, those of JSON from 0."""


class WithoutDamaged:
    """The rows of records but for damaged ones.

    Args:
        table: decodes the records of these ranges, or raises the error of one of them.
        rows: makes rows of a table, or raises the error of one of them.

    Attributes:
        damaged: the error of each damaged record.
        order: their numbers, the lowest first.
    """

    def __init__(self, table: Callable[[Sequence[range]], pa.Table], rows: Callable[[pa.Table], Any]) -> None:
        self.damaged: dict[int, Exception] = {}
        self.order: list[int] = []
        self._table = table
        self._rows = rows

    def note(self, record: int, error: Exception) -> None:
        """Note that a record is damaged."""
        self.damaged[record] = error
        insort(self.order, record)

    def tables(self, records: range) -> Iterator[pa.Table]:
        """Tables of all records that are not damaged, in order."""
        start, most = records.start, len(records)
        while start < records.stop:
            stop = min(start + most, records.stop)
            runs = self._runs(start, stop)
            try:
                found = self._table(runs) if runs else None
            except DAMAGE as error:
                if stop - start > 1 and self._is_named(runs, error):
                    most = max(_FEW, most // 2)
                elif stop - start > 1:
                    most = (stop - start) // 2
                else:
                    self.note(start, error)
                continue
            if found is not None:
                yield from self._checked(found, [record for run in runs for record in run])
            start, most = stop, 2 * most

    def _runs(self, start: int, stop: int) -> list[range]:
        """The records of a range that are not known to be damaged."""
        cuts = self.order[bisect_left(self.order, start) : bisect_left(self.order, stop)]
        return [range(a + 1, b) for a, b in pairwise([start - 1, *cuts, stop]) if a + 1 < b]

    def _is_named(self, runs: Sequence[range], error: Exception) -> bool:
        """True if the error names a record that is damaged, by another call with it alone; it is then noted."""
        if isinstance(error, ElementError) and error.positions:
            place = error.positions[0]
        else:
            found = _ROW.search(str(error))
            place = int(found[2]) - (found[1] == "Row #") if found else -1
        for run in runs:
            if 0 <= place < len(run):
                try:
                    self._table([run[place : place + 1]])
                except DAMAGE as alone:
                    self.note(run[place], alone)
                    return True
            place -= len(run)
        return False

    def _checked(self, table: pa.Table, records: Sequence[int]) -> Iterator[pa.Table]:
        """The table in parts without records whose values make no rows, such as nulls."""
        try:
            self._rows(table)
            yield table
        except DAMAGE as error:
            if len(records) == 1:
                self.note(records[0], error)
                return
            middle = len(records) // 2
            yield from self._checked(table.slice(0, middle), records[:middle])
            yield from self._checked(table.slice(middle), records[middle:])
