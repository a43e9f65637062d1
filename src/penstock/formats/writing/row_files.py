"""Files of rows: written block by block, and read at any row, also by others and while they grow.

A file is a sequence of records, each one block of rows:

    head      "rows", CRC32C of the rest of the head, number of rows, bytes of the positions, bytes of the payload,
              CRC32C of both below
    positions of the rows in their dataset, int64; none where the rows follow on those before them
    payload   a stream of Arrow's with one batch, encoded by `columns.py`; its metadata has the structure

All numbers are little-endian, positions and payload are padded to 64 bytes. A process that is killed leaves a last
record that is not whole, which is skipped; everything before it counts.
"""

import json
import os
import struct
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError, StorageError
from penstock.formats.columns import decode_columns, encode_columns, read_batch
from penstock.formats.decoded_rows import DecodedRows, bytes_of, joined
from penstock.formats.file_format import FileFormat, Rows
from penstock.formats.plain_data import structure_of_data, structure_to_data
from penstock.formats.writing.leaves import Columns
from penstock.positions import as_positions, by_part
from penstock.structure import Structure

_HEAD: Final = struct.Struct("<4sIQQQII")
_FACTS: Final = struct.Struct("<QQQII")
_MAGIC: Final = b"rows"
_ALIGNMENT: Final = 64
_STRUCTURE: Final = b"structure"
_DECODED_BYTES: Final = 1024
"""About what a decoded record takes whose columns are views of the file."""
_SMALL_BYTES: Final = 128 << 10
"""Reading a file of no more bytes takes less time than mapping it into memory."""

Positions = npt.NDArray[np.int64]
StoredRows = tuple[Columns, Structure]


class RowFileWriter:
    """Appends records to a new file.

    Attributes:
        path: of the file.
        process: which writes it.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.process = os.getpid()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._close = weakref.finalize(self, os.close, self._file)
        self._written = 0

    def append(self, columns: Columns, structure: Structure, positions: Positions | None = None) -> None:
        """Append rows (at least one). If that fails, the file is as it was before; without rows it is removed.

        Raises:
            InvalidTypeError: rows that cannot be stored.
            OSError: they cannot be written.
        """
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")
        payload = encode_columns(columns, {_STRUCTURE: json.dumps(structure_to_data(structure))})
        numbered = b"" if positions is None else positions.astype("<i8").tobytes()
        before = numbered + bytes(-(len(numbered) + _HEAD.size) % _ALIGNMENT)
        after = bytes(-len(payload) % _ALIGNMENT)
        checksum = google_crc32c.extend(google_crc32c.value(np.frombuffer(payload, np.uint8)), after)
        facts = _FACTS.pack(len(columns[0]), len(numbered), len(payload), google_crc32c.value(before), checksum)
        head = _MAGIC + google_crc32c.value(facts).to_bytes(4, "little") + facts
        parts = [head + before, memoryview(payload), after]
        try:
            for part in parts:
                while part:
                    part = part[os.write(self._file, part) :]
        except OSError:
            with suppress(OSError):
                os.truncate(self._file, self._written)
                if not self._written:
                    self.path.unlink()
            raise
        self._written += sum(map(len, parts))

    def close(self) -> None:
        """Append no more. Later calls do nothing."""
        self._close()


class Record(NamedTuple):
    """A block of rows in a file.

    Attributes:
        rows: how many.
        positions: of the rows in their dataset; none where they follow on those before them.
        start: where the payload begins.
        length: of the payload.
        checksum: of the payload.
    """

    rows: int
    positions: Positions
    start: int
    length: int
    checksum: int


class RowFile:
    """A file of rows, mapped into memory, or read where it is small.

    Args:
        name: of the file.
        advice: what to do about a damaged one, as the end of a sentence.

    Attributes:
        records: those that were whole when the file was last looked at.

    Raises:
        StorageError: it cannot be read, or is not as it was written.
    """

    def __init__(self, name: str, advice: str) -> None:
        self.name = name
        self.records: list[Record] = []
        self._advice = advice
        self._scanned = 0
        self._content: Any = None
        self._is_mapped = False
        self._checked: set[int] = set()
        self._decoded: DecodedRows[StoredRows] = DecodedRows()
        self.look()

    def look(self) -> list[Record]:
        """The records that have become whole since the file was last looked at."""
        try:
            with open(self.name, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size <= self._scanned:
                    return []
                self._is_mapped = size > _SMALL_BYTES
                if not self._is_mapped:
                    self._content = pa.py_buffer(file.read(size))
                    size = self._content.size
            if self._is_mapped:
                with pa.memory_map(self.name) as mapped:  # it needs no open file, of which a process may have few
                    self._content = mapped.read_buffer(size)
        except OSError as error:
            raise StorageError(f"{self.name} cannot be read: {error}") from error
        found = []
        while (record := self._next(size)) is not None:
            self._scanned = record.start + _padded(record.length)
            found.append(record)
        self.records += found
        return found

    def _next(self, size: int) -> Record | None:
        """The record behind those that are known; None if it is not whole."""
        if size - self._scanned < _HEAD.size:
            return None
        head = self._bytes(self._scanned, _HEAD.size).tobytes()
        if not any(head):  # the machine has stopped while it was written
            return None
        magic, checksum, rows, numbered, length, of_positions, of_payload = _HEAD.unpack(head)
        if magic != _MAGIC or google_crc32c.value(head[8:]) != checksum:
            raise self.damaged(self._scanned)
        begin = self._scanned + _HEAD.size
        start = self._scanned + _padded(_HEAD.size + numbered)
        if start + _padded(length) > size:
            return None
        if google_crc32c.value(self._bytes(begin, start - begin)) != of_positions:
            raise self.damaged(begin)
        positions = self._bytes(begin, numbered).view("<i8")
        return Record(rows, positions, start, length, of_payload)

    def _bytes(self, start: int, length: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._content, np.uint8, length, start)

    @property
    def held_bytes(self) -> int:
        """About the memory that it takes."""
        return _DECODED_BYTES + (0 if self._is_mapped else self._scanned)

    @property
    def is_whole(self) -> bool:
        """True if no bytes follow the records."""
        return self._content is not None and self._scanned == self._content.size

    def check_length(self) -> None:
        """Refuse a mapped file that was cut: the next access to the missing part would end the process.

        It does not protect arrays that were given out before.

        Raises:
            StorageError: the file was cut since it was opened.
        """
        with suppress(FileNotFoundError):  # the map stays
            if self._is_mapped and (size := os.stat(self.name).st_size) < self._content.size:
                raise StorageError(
                    f"{self.name} was cut from {self._content.size} to {size} bytes while it was being read: write "
                    "files under another name, and rename them"
                )

    def batch(self, number: int) -> tuple[pa.Schema, pa.RecordBatch]:
        """A record as it is in the file, and the schema, after `check_length`.

        Raises:
            StorageError: it is not as it was written.
        """
        _, _, start, length, checksum = self.records[number]
        if number not in self._checked:
            if google_crc32c.value(self._bytes(start, _padded(length))) != checksum:
                raise self.damaged(start)
            self._checked.add(number)
        return read_batch(self._content.slice(start, length))

    def rows_of(self, number: int) -> StoredRows:
        """The columns of a record, which are views of the file's bytes, and their structure; raises as `batch`."""
        decoded = self._decoded.get((self.name, number))
        if decoded is None:
            decoded = _decoded(self.batch(number)[1])
            objects = bytes_of(column for column in decoded[0] if column.dtype == object)
            self._decoded.put({(self.name, number): decoded}, _DECODED_BYTES + objects)
        return decoded

    def damaged(self, start: int) -> StorageError:
        """The error of a file that is not as it was written from a byte on."""
        return StorageError(
            f"{self.name} is damaged from byte {start} on, where its bytes differ from those written: {self._advice}"
        )


