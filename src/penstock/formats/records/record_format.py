"""Files of records: the interface of their formats, and one pass over the records of a file."""

from abc import ABC, abstractmethod
from contextlib import closing
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.byte_reader import ByteReader, HeldBytes
from penstock.formats.opening import open_bytes
from penstock.runtime.progress import Progress
from penstock.spec import TensorSpec
from penstock.structure import LEAF, Structure, flatten

Column = npt.NDArray[Any]

Decoded = tuple[list[Column], Structure]
"""The columns of rows, and the structure of a row."""

Source = str | ByteReader
"""The name of a file, or its bytes; `SomeRecords` are not all of them."""

CHUNK_BYTES = 1 << 20
"""The bytes of a file that are read at a time. Longer records are read whole."""

_ALL = 1 << 62
_MAXIMUM_READ: Final = 1 << 26
"""The length that a file claims for a record is believed no further than this before its bytes have come."""
_NOTHING: Final = range(0)
_NONE: Final = np.empty(0, np.int64)


class SomeRecords(HeldBytes):
    """Bytes that hold whole records of a file.

    Args:
        offset: the byte of the file at which they begin, if they follow each other in it; None for records from
            anywhere in it.
    """

    def __init__(self, name: str, data: bytes, offset: int | None = None) -> None:
        super().__init__(name, data)
        self.offset = offset


class RecordFormat(ABC):
    """The format of the records of a file. Formats are frozen and hold no files."""

    @property
    def spec(self) -> Any:
        """The specification of a record."""
        return TensorSpec((), object)

    @property
    def layout(self) -> str:
        """A name of the rules by which records begin: files of equal layouts can share an index."""
        return type(self).__name__

    @property
    def decodes_groups(self) -> bool:
        """True if decoding many records costs little more than decoding one."""
        return False

    def to_be_joined(self, data: bytes) -> bytes:
        """Whole records of a file so that those of another one may follow, where `decodes_groups`.

        Raises:
            ElementError: they are not whole.
        """
        return data

    @abstractmethod
    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "RecordReader":
        """The records of a file from the one with this number on, which begins at this byte (when decompressed).

        Raises:
            StorageError: the file cannot be opened, or is shorter.
        """

    def count(self, name: str, compression: str) -> int:
        """The number of records in a file, without looking into them.

        Raises:
            StorageError: the file cannot be read, or its records cannot be told apart.
        """
        with closing(self.open(name, compression)) as reader:
            return reader.skip(_ALL)

    def edges(self, name: Source) -> npt.NDArray[np.int64]:
        """The offsets at which each record of an uncompressed file begins, and the last one ends.

        The bytes from a point on after which records cannot be told apart count as one record.

        Raises:
            StorageError: the file cannot be read, or is not of this format.
        """
        with closing(self.open(name, "")) as reader:
            return reader.edges()


