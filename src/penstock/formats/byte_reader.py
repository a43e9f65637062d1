"""The bytes of one file, from front to back."""

import os
import weakref
from typing import Any

from penstock.errors import StorageError
from penstock.formats.file_errors import named_in_errors


class ByteReader:
    """The bytes of one file. The file is closed by `close`, or when its reader is dropped.

    Attributes:
        name: of the file.
        size: the number of bytes that it had when it was opened.
        plain: whether these are the bytes of the file as it is stored.
    """

    plain = True

    def __init__(self, name: str, file: Any) -> None:
        self.name = name
        self._file = file
        self._finalizer = weakref.finalize(self, file.close)
        self.size: int = file.seek(0, os.SEEK_END)
        file.seek(0)

    def read(self, count: int) -> bytes:
        """The next bytes: at least one, and about `count`; none at the end.

        Raises:
            StorageError: they cannot be read, or the file has become shorter since it was opened.
        """
        with named_in_errors(self.name, "read"):
            piece: bytes = self._file.read(count)
            end = self.size if piece else self._file.tell()
        if end < self.size:
            raise StorageError(
                f"{self.name!r} was cut off while it was read: it had {self.size} bytes, and ends after {end}"
            )
        return piece

    def seek(self, offset: int) -> bool:
        """Go forward to `offset`; False if there are fewer bytes.

        Raises:
            StorageError: the bytes before cannot be read.
        """
        if offset <= self.size:
            self._file.seek(offset)
        return offset <= self.size

    def close(self) -> None:
        """Close the file. May be called again."""
        self._finalizer()


class HeldBytes(ByteReader):
    """Bytes of a file that are in memory."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.size = len(content)
        self._content = content
        self._at = 0

    def read(self, count: int) -> bytes:
        begin, self._at = self._at, self.size
        return self._content[begin:]

    def seek(self, offset: int) -> bool:
        self._at = min(offset, self.size)
        return offset <= self.size

    def close(self) -> None:
        pass
