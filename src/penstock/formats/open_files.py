"""Files that the datasets of a process keep open: those that were used last."""

import resource
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.formats.file_format import FileFormat
from penstock.formats.ranges import RangedFile, UnpackedFile
from penstock.paths import has_protocol

_DESCRIPTOR: Final = 4
"""The count of an open file for each descriptor that it has, of `_MOST`."""
_MOST: Final = 1 << 14
_PART: Final = 4
"""At most a fourth of the descriptors that a process may have is taken."""
REMOTE, _SMALL = 64, 1024
"""The most files that are open of those with much in memory, and of small ones that are in memory as a whole."""


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
    return _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit * _DESCRIPTOR // _PART)


def size_of(file: RangedFile) -> int:
    """The count of an open file."""
    if file.is_held:
        return share_of(_SMALL)
    return share_of(REMOTE) if has_protocol(file.name) or isinstance(file, UnpackedFile) else _DESCRIPTOR


def share_of(files: int, descriptors: int = 0) -> int:
    """The count of an open file that has this number of descriptors, if `files` like it may be open."""
    return max(1, descriptors * _DESCRIPTOR, _most() // files)


@dataclass(frozen=True)
class OpenRanges:
    """An open file of which parts are read.

    Attributes:
        file: the file.
    """

    file: RangedFile

    @property
    def open_size(self) -> int:
        """Its part of what may be open."""
        return size_of(self.file)


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
