"""Files whose names have a protocol, such as "s3://bucket/name".

Object stores and web servers are read through obstore, and everything else through fsspec, which also replaces obstore
where that is not installed.
"""

import io
import os
import shutil
import tempfile
import weakref
from collections import deque
from concurrent.futures import Future
from functools import cache
from typing import Any, Final

from penstock.errors import MissingExtraError
from penstock.extras import Missing, load
from penstock.formats.file_errors import named_in_errors
from penstock.formats.remote.file_cache import DIRECTORY, cached
from penstock.formats.remote.parts import REQUEST_BYTES, RemoteFile, RequestedParts, ask, parts_of

HEAD_BYTES: Final = 1 << 18
"""The first bytes, which come when a file is opened to be read: all of a small one, by one request."""
_SMALLEST: Final = 1 << 18
AHEAD_BYTES: Final = 4 * REQUEST_BYTES
"""The most bytes of a file that are held and requested in advance while it is read from front to back."""
SIZES: Final[dict[str, int]] = {}
"""The bytes of the files that were opened last under these names."""

Bounds = tuple[int, int]
"""The offsets at which a part of a file begins and ends."""


@cache
def _stores() -> Any:
    return load("penstock.formats.remote.object_stores", "cloud", "reading files of object stores")


@cache
def _systems() -> Any:
    return load("penstock.formats.remote.file_systems", "cloud", "reading files with a protocol")


@cache
def _hub() -> Any:
    return load("penstock.formats.remote.hub", "hub", "reading files of Hugging Face's hub")


def _reads(name: str) -> Any:
    """The module that reads files of a name's protocol."""
    protocol = name.partition("://")[0]
    if not isinstance(_stores(), Missing) and protocol in _stores().PROTOCOLS:
        return _stores()
    if isinstance(_systems(), Missing):
        raise MissingExtraError(
            f"{name!r}: files with a protocol, such as s3:// or gs://, need obstore, and some protocols fsspec: "
            "pip install 'penstock-data[cloud]'",
            name="obstore" if isinstance(_stores(), Missing) else "fsspec",
        )
    return _systems()


def open_remote(name: str, first: int = 0) -> RemoteFile:
    """A file of which parts can be read; with `first` its first bytes come along.

    Raises:
        StorageError: it cannot be opened.
        InvalidArgumentError, MissingExtraError: its protocol is not known, or needs a package.
    """
    reads = _reads(name)
    keeps = DIRECTORY in os.environ
    with named_in_errors(name, "opened"):
        found: RemoteFile = reads.open_file(name, 0 if keeps else first)
    SIZES[name] = found.size
    return cached(found) if keeps else found


def open_remote_bytes(name: str) -> "RemoteBytes":
    """A file, opened for reading bytes; raises as `open_remote`."""
    return RemoteBytes(open_remote(name, HEAD_BYTES))


def read_remote_file(name: str) -> bytes:
    """All bytes of a file; raises as `open_remote`."""
    if DIRECTORY in os.environ:
        file = open_remote(name)
        return parts_of(file, [0], [file.size])[0]
    content: bytes = _reads(name).read_file(name)
    return content


class LocalCopy:
    """A copy of a remote file among the temporary files, deleted when this is dropped; raises as `open_remote`.

    Attributes:
        path: of the copy.
    """

    def __init__(self, name: str) -> None:
        with open_remote_bytes(name) as file:
            number, self.path = tempfile.mkstemp(prefix="penstock-")
            weakref.finalize(self, os.unlink, self.path)
            with os.fdopen(number, "wb") as copy:
                shutil.copyfileobj(file, copy, REQUEST_BYTES)


def matching_remote(pattern: str) -> list[str]:
    """The names of the files that match a pattern, each with its protocol; raises as `open_remote`.

    Names on Hugging Face's hub have their commit.
    """
    if pattern.startswith("hf://"):
        with named_in_errors(pattern, "found"):
            pattern = _hub().pinned(pattern)
    names: list[str] = _reads(pattern).matching(pattern)
    return names


def file_system(name: str) -> tuple[Any, str]:
    """The file system of fsspec for a name, and the name's path in it.

    Raises:
        InvalidArgumentError, MissingExtraError: fsspec, or its package for the protocol, is not installed.
    """
    found: tuple[Any, str] = _systems().file_system(name)
    return found


class RemoteBytes(io.RawIOBase):
    """A remote file with the interface of Python's files. A file that is read from front to back is read ahead.

    The bytes requested in advance double with each part that is read in order, in requests of up to 8 MiB; at most
    32 MiB are held. Reading elsewhere cancels these requests.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self.name = file.name
        self._file = file
        self._at = 0
        self._held: tuple[int, Any] = (0, memoryview(file.head))
        self._ahead: deque[tuple[int, int, Future[Any]]] = deque()
        self._window = _SMALLEST
        self._kept: dict[int, bytes] = {}
        self._coming: dict[int, RequestedParts] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence])
        return self._at

    def keep(self, now: list[list[Bounds]], next: list[list[Bounds]]) -> None:
        """Fetch parts at the same time, and keep them instead of those that were kept before.

        Args:
            now: the parts that are read now, in groups.
            next: groups that are requested in advance, for the next call.
        """
        self._kept = {}
        wanted = {group[0][0]: group for group in (*now, *next) if group}
        for begin in self._coming.keys() - wanted.keys():
            self._coming.pop(begin).cancel()
        for begin, group in wanted.items():
            if begin not in self._coming:
                self._coming[begin] = RequestedParts(self._file, *zip(*group, strict=True))
        for group in filter(None, now):
            found = self._coming.pop(group[0][0]).result()
            self._kept |= {begin: part for (begin, _), part in zip(group, found, strict=True)}

    def read_whole(self, count: int) -> bytes:
        """The next `count` bytes, or those up to the end."""
        pieces = []
        while count and (piece := self.read(count)):
            pieces.append(piece)
            count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as one part has; all that are left if `size` is negative."""
        if size < 0:
            return self.readall()
        want = min(size, self._file.size - self._at)
        if want <= 0:
            return b""
        begin, data = self._piece(want)
        found = bytes(data[self._at - begin : self._at - begin + want])
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read_whole(self._file.size - self._at)

    def readinto(self, room: Any) -> int:
        view = memoryview(room).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._forget()
        self.keep([], [])
        self._held = (0, b"")
        super().close()

    def _piece(self, want: int) -> tuple[int, Any]:
        """The offset of a part of the file that contains the next byte, and the part."""
        for begin, data in (self._held, *self._kept.items()):
            if begin <= self._at < begin + len(data):
                return begin, data
        in_order = self._at == self._held[0] + len(self._held[1])
        while self._ahead and self._ahead[0][0] != self._at:
            in_order = False
            self._ahead.popleft()[2].cancel()
        if not in_order:
            self._forget()
        self._fill(want, in_order)
        begin, _, future = self._ahead.popleft()
        self._held = begin, future.result()
        if in_order:
            self._window = min(2 * self._window, AHEAD_BYTES - 2 * REQUEST_BYTES)
            self._fill(0, in_order)
        return self._held

    def _fill(self, want: int, in_order: bool) -> None:
        """Request the next bytes, in advance too if the file is read in order."""
        at = self._ahead[-1][1] if self._ahead else max(self._at, self._held[0] + len(self._held[1]) if not want else 0)
        first = self._ahead[0][0] if self._ahead else at
        while at < self._file.size and (not self._ahead or (in_order and at - first < self._window)):
            size = max(_SMALLEST, min(self._window // 2, REQUEST_BYTES), min(want, REQUEST_BYTES))
            end = min(self._file.size, at + size)
            self._ahead.append((at, end, ask(self._file.part, at, end)))
            at = end

    def _forget(self) -> None:
        for *_, future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._window = _SMALLEST
