"""Datasets saved in penstock's own format, in files of rows."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.formats.decoded_rows import bytes_of, joined
from penstock.formats.writing.leaves import Columns, Leaves
from penstock.formats.writing.row_files import RowFileWriter
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure

_RECORD_BYTES: Final = 4 << 20
_RECORD_SECONDS: Final = 1.0
"""A record ends at whichever limit comes first: who waits for the writer sees that the file grows."""


class RowShards(ShardWriter):
    """Files that are read by memory map. Checksums cover every byte. They can hold every kind of element."""

    ending = "rows"

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self.leaves = Leaves(lambda column: "any")
        self._pending: list[Columns] = []
        self._pending_bytes = 0
        self._pending_kind: Any = None
        self._flushed = time.monotonic()

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        kind = structure, [(column.dtype, column.shape[1:]) for column in columns]
        if kind != self._pending_kind:
            self._flush()
            self._pending_kind = kind
        self._pending.append(columns)
        self._pending_bytes += bytes_of(columns)
        if self._pending_bytes >= _RECORD_BYTES or time.monotonic() - self._flushed > _RECORD_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._file = self._file or RowFileWriter(self.path)
            columns = tuple(map(joined, zip(*self._pending, strict=True)))
            self._file.append(columns, self._pending_kind[0])
        self._pending, self._pending_bytes = [], 0
        self._flushed = time.monotonic()

    def _end(self) -> list[str]:
        self._flush()
        return []