def _decoded(batch: pa.RecordBatch) -> StoredRows:
    return decode_columns(batch), structure_of_data(json.loads(batch.schema.metadata[_STRUCTURE]))


class RowFiles(FileFormat):
    """The rows of complete files, in the order in which they were written."""

    memory = "reads by memory map"

    def __init__(self) -> None:
        self._files: DecodedRows[tuple[RowFile, Positions]] = DecodedRows()

    def _file(self, name: str) -> tuple[RowFile, Positions]:
        """A file, and the number of rows before each of its records, and of all."""
        found = self._files.get((name, 0))
        if found is None:
            file = _opened(name)
            found = file, np.cumsum([0, *(record.rows for record in file.records)], dtype=np.int64)
            self._files.put({(name, 0): found}, file.held_bytes)
        return found

    def count(self, name: str) -> int:
        return int(self._file(name)[1][-1])

    def read(self, name: str, rows: Rows) -> Any:
        columns, structure = self.read_columns(name, rows)
        return structure.unflatten(columns)

    def read_columns(self, name: str, rows: Rows) -> tuple[list[Any], Structure]:
        file, edges = self._file(name)
        file.check_length()
        pieces = []
        first = int(np.searchsorted(edges, rows[0], side="right")) - 1
        if rows[-1] < edges[first + 1]:  # rows rise: most are in one record
            records: Iterable[tuple[int, Rows]] = [(first, rows)]
        else:
            numbers = np.searchsorted(edges, as_positions(rows), side="right") - 1
            records = ((number, part) for number, _, part in by_part(rows, numbers))
        for number, part in records:
            columns, structure = file.rows_of(number)
            begin = int(edges[number])
            if isinstance(part, range):
                pieces.append([column[part.start - begin : part.stop - begin] for column in columns])
            else:
                pieces.append([column.take(part - begin, axis=0) for column in columns])
        if len(pieces) == 1:
            return pieces[0], structure
        return [joined(columns) for columns in zip(*pieces, strict=True)], structure

    def read_pieces(self, pieces: Sequence[tuple[str, Rows]]) -> tuple[list[Any], Structure] | None:
        """The rows of several files, decoded together where they were written alike."""
        batches: list[tuple[pa.Schema, pa.RecordBatch]] = []
        for name, rows in pieces:
            if not isinstance(rows, range):
                return None
            try:
                batches += _batches(_opened(name), rows)
            except StorageError:  # raised again when that file is read alone
                return None
        count = sum(batch.num_rows for _, batch in batches)
        if len({id(schema) for schema, _ in batches}) != 1 or count != sum(len(rows) for _, rows in pieces):
            return None
        (together,) = pa.Table.from_batches([batch for _, batch in batches]).combine_chunks().to_batches()
        columns, structure = _decoded(together)
        return list(columns), structure


def _opened(name: str) -> RowFile:
    file = RowFile(name, "bring it back from a copy, or remove all and write it again")
    if not file.is_whole:
        raise file.damaged(file.records[-1].start if file.records else 0)
    return file


def _batches(file: RowFile, rows: range) -> Iterator[tuple[pa.Schema, pa.RecordBatch]]:
    """Rows of a file as they are in it, with their schema."""
    file.check_length()
    start = 0
    for number, record in enumerate(file.records):
        first, last = max(start, rows.start), min(start + record.rows, rows.stop)
        if first < last:
            schema, batch = file.batch(number)
            yield schema, batch.slice(first - start, last - first)
        start += record.rows


def _padded(length: int) -> int:
    return length + -length % _ALIGNMENT