class RecordReader(ABC):
    """One pass over the records of a file, a chunk of it at a time.

    After an exception it continues with the next record, unless `ended` is set: then nothing after it can be trusted.

    Attributes:
        number: the number of the next record in its file.
        ended: whether no more records can come.
        recognised: whether the beginning of the file was of this format.
    """

    recognised = False

    def __init__(self, name: Source, compression: str, number: int, offset: int) -> None:
        self.number = number
        self.ended = False
        self._bytes = open_bytes(name, compression) if isinstance(name, str) else name
        self._name = self._bytes.name
        # Allocating a chunk takes longer than reading a small file. Compressed files may become longer.
        self._chunk = min(CHUNK_BYTES, self._bytes.size or CHUNK_BYTES) if self._bytes.plain else CHUNK_BYTES
        self._start = offset
        self._data = b""
        self._ends = _NONE
        self._next = 0
        self._decoded = _NOTHING
        self._columns: Decoded = [], LEAF
        if offset and not self._bytes.seek(offset):
            self.close()
            raise StorageError(f"{name!r} has fewer than {offset} bytes: it was longer when the state was saved")

    @property
    def at_end(self) -> bool:
        """True if the last record ended where the file did when it was opened: no more need be asked for."""
        return self.number > 0 and self.offset == self._bytes.size and self._bytes.plain

    @property
    def offset(self) -> int:
        """The byte at which the next record begins."""
        return self._start + self._begin(self._next)

    def _begin(self, record: int) -> int:
        """The place in the chunk at which a record begins."""
        return int(self._ends[record - 1]) if record else 0

    def read(self, limit: int) -> Decoded | None:
        """The next records, at least one and at most `limit`; None at the end.

        Raises:
            StorageError: the file is damaged there, truncated, or cannot be read.
            ElementError: the next record is not what the format promises.
        """
        if not self._loaded(skipping=False):
            return None
        if self._next not in self._decoded:
            self._decoded = _NOTHING
            decoded = self._decode(self._next)
            self._columns = ([decoded], LEAF) if isinstance(decoded, np.ndarray) else flatten(decoded)
            self._decoded = range(self._next, self._next + len(self._columns[0][0]))
        first = self._next - self._decoded.start
        columns, structure = self._columns
        if first or limit < len(columns[0]):
            columns = [column[first : first + limit] for column in columns]
        self._pass(len(columns[0]))
        return columns, structure

    def skip(self, count: int) -> int:
        """Pass over up to `count` records without looking into them; gives how many there were.

        Raises:
            StorageError: the records cannot be told apart, or cannot be read.
        """
        done = 0
        while done < count and self._loaded(skipping=True):
            step = min(count - done, len(self._ends) - self._next)
            self._pass(step)
            done += step
        return done

    def edges(self) -> npt.NDArray[np.int64]:
        """The offsets of the records that are left, in the form of `RecordFormat.edges`."""
        parts = [np.array([self.offset])]
        progress = Progress(f"indexing {self._name}", self._bytes.size, self.offset, unit="bytes", bar=False)
        try:
            while self._loaded(skipping=True):
                parts.append(self._start + self._ends[self._next :])
                progress.add(int(parts[-1][-1] - parts[-2][-1]))
                self._pass(len(self._ends) - self._next)
        except StorageError:
            if len(parts) == 1 and not self.recognised:
                raise
            parts.append(np.array([self._bytes.size]))
        return np.concatenate(parts)

    def close(self) -> None:
        """Close the file. May be called again."""
        self._bytes.close()

    def _pass(self, records: int) -> None:
        self._next += records
        self.number += records

    def _loaded(self, skipping: bool) -> bool:
        """True if there is a next record; its chunk is then there."""
        if self._next < len(self._ends):
            return True
        begin = self._begin(self._next)
        self._data, self._start = self._data[begin:], self._start + begin
        self._ends, self._next, self._decoded = _NONE, 0, _NOTHING
        if self.ended or self.at_end:
            self.ended = True
            return False
        try:
            self._ends = np.asarray(self._load(skipping), np.int64)
        except StorageError:
            self.ended = True
            raise
        self.ended = len(self._ends) == 0
        return not self.ended

    def _hold(self, needed: int, chunk: int = 0) -> None:
        """Read on until there are `needed` bytes of data, or no more: a `chunk` at a time, or more if need be."""
        parts, held, chunk = [self._data], len(self._data), chunk or self._chunk
        while held < needed and (piece := self._bytes.read(max(chunk, min(needed - held, _MAXIMUM_READ)))):
            parts.append(piece)
            held += len(piece)
        self._data = parts[0] if len(parts) == 1 else b"".join(parts)

    @abstractmethod
    def _load(self, skipping: bool) -> "list[int] | npt.NDArray[np.int64]":
        """Append to `_data` until it holds a whole record; gives where each whole record in it ends, none at the end.

        When `skipping`, the next record may be passed over in the file, and only its end be given.
        """

    @abstractmethod
    def _decode(self, first: int) -> Any:
        """The records of the chunk from `first` on, as a column or a structure of columns.

        They go up to one that is damaged; if that is the first, it is passed.
        """
