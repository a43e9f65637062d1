"""Local files that must not change while they are read."""

import os
import weakref

from penstock.formats.file_errors import changed, named_in_errors


class UnchangedFile:
    """A descriptor of a file, by which changes are noticed, also while a library reads it. It is closed when dropped.

    A file that is replaced by another one under its name is no change: the descriptor still reads the old one.

    Attributes:
        descriptor: for reading its bytes.
        size: in bytes.
        version: differs when the file was written to.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        with named_in_errors(name, "opened"):
            self.descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.size, self.version = self._now()

    def check(self) -> None:
        """Refuse the bytes that were read since the last check, if the file was written to.

        Raises:
            StorageError: it was.
        """
        if self._now() != (self.size, self.version):
            raise changed(self._name)

    def _now(self) -> tuple[int, str]:
        found = os.fstat(self.descriptor)
        return found.st_size, f"{found.st_size} bytes, written at {found.st_mtime_ns}"
