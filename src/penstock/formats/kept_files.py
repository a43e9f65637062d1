"""Rows that are kept as they are read: each process appends to a file of its own, which all read while it grows.

A file is a sequence of records, each one block of rows:

    head      "rows", CRC32C of what follows in the head, number of rows, bytes of the payload, CRC32C of both below
    positions of the rows in the dataset, int64
    payload   a stream of Arrow's with one batch, encoded as `columns.py` says; its metadata has the structure

All numbers are little-endian, positions and payload are padded to 64 bytes. A process that is killed leaves a last
record that is not whole, which nobody reads; everything before it counts. A record without rows says that nothing
follows.
"""

import json
import mmap
import os
import struct
import weakref
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError, StorageError
from penstock.formats.columns import decode_column, encode_column
from penstock.formats.row_store import Columns, StoredRows
from penstock.formats.structure_data import stored_class, structure_of_data, structure_to_data
from penstock.positions import as_positions, by_part
from penstock.structure import Structure

_HEAD: Final = struct.Struct("<4sIQQII")
_FACTS: Final = struct.Struct("<QQII")
_MAGIC: Final = b"rows"
_ALIGNMENT: Final = 64
_DECODED: Final = 256
"""So many records stay decoded: strings are Python's objects then."""
_STRUCTURE: Final = b"structure"


