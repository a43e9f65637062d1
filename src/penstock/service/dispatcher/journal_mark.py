"""The number of a journal's last entry, in a separate file, so that damage to the journal does not affect it.

SQLite silently ignores a damaged end of its write-ahead log, so the end of a journal could be lost unnoticed.
The file has two slots of equal size, written in turn, each with the journal's name, the number of an entry and a
checksum: whenever the process dies, at least one of them is whole. Nothing waits for the disk, as in the journal
itself: `docs/design/service-journal.md`.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

from penstock.errors import StorageError

FILE: Final = "journal.mark"

_SLOT: Final = struct.Struct("<16sQI")
"""The journal's name, the number of an entry, and a CRC-32 of both."""
_CHECKED: Final = _SLOT.size - 4
_SLOTS: Final = 2


class JournalMark:
    """Keeps the number of the last written entry beside a journal.

    Args:
        path: is made if need be.
        name: the journal's, of 16 bytes.

    Attributes:
        number: the number in the file; None if there was no file.

    Raises:
        StorageError: it is damaged, of another journal, or cannot be opened.
    """

    def __init__(self, path: Path, name: bytes) -> None:
        self._path = path
        self._name = name
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"the dispatcher cannot open {path}: {error}") from error
        try:
            self.number = self._read()
        except BaseException:
            os.close(self._file)
            raise

    def _read(self) -> int | None:
        content = os.pread(self._file, _SLOTS * _SLOT.size + 1, 0)
        if not content:
            return None
        whole = [
            (name, number)
            for start in range(0, len(content) - _SLOT.size + 1, _SLOT.size)
            for name, number, checksum in [_SLOT.unpack_from(content, start)]
            if zlib.crc32(content[start : start + _CHECKED]) == checksum
        ]
        if not whole or len(content) > _SLOTS * _SLOT.size:
            raise StorageError(
                f"{self._path} is damaged, so the end of the journal beside it cannot be checked: restore both from a "
                "copy, or choose another work_dir to start over. To continue with the journal as it is, remove the "
                "file: if the journal has lost its end, the elements read then are handed out again"
            )
        if any(name != self._name for name, _ in whole):
            raise StorageError(
                f"{self._path} belongs to another journal than the one beside it: restore both from the same copy, "
                "or choose another work_dir to start over"
            )
        return max(int(number) for _, number in whole)

    def write(self, number: int) -> None:
        """Note the number of an entry that was written.

        Raises:
            OSError: it cannot be written.
        """
        slot = self._name + number.to_bytes(8, "little")
        content = slot + zlib.crc32(slot).to_bytes(4, "little")
        os.pwrite(self._file, content, number % _SLOTS * _SLOT.size)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
