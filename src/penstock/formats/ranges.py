"""Files of which parts are read, local or with a protocol."""

import hashlib
import os
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock import formats
from penstock.errors import StorageError
from penstock.formats.files import has_protocol

Offsets = npt.NDArray[np.int64]

_LOCAL_GAP: Final = 1 << 12
_REMOTE_GAP: Final = 1 << 16
"""What lies between two parts is read along with them, up to this many bytes, in place of a further call."""


def open_ranges(name: str) -> "RangedFile":
    """A file of which parts can be read.

    Raises:
        StorageError: it cannot be opened.
        ModuleNotFoundError: the name has a protocol, and fsspec is not installed.
    """
    try:
        return _RemoteFile(name) if has_protocol(name) else _LocalFile(name)
    except OSError as error:
        raise StorageError(f"{name!r} cannot be opened: {error.strerror or error}") from error


class RangedFile:
    """A file that stays as it was when it was opened, or reading it fails. It is closed when it is dropped.

    Attributes:
        name: of the file.
        version: differs when the file is another one, or was written to.
        size: in bytes.
    """

    name: str
    version: str
    size: int
    _gap: int

    def read(self, begins: Offsets, ends: Offsets) -> bytes:
        """The bytes of some parts, which do not overlap and come in order, one after the other.

        Raises:
            StorageError: they cannot be read, or the file has changed.
        """
        if not len(begins):
            return b""
        apart = np.flatnonzero(begins[1:] - ends[:-1] > self._gap) + 1
        firsts, lasts = np.append(0, apart), np.append(apart, len(begins)) - 1
        try:
            pieces = self._pieces(begins[firsts].tolist(), ends[lasts].tolist())
        except OSError as error:
            raise StorageError(f"{self.name!r} cannot be read: {error.strerror or error}") from error
        if self._changed() or [len(piece) for piece in pieces] != (ends[lasts] - begins[firsts]).tolist():
            raise StorageError(
                f"{self.name!r} has changed since the dataset was made: write files anew under another name, and make "
                "the dataset again"
            )
        if len(pieces) == len(begins):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if np.array_equal(begins[1:], ends[:-1]):
            return pieces[0]
        counts = lasts - firsts + 1
        shifts = np.repeat(begins[firsts], counts)
        numbers = np.repeat(np.arange(len(pieces)), counts)
        places = zip(numbers.tolist(), (begins - shifts).tolist(), (ends - shifts).tolist())
        return b"".join([pieces[number][start:stop] for number, start, stop in places])

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        raise NotImplementedError

    def _changed(self) -> bool:
        return False


class _LocalFile(RangedFile):
    """Read by calls, not by a memory map: a call lets other threads run, and a file that is cut ends no process."""

    _gap = _LOCAL_GAP

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.size = os.fstat(self._file).st_size
        self.version = self._now()

    def _now(self) -> str:
        found = os.fstat(self._file)
        return f"{found.st_size} bytes, written at {found.st_mtime_ns}"

    def _changed(self) -> bool:
        return self._now() != self.version

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        return [self._piece(begin, end) for begin, end in zip(begins, ends)]

    def _piece(self, begin: int, end: int) -> bytes:
        piece = os.pread(self._file, end - begin, begin)
        while len(piece) < end - begin and (more := os.pread(self._file, end - begin - len(piece), begin + len(piece))):
            piece += more  # a call gives 2 GiB at most
        return piece


class _RemoteFile(RangedFile):
    """The parts of a call are asked for together, which file systems of object stores do at the same time."""

    _gap = _REMOTE_GAP

    def __init__(self, name: str) -> None:
        self.name = name
        self._system, self._path = formats.remote.file_system(name)
        about = self._system.info(self._path)
        self.size = int(about["size"])
        self.version = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        pieces: list[bytes] = self._system.cat_ranges([self._path] * len(begins), begins, ends, on_error="raise")
        return pieces
