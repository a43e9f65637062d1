"""Records of one length, between bytes at the beginning and at the end of a file that belong to none."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.records import Column, RecordFormat, RecordReader, Source


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
