"""ArrayRecord files: records of bytes, of which those of a group are compressed together."""

import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from penstock.errors import StorageError
from penstock.extras import load
from penstock.formats.file_errors import by_library
from penstock.formats.file_format import Rows
from penstock.formats.open_files import REMOTE, OpenFileFormat, share_of
from penstock.formats.remote.remote_files import LocalCopy
from penstock.formats.unchanged import UnchangedFile
from penstock.paths import has_protocol
from penstock.spec import TensorSpec


@cache
def _library() -> Any:
    return load("array_record.python.array_record_module", "array-record", "ps.ArrayRecordDataset")


_OPTIONS = "readahead_buffer_size:0"  # the records that follow are not wanted


@dataclass
class _Records:
    reader: Any
    count: int
    group: int
    local: UnchangedFile
    copy: Any
    """Of a remote file, which is deleted with this."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def open_size(self) -> int:
        return share_of(2 * REMOTE if self.copy is None else REMOTE, 2)

    def __del__(self) -> None:
        self.reader.close()


class ArrayRecordFiles(OpenFileFormat[_Records]):
    """The records of ArrayRecord files as bytes."""

    def __init__(self) -> None:
        _ = _library().ArrayRecordReader  # or the error that names the missing package
        super().__init__()

    @property
    def memory(self) -> str:  # type: ignore[override]  # it depends on the files
        largest = max((records.group for records in self._files.values()), default=1)
        return "" if largest == 1 else f"a row at random decodes a group of {largest}: write group_size:1 for shuffling"

    def spec(self, name: str) -> Any:
        return TensorSpec((), object)

    def read(self, name: str, rows: Rows) -> Any:
        records = self.opened(name)
        try:
            with records.lock:
                if isinstance(rows, range):
                    found = records.reader.read(rows.start, rows.stop)
                else:
                    found = records.reader.read(rows.tolist())
            records.local.check()
        except Exception as error:
            records.local.check()  # an overwritten file may look damaged
            where = f"record {rows[0]}" if len(rows) == 1 else f"records {rows[0]} to {rows[-1]}"
            # A reader that has failed gives nothing more.
            self._files.discard(name)
            raise StorageError(f"{name!r}, {where}: {error}") from error
        return np.fromiter(found, object, len(found))

    def open(self, name: str) -> _Records:
        copy = LocalCopy(name) if has_protocol(name) else None  # the library reads local files alone
        local = UnchangedFile(name if copy is None else copy.path)
        with by_library(f"{name!r} cannot be read as an ArrayRecord file", StorageError):
            reader = _library().ArrayRecordReader(name if copy is None else copy.path, _OPTIONS)
            if not reader.ok():
                raise ValueError("it is damaged, cut, or another file")
        options = dict(option.partition(":")[::2] for option in reader.writer_options_string().split(","))
        return _Records(reader, reader.num_records(), int(options.get("group_size") or 1), local, copy)
