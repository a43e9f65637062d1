"""Files that the datasets of a process keep open: those that were used last."""

import resource
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.formats.file_format import FileFormat
from penstock.formats.ranges import RangedFile, UnpackedFile
from penstock.paths import has_protocol

DESCRIPTOR: Final = 4
"""The count of an open file for each descriptor that it has, of `_MOST`."""
LARGE: Final = 16
"""Its count if it may have much in memory, or a copy on disk."""
_SMALL: Final = 1
"""Its count if it is small and in memory, so that many can be kept: opening it is a request."""
_MOST: Final = 1024
_PART: Final = 4
"""At most a fourth of the descriptors that a process may have is taken."""


class OpenedFile(Protocol):
    """A file that is open."""

    @property
    def count(self) -> int:
        """The number of its rows."""

    @property
    def open_size(self) -> int:
        """Its part of what may be open."""


Opened = TypeVar("Opened", bound=OpenedFile)


def _most() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit * DESCRIPTOR // _PART)


def size_of(file: RangedFile) -> int:
    """The count of an open file."""
    if file.is_held:
        return _SMALL
    return LARGE if has_protocol(file.name) or isinstance(file, UnpackedFile) else DESCRIPTOR


class OpenFiles(DatasetCache[str, Opened]):
    """Files that are open. One is closed when it is dropped and no thread reads it."""

    bound = ProcessBound(_most, 0)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}

    def opened(self, name: str, open_file: Callable[[str], Opened]) -> Opened:
        """An open file, which `open_file` opens if it is not: once, where several threads ask for it."""
        found = self.get(name)
        if found is not None:
            return found
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        try:
            with opening:
                found = self.get(name)
                if found is None:
                    found = open_file(name)
                    self.put({name: found}, found.open_size)
                return found
        finally:
            self._opening.pop(name, None)


class OpenFileFormat(FileFormat, Generic[Opened]):
    """A format that keeps its files open."""

    def __init__(self) -> None:
        self._files = OpenFiles[Opened]()

    @abstractmethod
    def open(self, name: str) -> Opened:
        """Open a file.

        Raises:
            StorageError: it cannot be read, or is none of this format.
        """

    def opened(self, name: str) -> Opened:
        """A file that is open, or is opened; raises as `open`."""
        return self._files.opened(name, self.open)

    def count(self, name: str) -> int:
        return self.opened(name).count

    def prepare(self, name: str) -> None:
        self.opened(name)
