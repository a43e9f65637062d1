"""A cache of the bytes of remote files in a directory of this machine, for the next epoch, run or process.

Files are kept in pieces of one MiB, by the file's name and version. Each piece is a separate file, which begins with
the checksum of the rest. It is written under another name and renamed, so processes that share a directory see it
complete or not at all, and a process that was killed has lost only the pieces that it was writing. Pieces used least
recently are deleted where there are too many.
"""

import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final

import google_crc32c

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.remote.parts import RemoteFile
from penstock.paths import local_path
from penstock.printing import in_bytes

DIRECTORY: Final = "PENSTOCK_FILE_CACHE"
LIMIT: Final = "PENSTOCK_FILE_CACHE_BYTES"
PIECE_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 64 * PIECE_BYTES
_CHECKSUM_BYTES: Final = 4
_WRITING: Final = ".writing"
_OLD_SECONDS: Final = 3600
_logger = logging.getLogger(__name__)


def cache_remote_files(directory: str | os.PathLike[str] | None, max_bytes: int | None = None) -> None:
    """Keep the bytes that are read of remote files in a directory of this machine, and read them from there again.

    It holds for this process and those that it starts, whatever reads the files: datasets, a `shuffle` above them, data
    workers. On other machines set the variables `PENSTOCK_FILE_CACHE` and `PENSTOCK_FILE_CACHE_BYTES` instead. Several
    processes can share the directory. A file that has changed is fetched again: each time one is opened, its server is
    asked for its version.

    Args:
        directory: which is made if need be; None keeps no more files.
        max_bytes: about the most bytes that are kept, at least 64 MiB; those used least recently are deleted. None is
            no limit.

    Raises:
        InvalidArgumentError: too low a limit.
        StorageError: the directory cannot be made, or written to.

    Example:
        >>> import penstock as ps
        >>> ps.files.cache_remote_files("/mnt/disk/cache", max_bytes=200 * 10**9)  # doctest: +SKIP
        >>> dataset = ps.ParquetDataset("s3://bucket/train/*.parquet").shuffle(seed=1)  # doctest: +SKIP
    """
    if directory is None:
        for name in (DIRECTORY, LIMIT):
            os.environ.pop(name, None)
        return
    if max_bytes is not None and max_bytes < _LEAST_BYTES:
        raise InvalidArgumentError(
            f"cache_remote_files(max_bytes=...) takes at least {in_bytes(_LEAST_BYTES)}, got {max_bytes}"
        )
    path = os.path.abspath(local_path(directory))
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise StorageError(f"cache_remote_files: {path!r} cannot be written: {error.strerror or error}") from error
    os.environ[DIRECTORY] = path
    os.environ.pop(LIMIT, None)
    if max_bytes is not None:
        os.environ[LIMIT] = str(max_bytes)


def cached(file: RemoteFile) -> RemoteFile:
    """A file whose parts come from the directory where they are there."""
    return _CachedFile(file, _cache(os.environ[DIRECTORY], int(os.environ.get(LIMIT) or 0)))


