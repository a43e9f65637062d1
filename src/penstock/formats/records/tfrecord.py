"""TFRecord files: records of bytes, each between two checksums.

    length of the data            8 bytes, little-endian
    checksum of the length        4 bytes
    data
    checksum of the data          4 bytes

A checksum is the CRC-32C, rotated right by 15 bits, plus a constant.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache

import google_crc32c
import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.compression import compression_of
from penstock.formats.records.record_format import Column, RecordFormat, RecordReader, Source

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8
# Times this, a 32-bit number comes out rotated right by 15 bits, in the upper half of 64 bits.
_ROTATION = np.uint64(1 << 17 | 1 << 49)

# After this number of records of one length, the next ones are expected to have it too.
_ALIKE = 8


# When records are passed over, those longer than this are not read.
_SKIP_BYTES = 1 << 16


def frame(data: bytes) -> bytes:
    """The bytes of a record as a file holds them."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CHECKSUM.pack(_checksum(length)), data, _CHECKSUM.pack(_checksum(data))))


def _checksum(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def masked_checksums(records: list[bytes]) -> npt.NDArray[np.uint32]:
    """The checksums of records as a file holds them."""
    checksums = np.fromiter(map(google_crc32c.value, records), "<u8", len(records))
    return (checksums * _ROTATION).view("<u4")[1::2] + np.uint32(_MASK)


def _right(records: list[bytes], data: bytes, ends: npt.NDArray[np.int64]) -> int:
    """The number of records before the first damaged one; `data` holds their checksums, before these ends."""
    # The four bytes at every place in the data as a number, of which those at the ends are taken.
    stored = np.ndarray(len(data) - _CHECKSUM.size + 1, "<u4", data, 0, (1,))[ends - _CHECKSUM.size]
    wrong = masked_checksums(records) != stored
    return int(wrong.argmax()) if wrong.any() else len(records)


@lru_cache(maxsize=1 << 12)  # lengths repeat
def _checksum_of_length(length: int) -> int:
    return _checksum(_LENGTH.pack(length))


@dataclass(frozen=True)
class TFRecords(RecordFormat):
    """The records of a file as bytes, their checksums verified."""

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "TFRecordReader":
        return TFRecordReader(name, compression, number, offset)


class TFRecordReader(RecordReader):
    """A chunk's headers are walked one by one, many at a time where lengths repeat, its checksums compared together."""

    def _load(self, skipping: bool) -> list[int]:
        ends: list[int] = []
        needed = _HEADER.size
        while not ends:
            self._hold(needed, min(_SKIP_BYTES, self._chunk) if skipping else self._chunk)
            if not self._data:
                return []
            if len(self._data) < needed:
                raise self._truncated(needed)
            ends, needed = self._walk()
            if skipping and not ends and needed > len(self._data) >= _HEADER.size:
                if not self._bytes.seek(self._start + needed):
                    raise self._truncated(needed)
                ends = [needed]
        return ends

    def _walk(self) -> tuple[list[int], int]:
        """The ends of the whole records of the chunk, and the bytes that there must be for one more."""
        data, size, unpack = self._data, len(self._data), _HEADER.unpack_from
        ends: list[int] = []
        end, body = 0, _HEADER.size
        last, alike = -1, 0
        while body <= size:
            length, checksum = unpack(data, end)
            if _checksum_of_length(length) != checksum:
                if not ends:
                    raise self._not_a_record()
                break  # the records before it come first
            after = body + length + _CHECKSUM.size
            if after > size:
                return ends, after
            ends.append(after)
            alike = alike + 1 if length == last else 0
            if alike == _ALIKE:
                ends += self._more_of(length, checksum, after)
                after, alike = ends[-1], 0
            last, end, body = length, after, after + _HEADER.size
        return ends, body

    def _more_of(self, length: int, checksum: int, begin: int) -> list[int]:
        """The ends of the next records that have this length, up to the first that has not."""
        size = _HEADER.size + length + _CHECKSUM.size
        ends: list[int] = []
        count = 2 * _ALIKE
        while (count := min(2 * count, (len(self._data) - begin) // size)) > 0:
            lengths = np.ndarray(count, "<u8", self._data, begin, (size,))
            checksums = np.ndarray(count, "<u4", self._data, begin + _LENGTH.size, (size,))
            other = (lengths != length) | (checksums != checksum)
            found = int(np.argmax(other)) if other.any() else count
            ends += range(begin + size, begin + size * found + 1, size)
            if found < count:
                break
            begin = ends[-1]
        return ends

    def _decode(self, first: int) -> Column:
        data = self._data
        ends = self._ends[first:]
        last = ends.tolist()
        header, footer = _HEADER.size, _CHECKSUM.size
        begins = [self._begin(first), *last[:-1]]
        records = [data[begin + header : end - footer] for begin, end in zip(begins, last, strict=True)]
        right = _right(records, data, ends)
        if right == 0:
            error = StorageError(f"{self._where()}: the checksum of its {len(records[0])} bytes of data is wrong")
            self._pass(1)
            raise error
        return np.fromiter(records, object, right)

    def _where(self) -> str:
        return f"{self._name!r}, record {self.number} at byte {self.offset}"

    def _truncated(self, needed: int) -> StorageError:
        self.recognised = True  # by the checksum of its length, or too short to be told from other files
        return StorageError(f"{self._where()}: the file is truncated: expected {needed} more bytes from there")

    def _not_a_record(self) -> StorageError:
        compression = compression_of(self._data[:8]) if self.offset == 0 else ""
        if compression:
            return StorageError(f"{self._name!r} is compressed: give compression_type={compression!r}")
        return StorageError(
            f"{self._where()}: the checksum of its length is wrong: the file is damaged, or not a TFRecord file; "
            "its records before that are whole, the rest is skipped"
        )