class KeptFileWriter:
    """Appends rows to a new file.

    Raises:
        StorageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = os.getpid()
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._refused(error) from error
        self._close = weakref.finalize(self, os.close, self._file)
        self._written = 0

    def append(self, positions: npt.NDArray[np.int64], columns: Columns, structure: Structure) -> None:
        """Append rows (at least one)."""
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")
        fields, arrays = zip(
            *(encode_column(str(number), column) for number, column in enumerate(columns)), strict=True
        )
        schema = pa.schema(fields, {_STRUCTURE: json.dumps(structure_to_data(structure))})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
        self._append(len(positions), positions.astype("<i8").tobytes(), sink.getvalue())

    def end(self) -> None:
        """Append that nothing follows."""
        self._append(0, b"", b"")

    def _append(self, rows: int, positions: bytes, payload: Any) -> None:
        before = positions + bytes(-(len(positions) + _HEAD.size) % _ALIGNMENT)
        after = bytes(-len(payload) % _ALIGNMENT)
        checksum = google_crc32c.extend(google_crc32c.value(np.frombuffer(payload, np.uint8)), after)
        facts = _FACTS.pack(rows, len(payload), google_crc32c.value(before), checksum)
        left = memoryview(
            b"".join([_MAGIC, google_crc32c.value(facts).to_bytes(4, "little"), facts, before, payload, after])
        )
        size = len(left)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._file, self._written)
                if not self._written:
                    self.path.unlink()
            raise self._refused(error) from error
        self._written += size

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(f"'{self.path.parent}' cannot be written: {error}")

    def close(self) -> None:
        """Write no more."""
        self._close()


class _Record(NamedTuple):
    """A block of rows in a file: where its payload is, how long that is, and its checksum."""

    file: "_RowsFile"
    start: int
    length: int
    checksum: int


class _RowsFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = False
        self._scanned = 0
        self._map: mmap.mmap | None = None
        self._checked: set[int] = set()
        self._decoded: dict[int, StoredRows] = {}

    def new(self) -> list[tuple[npt.NDArray[np.int64], _Record]]:
        """The records that have become whole since the last call, with the positions of their rows."""
        found: list[tuple[npt.NDArray[np.int64], _Record]] = []
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= self._scanned:
                    return found
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error}") from error
        self._decoded.clear()  # it keeps the map of before
        while size - self._scanned >= _HEAD.size:
            head = self._map[self._scanned : self._scanned + _HEAD.size]
            if not any(head):  # the machine has stopped while it was written
                break
            magic, checksum, rows, length, of_positions, of_payload = _HEAD.unpack(head)
            if magic != _MAGIC or google_crc32c.value(head[8:]) != checksum:
                raise self._damaged(self._scanned)
            start = self._scanned + _padded(_HEAD.size + 8 * rows)
            if start + _padded(length) > size:
                break
            positions = self._map[self._scanned + _HEAD.size : start]
            if google_crc32c.value(positions) != of_positions:
                raise self._damaged(self._scanned)
            self._scanned = start + _padded(length)
            if rows:
                found.append((np.frombuffer(positions, "<i8", rows), _Record(self, start, length, of_payload)))
            self.ended = not rows
        return found

    def columns(self, record: _Record) -> StoredRows:
        """The rows of a record, which lie in the map, and their structure.

        Raises:
            StorageError: they are not as they were written, or the file was cut since it was opened.
        """
        assert self._map is not None
        if (size := self._map.size()) < len(self._map):
            raise StorageError(f"{self.path} was cut from {len(self._map)} to {size} bytes while it was being read")
        decoded = self._decoded.get(record.start)
        if decoded is None:
            if record.start not in self._checked:
                whole = np.frombuffer(self._map, np.uint8, _padded(record.length), record.start)
                if google_crc32c.value(whole) != record.checksum:
                    raise self._damaged(record.start)
                self._checked.add(record.start)
            stream = pa.ipc.open_stream(pa.py_buffer(self._map).slice(record.start, record.length))
            batch = stream.read_next_batch()
            columns = tuple(decode_column(batch.schema.field(i), batch.column(i)) for i in range(batch.num_columns))
            structure = structure_of_data(json.loads(stream.schema.metadata[_STRUCTURE]), stored_class)
            if len(self._decoded) >= _DECODED:
                self._decoded.clear()
            decoded = self._decoded[record.start] = columns, structure
        return decoded

    def _damaged(self, start: int) -> StorageError:
        return StorageError(
            f"{self.path} is damaged: what follows byte {start} is not what was written; delete the directory, and "
            "it is filled again"
        )


class KeptFiles:
    """The rows in all files of a directory whose names match a pattern.

    Args:
        directory: where they are, if there are any.
        pattern: of their names.
        length: of the dataset; None where it is the number of rows in the files.

    Attributes:
        has: which rows are there.

    Raises:
        StorageError: a file is not as it was written.
    """

    def __init__(self, directory: Path, pattern: str, length: int | None = None) -> None:
        self._directory = directory
        self._pattern = pattern
        self._files: dict[str, _RowsFile] = {}
        self._records: list[_Record] = []
        self._lock = Lock()
        first = self._new()
        length = sum(len(positions) for positions, _ in first) if length is None else length
        self._record = np.full(length, -1, np.int64)
        self._row = np.zeros(length, np.int64)
        self._note(first)

    def __len__(self) -> int:
        return len(self._record)

    @property
    def ended(self) -> bool:
        """Whether all files have a record that says that nothing follows."""
        return all(file.ended for file in self._files.values())

    @property
    def has(self) -> npt.NDArray[np.bool_]:
        return self._record >= 0

    def refresh(self) -> None:
        """Look for what was written since."""
        with self._lock:
            self._note(self._new())

    def _new(self) -> list[tuple[npt.NDArray[np.int64], _Record]]:
        found = []
        for path in sorted(self._directory.glob(self._pattern)):
            found += self._files.setdefault(path.name, _RowsFile(path)).new()
        return found

    def _note(self, found: list[tuple[npt.NDArray[np.int64], _Record]]) -> None:
        for positions, record in found:
            if positions.min() < 0 or positions.max() >= len(self._record):
                raise StorageError(
                    f"{record.file.path} holds rows of another dataset: there are only {len(self._record)}"
                )
            self._record[positions] = len(self._records)
            self._row[positions] = np.arange(len(positions))
            self._records.append(record)

    def pieces(
        self, indices: range | npt.NDArray[np.int64]
    ) -> list[tuple[npt.NDArray[np.intp], StoredRows, npt.NDArray[np.int64]]]:
        """Where the rows at these positions are, record by record.

        A piece says which of the positions it holds, its columns with their structure, and the rows in them.

        Raises:
            StorageError: they are not as they were written, or a file was cut since it was opened.
        """
        positions = as_positions(indices)
        if (self._record[positions] < 0).any():
            self.refresh()
        numbers, rows = self._record[positions], self._row[positions]
        with self._lock:
            pieces = [(self._records[number], which, within) for number, which, within in by_part(rows, numbers)]
            return [(which, record.file.columns(record), within) for record, which, within in pieces]


def _padded(length: int) -> int:
    return length + -length % _ALIGNMENT
