"""Arrow IPC files whose bytes are known again: each piece of a file has a checksum, which is kept beside it.

The first piece is what comes before the first record batch, the last what comes after the last one. A batch is checked
when it is first read, before Arrow looks at it; CRC32C is faster than copying, and each byte is checked once.
"""

import mmap
import os
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from penstock.errors import StorageError


class CheckedBytes(NamedTuple):
    """Bytes of a file that are checked together.

    Attributes:
        stop: where it ends; it begins where the one before it ends.
        crc32c: of its bytes.
        rows: of the record batch in it.
    """

    stop: int
    crc32c: int
    rows: int = 0


class CheckedArrowWriter:
    """Writes an Arrow IPC file.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._sink = _Sink(path)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema)
        self._pieces: list[CheckedBytes] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a record batch."""
        if not self._pieces:
            self._pieces.append(self._sink.piece(0))
        self._writer.write_batch(batch)
        self._pieces.append(self._sink.piece(batch.num_rows))

    def close(self) -> list[CheckedBytes]:
        """Complete the file; returns its pieces. If that fails, the file is closed all the same."""
        try:
            self._writer.close()
        finally:
            self._sink.close()
        return [*self._pieces, self._sink.piece(0)]


class _Sink:
    """A file that adds up what is written to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._written = self._crc32c = 0

    def write(self, content: Any) -> None:
        view = np.frombuffer(content, np.uint8)
        self._crc32c = google_crc32c.extend(self._crc32c, view)
        self._written += len(view)
        left = view.data
        while left:
            left = left[self._file.write(left) :]

    def piece(self, rows: int) -> CheckedBytes:
        """All since the last piece."""
        crc32c, self._crc32c = self._crc32c, 0
        return CheckedBytes(self._written, crc32c, rows)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """It keeps nothing back."""

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class CheckedArrowFile:
    """An Arrow IPC file, read by memory map.

    A map of a file that is cut ends the process at the next access to what is missing. So the length is looked at
    before each one; that does not protect arrays that were given out before.

    Attributes:
        schema: of its columns.
        rows: how many each of its record batches has.

    Raises:
        StorageError: it is not as it was written.
    """

    def __init__(self, path: Path, pieces: list[CheckedBytes]) -> None:
        self._path = path
        self._pieces = pieces
        self.rows = [piece.rows for piece in pieces[1:-1]]
        self._lock = Lock()
        self._batches: dict[int, pa.RecordBatch] = {}
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not pieces or size != pieces[-1].stop:
                    expected = pieces[-1].stop if pieces else 0
                    raise StorageError(f"{path} is damaged: {expected} bytes were written, and it has {size}")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._check(0)
            self._check(len(pieces) - 1)
            self._reader = pa.ipc.open_file(pa.py_buffer(self._map))
        except (pa.ArrowInvalid, OSError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error
        self.schema: pa.Schema = self._reader.schema

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, whose columns lie in the map.

        Raises:
            StorageError: it is not as it was written, or the file was cut since it was opened.
        """
        size = self._map.size()
        if size < len(self._map):
            raise StorageError(
                f"{self._path} was cut from {len(self._map)} to {size} bytes while it was being read: write files anew "
                "under another name, and rename them"
            )
        with self._lock:
            if number not in self._batches:
                self._check(number + 1)
                self._batches[number] = self._reader.get_batch(number)
            return self._batches[number]

    def _check(self, number: int) -> None:
        start = self._pieces[number - 1].stop if number else 0
        stop, expected, _ = self._pieces[number]
        if google_crc32c.value(np.frombuffer(self._map, np.uint8, stop - start, start)) != expected:
            raise StorageError(
                f"{self._path} is damaged: bytes {start} to {stop} are not those that were written. Bring it back from "
                "a copy, or remove it and write it again"
            )
