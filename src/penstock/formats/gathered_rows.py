"""Rows of many small files in one place: each file is decoded once, instead of once for each batch with a row of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.formats.decoded_rows import CACHE_BYTES, DecodedRows, bytes_of
from penstock.formats.file_format import FileFormat
from penstock.structure import Structure

_FEWEST_FILES: Final = 16
_LARGEST_BYTES: Final = 128 << 10
"""A larger file takes longer to decode than some hundred rows of it to be read one by one."""
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
        format: of the files.
        names: the files.
        starts: the first row of each file that is one of these.
        ends: the number of rows up to the end of each file.
        sizes: the bytes of each file.
    """

    def __init__(
        self,
        format: FileFormat,
        names: Sequence[str],
        starts: Positions,
        ends: Positions,
        sizes: Positions,
    ) -> None:
        self._format = format
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
        missing = np.unique(numbers[~rows.has[numbers]])
        if len(missing) and not (len(missing) > 1 and self._add(rows, missing, self._together(missing))):
            for number in missing.tolist():
                if not self._add(rows, np.array([number]), self._rows_of(number)):
                    self._alone[number] = True
                    return None
        return [column.take(positions, axis=0) for column in rows.columns], rows.structure

    def _begun(self, number: int) -> _Rows | None:
        """Room for all rows, if those of a file show that they are not too many; once, as others may need the room."""
        if not self.is_possible or (found := self._rows_of(number)) is None:
            return None
        self.is_possible = False
        columns, structure = found
        if not all(map(_may_be_shared, columns)):
            return None
        count = int(self._ends[-1])
        nbytes = bytes_of(columns) * count // max(1, len(columns[0]))
        if nbytes > _MOST_BYTES:
            return None
        room = [np.empty((count, *column.shape[1:]), column.dtype) for column in columns]
        rows = _Rows(room, structure, np.zeros(len(self._names), bool))
        self._kept.put({_KEY: rows}, nbytes)
        return rows

    def _together(self, numbers: Positions) -> tuple[Sequence[Any], Structure] | None:
        """The rows of several files, if they can be decoded together."""
        return self._format.read_pieces([self._piece(number) for number in numbers.tolist()])

    def _rows_of(self, number: int) -> tuple[Sequence[Any], Structure] | None:
        """The rows of a file; None if it has damage."""
        try:
            return self._format.read_columns(*self._piece(number))
        except PenstockError:  # raised again when its rows are read alone
            return None

    def _add(self, rows: _Rows, numbers: Positions, found: tuple[Sequence[Any], Structure] | None) -> bool:
        """Add the rows of some files; False if there are none, if they do not fit the others or may not be shared."""
        ends = self._ends[numbers]
        lengths = ends - np.where(numbers > 0, self._ends[numbers - 1], 0)
        count = int(lengths.sum())
        if found is None or not all(
            _may_be_shared(own) and (len(own), own.shape[1:], own.dtype) == (count, room.shape[1:], room.dtype)
            for room, own in zip(rows.columns, found[0], strict=True)
        ):
            return False
        places = np.arange(count) + np.repeat(ends - np.cumsum(lengths), lengths)
        for room, own in zip(rows.columns, found[0], strict=True):
            room[places] = own
        rows.has[numbers] = True
        rows.nbytes += bytes_of(found[0])
        if rows.nbytes > 2 * _MOST_BYTES:  # the first file had smaller rows
            self._kept.discard(_KEY)
        return True

    def _piece(self, number: int) -> tuple[str, range]:
        """The name of a file, and its rows."""
        before = int(self._ends[number - 1]) if number else 0
        first = int(self._starts[number])
        return self._names[number], range(first, first + int(self._ends[number]) - before)


def _may_be_shared(column: Any) -> bool:
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return isinstance(column, np.ndarray)
    kinds = set(map(type, column.flat))
    return kinds <= _ENTRIES and not (np.ndarray in kinds and any(entry.dtype == object for entry in column.flat))
