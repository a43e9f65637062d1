"""Files that are read in parts, local or with a protocol."""

import os
import tempfile
import threading
import weakref
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.formats.file_errors import changed, named_in_errors
from penstock.formats.opening import open_bytes
from penstock.formats.remote.parts import parts_of
from penstock.formats.remote.remote_files import RemoteBytes, open_remote
from penstock.formats.unchanged import UnchangedFile
from penstock.paths import has_protocol

Offsets = npt.NDArray[np.int64]

_LOCAL_GAP: Final = 1 << 12
_REMOTE_GAP: Final = 1 << 16
"""The most bytes between two parts that are read along with them, instead of by another call."""
_HEAD_BYTES: Final = 1 << 16
"""The first bytes of a remote file, which come when it is opened: all of a small one."""
_PIECE_BYTES: Final = 1 << 20


def open_ranges(name: str) -> "RangedFile":
    """A file of which parts can be read.

    Raises:
        StorageError: it cannot be opened.
        ModuleNotFoundError: the name has a protocol whose package is not installed.
    """
    return _RemoteFile(name) if has_protocol(name) else _LocalFile(name)


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
    is_held: bool = False
    """True if all of it is in memory."""
    _gap: int

    def read(self, begins: Offsets, ends: Offsets) -> bytes:
        """The bytes of some parts, which do not overlap and come in order, one after the other.

        Raises:
            StorageError: they cannot be read, or the file has changed.
        """
        if len(begins) <= 1:
            return b"".join(self._whole(begins.tolist(), ends.tolist()))
        apart = np.flatnonzero(begins[1:] - ends[:-1] > self._gap) + 1
        firsts, lasts = np.append(0, apart), np.append(apart, len(begins)) - 1
        pieces = self._whole(begins[firsts].tolist(), ends[lasts].tolist())
        if len(pieces) == len(begins):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if np.array_equal(begins[1:], ends[:-1]):
            return pieces[0]
        counts = lasts - firsts + 1
        shifts = np.repeat(begins[firsts], counts)
        numbers = np.repeat(np.arange(len(pieces)), counts)
        edges = zip(numbers.tolist(), (begins - shifts).tolist(), (ends - shifts).tolist())
        return b"".join([pieces[number][start:stop] for number, start, stop in edges])

    def _whole(self, begins: list[int], ends: list[int]) -> list[bytes]:
        with named_in_errors(self.name, "read"):
            pieces = self._pieces(begins, ends)
        if any(len(piece) != end - begin for piece, begin, end in zip(pieces, begins, ends, strict=True)):
            raise changed(self.name)
        return pieces

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        raise NotImplementedError


class _LocalFile(RangedFile):
    """Read by calls, not by a memory map: a call lets other threads run, and a file that is cut ends no process."""

    _gap = _LOCAL_GAP

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = UnchangedFile(name)
        self.size, self.version = self._file.size, self._file.version

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        pieces = [self._piece(begin, end - begin) for begin, end in zip(begins, ends)]
        self._file.check()
        return pieces

    def _piece(self, begin: int, length: int) -> bytes:
        piece = os.pread(self._file.descriptor, length, begin)
        while len(piece) < length and (
            more := os.pread(self._file.descriptor, length - len(piece), begin + len(piece))
        ):
            piece += more  # a call gives 2 GiB at most
        return piece


class UnpackedFile(RangedFile):
    """A compressed file, read from an unpacked copy among the temporary files, which is deleted when this is dropped.

    Raises:
        StorageError: it cannot be read, or is damaged.
    """

    _gap = _LOCAL_GAP

    def __init__(self, name: str, compression: str) -> None:
        self.name = name
        self._copy = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115  # it stays open
        weakref.finalize(self, self._copy.close)
        with closing(open_bytes(name, compression)) as packed, named_in_errors(name, "unpacked"):
            while piece := packed.read(_PIECE_BYTES):
                self._copy.write(piece)
            self._copy.flush()
        self.size = os.fstat(self._copy.fileno()).st_size
        self.version = f"{self.size} bytes"

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        return [os.pread(self._copy.fileno(), end - begin, begin) for begin, end in zip(begins, ends, strict=True)]


class _RemoteFile(RangedFile):
    """The parts of a call are requested at the same time. A part that begins where the last one ended is read ahead."""

    _gap = _REMOTE_GAP

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = open_remote(name, _HEAD_BYTES)
        self.size, self.version = self._file.size, self._file.version
        self.is_held = len(self._file.head) == self.size
        self._forward = RemoteBytes(self._file)
        self._lock = threading.Lock()
        self._end = 0

    def _pieces(self, begins: list[int], ends: list[int]) -> list[bytes]:
        with self._lock:
            forward, self._end = len(begins) == 1 and begins[0] == self._end, ends[-1]
            if forward:
                self._forward.seek(begins[0])
                return [self._forward.read_whole(ends[0] - begins[0])]
        return parts_of(self._file, begins, ends)
