"""Records of one length, between bytes at the beginning and at the end of a file that belong to none.

A multiplication finds any of them.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat, OpenRanges
from penstock.formats.ranges import open_ranges
from penstock.formats.records.record_format import Column, RecordFormat, RecordReader, Source
from penstock.spec import TensorSpec


@dataclass(frozen=True)
class FixedRecords(RecordFormat):
    """The bytes of each record."""

    record_bytes: int
    header_bytes: int = 0
    footer_bytes: int = 0

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "FixedReader":
        return FixedReader(self, name, compression, number, offset)


class FixedReader(RecordReader):
    """The records behind the header, and before the footer."""

    def __init__(self, format: FixedRecords, source: Source, compression: str, number: int, offset: int) -> None:
        self._format = format
        super().__init__(source, compression, number, offset)
        if offset == 0 and not self._bytes.seek(format.header_bytes):
            self.close()
            raise StorageError(f"{self._name!r} has fewer bytes than its header of {format.header_bytes}")
        self._start = offset or format.header_bytes

    def _load(self, skipping: bool) -> npt.NDArray[np.int64]:
        size, footer = self._format.record_bytes, self._format.footer_bytes
        self._hold(size + footer)
        held = len(self._data)
        if held < size + footer and held != footer:
            raise StorageError(
                f"{self._name!r}, record {self.number} at byte {self.offset}: the file ends after {held} bytes of "
                f"{size} of the record and {footer} behind the last one: it is cut, or its records have another length"
            )
        return size * np.arange(1, (held - footer) // size + 1)

    def _decode(self, first: int) -> Column:
        size = self._format.record_bytes
        begins = range(self._begin(first), int(self._ends[-1]), size)
        return np.fromiter((self._data[begin : begin + size] for begin in begins), object, len(begins))


@dataclass(frozen=True)
class FixedRows(OpenRanges):
    """The rows of an open file: their number, dtype and shape, and the offset of the first.

    Attributes:
        by_columns: whether the first numbers of all rows come first, as in Fortran.
    """

    count: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool = False

    def read(self, rows: Rows) -> npt.NDArray[Any]:
        """The rows of these numbers."""
        if self.by_columns:
            runs = [rows] if isinstance(rows, range) else [range(row, row + 1) for row in rows.tolist()]
            return np.concatenate([self._of_columns(run.start, len(run)) for run in runs])
        size = self.dtype.itemsize * math.prod(self.shape)
        numbers = np.array(rows[:: max(1, len(rows) - 1)]) if isinstance(rows, range) else rows  # of a range, its ends
        begins = self.offset + numbers * size
        ends = begins + size
        data = self.file.read(begins[:1], ends[-1:]) if isinstance(rows, range) else self.file.read(begins, ends)
        return np.frombuffer(data, self.dtype, len(rows) * math.prod(self.shape)).reshape(len(rows), *self.shape)

    def _of_columns(self, first: int, rows: int) -> npt.NDArray[Any]:
        """Rows of which each column is a part of the file."""
        columns = np.arange(math.prod(self.shape), dtype=np.int64)
        begins = self.offset + (columns * self.count + first) * self.dtype.itemsize
        data = self.file.read(begins, begins + rows * self.dtype.itemsize)
        values = np.frombuffer(data, self.dtype, len(columns) * rows).reshape(len(columns), rows)
        return values.T.reshape(rows, *self.shape, order="F")


class FixedFiles(OpenFileFormat[FixedRows]):
    """The bytes of records of one length."""

    def __init__(self, records: FixedRecords) -> None:
        super().__init__()
        self.records = records

    def spec(self, name: str) -> Any:
        return TensorSpec((), object)

    def read(self, name: str, rows: Rows) -> Any:
        values = self.opened(name).read(rows)
        return np.fromiter((value.tobytes() for value in values), object, len(values))

    def open(self, name: str) -> FixedRows:
        file = open_ranges(name)
        size, around = self.records.record_bytes, self.records.header_bytes + self.records.footer_bytes
        count, rest = divmod(file.size - around, size)
        if count < 0 or rest:
            raise StorageError(
                f"{name!r} has {file.size} bytes, which are no whole number of records of {size} bytes and {around} "
                "around them: it is cut, or its records have another length"
            )
        return FixedRows(file, count, self.records.header_bytes, np.dtype(np.uint8), (size,))
