"""Rows of many small files in one place: each file is decoded once, instead of once for each batch with a row of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.formats.decoded_rows import CACHE_BYTES, DecodedRows, bytes_of
from penstock.structure import Structure

_FEWEST_FILES: Final = 16
_LARGEST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = CACHE_BYTES // 2
"""The size of the rows of all files, in the files and when they are decoded."""
_KEY: Final = "", 0
_ENTRIES: Final = frozenset((str, bytes, np.ndarray))
"""Objects that many may hold, of which arrays are handed out read-only."""

Positions = npt.NDArray[np.int64]


@dataclass
class _Rows:
    """The rows of all files, as far as they were asked for."""

    columns: list[npt.NDArray[Any]]
    structure: Structure
    has: npt.NDArray[np.bool_]
    nbytes: int = 0


class GatheredRows:
    """The rows of files, one file after the other.

    Args:
        read: reads rows of a file, as columns and the structure of a row.
        names: the files.
        starts: the first row of each file that is one of these.
        ends: the number of rows up to the end of each file.
        sizes: the bytes of each file.
    """

    def __init__(
        self,
        read: Callable[[str, range], tuple[Sequence[Any], Structure]],
        names: Sequence[str],
        starts: Positions,
        ends: Positions,
        sizes: Positions,
    ) -> None:
        self._read = read
        self._names, self._starts, self._ends = names, starts, ends
        self._kept: DecodedRows[_Rows] = DecodedRows()
        self._alone = np.zeros(len(names), bool)
        """The files with damage, whose rows are read by themselves."""
        self.is_possible = bool(
            len(names) > _FEWEST_FILES
            and 0 <= sizes.min() <= sizes.max() <= _LARGEST_BYTES
            and sizes.sum() <= _MOST_BYTES
        )

    def read(self, positions: Positions, numbers: Positions) -> tuple[list[npt.NDArray[Any]], Structure] | None:
        """Copies of the rows at some positions, given the number of the file of each; None if they are not gathered."""
        rows = self._kept.get(_KEY) or self._begun(int(numbers[0]))
        if rows is None or self._alone[numbers].any():
            return None
        for number in np.unique(numbers[~rows.has[numbers]]).tolist():
            if not self._add(rows, number):
                return None
        return [column.take(positions, axis=0) for column in rows.columns], rows.structure

    def _begun(self, number: int) -> _Rows | None:
        """Room for all rows, if those of a file show that they are not too many; once, as others may need the room."""
        if not self.is_possible or (found := self._rows_of(number)) is None:
            return None
        self.is_possible = False
        columns, structure = found
        count = int(self._ends[-1])
        nbytes = bytes_of(columns) * count // max(1, len(columns[0]))
        if nbytes > _MOST_BYTES:
            return None
        room = [np.empty((count, *column.shape[1:]), column.dtype) for column in columns]
        rows = _Rows(room, structure, np.zeros(len(self._names), bool))
        self._kept.put({_KEY: rows}, nbytes)
        return rows

    def _rows_of(self, number: int) -> tuple[Sequence[Any], Structure] | None:
        """The rows of a file; None if it has damage, or if others must not see them."""
        start, stop = self._bounds(number)
        first = int(self._starts[number])
        try:
            columns, structure = self._read(self._names[number], range(first, first + stop - start))
        except PenstockError:  # raised again when its rows are read alone
            self._alone[number] = True
            return None
        if all(map(_may_be_shared, columns)):
            return columns, structure
        self._alone[number] = True
        return None

    def _add(self, rows: _Rows, number: int) -> bool:
        """Add the rows of a file; False if they have no place among the others."""
        found = self._rows_of(number)
        if found is None:
            return False
        start, stop = self._bounds(number)
        for column, own in zip(rows.columns, found[0], strict=True):
            if (len(own), own.shape[1:], own.dtype) != (stop - start, column.shape[1:], column.dtype):
                self._alone[number] = True
                return False
            column[start:stop] = own
        rows.has[number] = True
        rows.nbytes += bytes_of(found[0])
        if rows.nbytes > 2 * _MOST_BYTES:  # the first file had smaller rows
            self._kept.discard(_KEY)
        return True

    def _bounds(self, number: int) -> tuple[int, int]:
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])


def _may_be_shared(column: Any) -> bool:
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return isinstance(column, np.ndarray)
    kinds = set(map(type, column.flat))
    return kinds <= _ENTRIES and not (np.ndarray in kinds and any(entry.dtype == object for entry in column.flat))