class _Cache:
    """A directory of pieces; a limit of 0 is none."""

    def __init__(self, directory: str, limit: int) -> None:
        self._directory = Path(directory)
        self._limit = limit
        self._lock = threading.Lock()
        self._unseen = limit
        """The bytes that this process has written since it last looked at the directory."""

    def read(self, key: str, number: int, begin: int, end: int, checked: bool) -> bytes | None:
        """Bytes of a piece; None where it is not there, or damaged. All of it is checked unless that was done."""
        path = self._path(key, number)
        try:
            with path.open("rb", buffering=0) as file:
                if checked:
                    return os.pread(file.fileno(), end - begin, _CHECKSUM_BYTES + begin)
                content = file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        data = content[_CHECKSUM_BYTES:]
        if google_crc32c.value(data).to_bytes(_CHECKSUM_BYTES, "big") != content[:_CHECKSUM_BYTES]:
            _logger.warning("%s is damaged: it is fetched again", path)
            return None
        return data[begin:end]

    def write(self, key: str, number: int, data: bytes) -> None:
        """Keep a piece."""
        path = self._path(key, number)
        work = None
        try:
            self._make_room(len(data))
            path.parent.mkdir(exist_ok=True, parents=True)
            descriptor, work = tempfile.mkstemp(dir=path.parent, suffix=_WRITING)
            with os.fdopen(descriptor, "wb") as file:
                file.write(google_crc32c.value(data).to_bytes(_CHECKSUM_BYTES, "big"))
                file.write(data)
            os.replace(work, path)
        except OSError as error:
            if work is not None:
                with suppress(OSError):
                    os.unlink(work)
            _complain(str(self._directory), error.strerror or str(error))

    def _path(self, key: str, number: int) -> Path:
        return self._directory / key[:2] / f"{key}-{number}"

    def _make_room(self, size: int) -> None:
        """Delete the pieces used least recently, where there are too many; looked at after each 20th of the limit."""
        if not self._limit:
            return
        with self._lock:
            self._unseen += size
            if self._unseen < self._limit // 20:
                return
            self._unseen = 0
            found = sorted(self._pieces())
            held = sum(length for _, length, _ in found)
            for _, length, path in found:
                if held <= self._limit * 9 // 10:
                    break
                with suppress(OSError):
                    os.unlink(path)
                held -= length

    def _pieces(self) -> Iterator[tuple[float, int, str]]:
        """When each piece was last used, its length and its path. What a process that was killed left goes first."""
        for folder in os.scandir(self._directory):
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                with suppress(OSError):
                    found = entry.stat()
                    abandoned = entry.name.endswith(_WRITING) and found.st_mtime < time.time() - _OLD_SECONDS
                    if abandoned or not entry.name.endswith(_WRITING):
                        yield 0.0 if abandoned else found.st_mtime, found.st_size, entry.path


class _CachedFile(RemoteFile):
    def __init__(self, file: RemoteFile, pieces: _Cache) -> None:
        self.name, self.size, self.version = file.name, file.size, file.version
        self._file = file
        self._pieces = pieces
        self._key = hashlib.sha256(f"{file.version} of {file.name}".encode(errors="surrogateescape")).hexdigest()[:40]
        self._lock = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}
        self._checked: set[int] = set()

    def _fetch(self, begin: int, end: int) -> bytes:
        numbers = range(begin // PIECE_BYTES, -(-end // PIECE_BYTES))
        found = {}
        with ExitStack() as stack:  # of several threads that want a piece one fetches it
            for number in numbers:
                stack.enter_context(self._lock_of(number))
            for number in numbers:
                found[number] = self._read(number, begin, end)
            missing = [number for number in numbers if found[number] is None]
            for _, group in groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
                run = [number for _, number in group]
                data = self._fetch_pieces(run)
                for number, piece in zip(run, data):
                    first = number * PIECE_BYTES
                    found[number] = piece[max(0, begin - first) : end - first]
        return b"".join(part for part in found.values() if part is not None)

    def _read(self, number: int, begin: int, end: int) -> bytes | None:
        first = number * PIECE_BYTES
        begin, end = max(0, begin - first), min(PIECE_BYTES, end - first)
        part = self._pieces.read(self._key, number, begin, end, number in self._checked)
        if part is None or len(part) != end - begin:
            self._checked.discard(number)
            return None
        self._checked.add(number)
        return part

    def _fetch_pieces(self, run: list[int]) -> list[bytes]:
        """Neighbouring pieces from the server, which are then kept."""
        start, stop = run[0] * PIECE_BYTES, min((run[-1] + 1) * PIECE_BYTES, self.size)
        data = bytes(self._file.part(start, stop))
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        for number, piece in zip(run, pieces, strict=True):
            self._pieces.write(self._key, number, piece)
        return pieces

    def _lock_of(self, number: int) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(number, threading.Lock())


@cache
def _cache(directory: str, limit: int) -> _Cache:
    return _Cache(directory, limit)


@cache
def _complain(directory: str, problem: str) -> None:
    """Warn once that nothing more can be kept: reading continues without the cache."""
    _logger.warning("remote files cannot be kept in %s: %s", directory, problem)
