"""Local files that libraries read by themselves: whether one was written to meanwhile."""

import os
import weakref

from penstock.errors import StorageError
from penstock.formats.files import changed


class UnchangedFile:
    """A descriptor of a file that a library has opened too, by which changes are noticed. It is closed when dropped.

    A file that is replaced by another one under its name is no change: who has opened it reads the old one.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        try:
            self._file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{name!r} cannot be opened: {error.strerror or error}") from error
        weakref.finalize(self, os.close, self._file)
        self._written = self._now()

    def check(self) -> None:
        """Refuse what was read since the last check, if the file was written to.

        Raises:
            StorageError: it was.
        """
        if self._now() != self._written:
            raise changed(self._name)

    def _now(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns
