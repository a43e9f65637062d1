"""Rows of a dataset in several files, each with its position in the dataset: what caches have kept of an index."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.writing.row_files import Positions, Record, RowFile, StoredRows
from penstock.positions import by_part

_ADVICE: Final = "delete the directory, and it is filled again"


class NumberedRows:
    """The rows in all files of a directory whose names match a pattern. Other processes may append to them.

    Args:
        directory: where they are, if there are any.
        pattern: of their names.
        length: of the dataset.

    Attributes:
        has: which rows are there.

    Raises:
        StorageError: a file is not as it was written.
    """

    def __init__(self, directory: Path, pattern: str, length: int) -> None:
        self.has = np.zeros(length, bool)
        self._directory = directory
        self._pattern = pattern
        self._files: dict[str, RowFile] = {}
        self._records: list[tuple[RowFile, int]] = []
        self._record = np.full(length, -1, np.int64)
        self._row = np.zeros(length, np.int64)
        self._lock = Lock()
        self.refresh()

    def refresh(self) -> None:
        """Look for rows that were written since."""
        with self._lock:
            for path in sorted(self._directory.glob(self._pattern)):
                file = self._files.get(path.name)
                if file is None:
                    file = self._files[path.name] = RowFile(str(path), _ADVICE)
                    found = file.records
                else:
                    found = file.look()
                self._note(file, found)

    def _note(self, file: RowFile, found: list[Record]) -> None:
        for number, record in enumerate(found, len(file.records) - len(found)):
            positions = record.positions
            if len(positions) != record.rows or positions.min() < 0 or positions.max() >= len(self.has):
                raise StorageError(f"{file.name} holds rows of another dataset: there are only {len(self.has)}")
            self._record[positions] = len(self._records)
            self._row[positions] = np.arange(record.rows)
            self._records.append((file, number))
            self.has[positions] = True

    def pieces(self, positions: Positions) -> Iterator[tuple[npt.NDArray[np.intp], StoredRows, Positions]]:
        """The places of the rows at these positions, record by record.

        A piece has the places of its positions among these, its columns with their structure, and the rows in them.

        Raises:
            StorageError: they are not as they were written, or a file was cut since it was opened.
        """
        if (self._record[positions] < 0).any():
            self.refresh()
        for record, which, rows in by_part(self._row[positions], self._record[positions]):
            file, number = self._records[record]
            file.check_length()
            yield which, file.rows_of(number), rows
