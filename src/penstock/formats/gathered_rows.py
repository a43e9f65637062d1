"""Rows of many small files in one place: each file is decoded once, instead of once for each batch with a row of it."""

from collections.abc import Iterator, Sequence
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
        missing = np.unique(numbers[~rows.has[numbers]]).tolist()
        if not all(self._add(rows, *each) for each in zip(missing, self._of_files(missing), strict=True)):
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

    def _of_files(self, numbers: Sequence[int]) -> Iterator[Sequence[Any] | None]:
        """The rows of each of these files, decoded together where that is possible."""
        pieces = [self._piece(number) for number in numbers]
        together = self._format.read_pieces(pieces) if len(pieces) > 1 else None
        if together is None:
            yield from (found and found[0] for found in map(self._rows_of, numbers))
            return
        ends = np.cumsum([len(own) for _, own in pieces]).tolist()
        for start, stop in zip([0, *ends], ends, strict=False):
            yield [column[start:stop] for column in together[0]]

    def _rows_of(self, number: int) -> tuple[Sequence[Any], Structure] | None:
        """The rows of a file; None if it has damage."""
        try:
            return self._format.read_columns(*self._piece(number))
        except PenstockError:  # raised again when its rows are read alone
            return None

    def _add(self, rows: _Rows, number: int, columns: Sequence[Any] | None) -> bool:
        """Add the rows of a file; False if they have damage, no place among the others, or may not be shared."""
        start, stop = self._bounds(number)
        if columns is None or not all(
            _may_be_shared(own) and (len(own), own.shape[1:], own.dtype) == (stop - start, room.shape[1:], room.dtype)
            for room, own in zip(rows.columns, columns, strict=True)
        ):
            self._alone[number] = True
            return False
        for room, own in zip(rows.columns, columns, strict=True):
            room[start:stop] = own
        rows.has[number] = True
        rows.nbytes += bytes_of(columns)
        if rows.nbytes > 2 * _MOST_BYTES:  # the first file had smaller rows
            self._kept.discard(_KEY)
        return True

    def _piece(self, number: int) -> tuple[str, range]:
        """The name of a file, and its rows."""
        start, stop = self._bounds(number)
        first = int(self._starts[number])
        return self._names[number], range(first, first + stop - start)

    def _bounds(self, number: int) -> tuple[int, int]:
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])


def _may_be_shared(column: Any) -> bool:
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return isinstance(column, np.ndarray)
    kinds = set(map(type, column.flat))
    return kinds <= _ENTRIES and not (np.ndarray in kinds and any(entry.dtype == object for entry in column.flat))
