"""Files as bytes, from front to back: local or with a protocol, plain or compressed."""

import errno
import fnmatch
import importlib
import io
import os
import stat
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.extras import load
from penstock.formats import remote
from penstock.formats.file_errors import named_in_errors
from penstock.formats.shared_listings import shared
from penstock.paths import has_protocol, local_path

lzma: Any
try:
    lzma = importlib.import_module("lzma")
except ImportError:  # Python can be built without it
    lzma = None

# What zlib calls window bits: they say which header and which checksum to expect.
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
_XZ = "XZ"
_ZSTD = "ZSTD"
_DAMAGE = (OSError, zlib.error) if lzma is None else (OSError, zlib.error, lzma.LZMAError)
_MAGIC = {b"\x1f\x8b": "GZIP", b"\xfd7zXZ\0": _XZ, b"\x28\xb5\x2f\xfd": _ZSTD}

SMALL_BYTES = 1 << 16
"""A local file of at most so many bytes is read as a whole when it is opened."""

_RAW_BYTES = 1 << 16
_EFFECTIVE = os.access in os.supports_effective_ids
_PIECE_BYTES = 1 << 20


def check_compression(
    call: str, compression_type: str | None, known: Sequence[str] = (*WINDOW_BITS, _XZ, _ZSTD)
) -> str:
    """The compression as "", or one of those known, which may be given in any case; None stands for "".

    Raises:
        InvalidArgumentError: anything else.
    """
    if compression_type is None:
        return ""
    name = str(compression_type).upper()
    if name not in ("", *known):
        *others, last = map(repr, ("", *known))
        raise InvalidArgumentError(
            f"{call}(compression_type=...) takes None, {', '.join(others)} or {last}, got {compression_type!r}"
        )
    return name


def compression_of(begin: bytes) -> str:
    """How the file is compressed that begins with these bytes, as `compression_type` says it; "" if it is not seen."""
    return next((kind for magic, kind in _MAGIC.items() if begin.startswith(magic)), "")


def is_pattern(name: str) -> bool:
    """Whether a name has signs of a pattern. In the address of a web page a question mark is none."""
    if name.startswith(("http://", "https://")):
        return "*" in name.partition("?")[0]
    return any(sign in name for sign in "*?[")


def matching_files(call: str, pattern: Any) -> list[str]:
    """The names of the files, not directories, that match a pattern or one of several: sorted, each once.

    A name that begins with a dot is hidden from `*`, as in a shell. For `**` each directory is gone into once, however
    many links lead to it.

    Raises:
        InvalidArgumentError: no file matches a pattern, or there is no pattern.
        InvalidTypeError: something else than patterns.
        StorageError: a directory cannot be listed: what is in it would be left out, and nothing would tell.
    """
    given = [pattern] if isinstance(pattern, (str, os.PathLike)) else pattern
    several = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, (str, os.PathLike)) for one in several):
        raise InvalidTypeError(f"{call} takes a pattern as a string or a path, or a list of them, got {pattern!r}")
    if not several:
        raise InvalidArgumentError(f"{call} takes at least one pattern, got none")
    return sorted({name for one in several for name in _matching(call, os.fspath(one))})


def _matching(call: str, pattern: str) -> list[str]:
    refused: list[OSError] = []
    if has_protocol(pattern):
        names = shared(pattern, lambda: remote.matching(pattern))
        if not any(part.startswith(".") for part in pattern.split("/")):
            names = [name for name in names if not is_hidden(name)]
    else:
        names = _local_matching(local_path(pattern), refused)
    if names and refused:
        raise not_listed(call, refused[0]) from refused[0]
    if not names:
        why = "" if has_protocol(pattern) else _why_nothing(local_path(pattern))
        raise InvalidArgumentError(f"{call}: no file matches {pattern!r}{why}")
    return names


def is_hidden(name: str) -> bool:
    """Whether a file, or a directory on the way to it, is one that begins with a dot, as `.DS_Store` and `._a.jpg`."""
    return any(part.startswith(".") and part.strip(".") for part in name.split("/"))


def _local_matching(pattern: str, refused: list[OSError]) -> list[str]:
    """The files that match a pattern; what the system refuses to list is added to `refused`."""
    *parts, last = pattern.split(os.sep)
    folders = [os.sep if parts[:1] == [""] else ""]
    if last == "**":
        parts, last = [*parts, "**"], "*"
    for part in filter(None, parts):
        if part == "**":
            folders = _all_below(folders, refused)
        elif is_pattern(part):
            folders = [f"{folder}{one.name}{os.sep}" for folder in folders for one in _listed(folder, part, refused)]
        else:
            folders = [f"{folder}{part}{os.sep}" for folder in folders]
    if not is_pattern(last):
        return [folder + last for folder in folders if os.path.isfile(folder + last)]
    found = [(folder + one.name, one) for folder in folders for one in _listed(folder, last, refused)]
    return [name for name, one in found if (os.path.isfile(name) if one.is_symlink() else one.is_file())]


def _all_below(folders: list[str], refused: list[OSError]) -> list[str]:
    """Directories and all within them, each once; by the name without links, where it has one."""
    found, seen = [], set[tuple[int, int]]()
    waiting, links = deque(folders), deque[str]()
    while waiting or links:
        folder = waiting.popleft() if waiting else links.popleft()
        with suppress(OSError):  # it is gone
            about = os.stat(folder or os.curdir)
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
        found.append(folder)
        for entry in _listed(folder, "*", refused):
            path = f"{folder}{entry.name}{os.sep}"
            if entry.is_symlink():
                links += [path] * os.path.isdir(path)
            elif entry.is_dir():
                waiting.append(path)
    return found


def _listed(folder: str, part: str, refused: list[OSError]) -> "list[os.DirEntry[str]]":
    """What in a directory matches a part of a pattern, by name."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # there is none: nothing is left out
            refused.append(error)
        return []
    shown = part.startswith(".")
    return [one for one in found if fnmatch.fnmatchcase(one.name, part) and (shown or not one.name.startswith("."))]


def not_listed(call: str, error: OSError) -> StorageError:
    """The error of a directory that the system does not list."""
    return StorageError(f"{call}: {error.filename!r} cannot be listed: {error.strerror or error}")


def _why_nothing(pattern: str) -> str:
    """Why a pattern of local files has found none."""
    if os.path.isdir(pattern):
        return f": it is a directory; {os.path.join(pattern, '*')!r} matches what is in it"
    folder = pattern if not is_pattern(pattern) else pattern[: min(map(pattern.find, filter(pattern.count, "*?[")))]
    for part in (os.path.dirname(folder), *map(str, Path(os.path.dirname(folder)).parents)):
        if os.path.isdir(part) and not os.access(part, os.R_OK | os.X_OK, effective_ids=_EFFECTIVE):
            return f": the permission to list {part!r} is missing"
    return f" (the current directory is {os.getcwd()!r})"


def check_exists(call: str, name: str) -> None:
    """Refuse a local name without a file; a name with a protocol is looked up only when it is read.

    Raises:
        StorageError: there is no file of that name, or it is a directory.
    """
    if has_protocol(name):
        return
    try:
        found = os.stat(name)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a name that cannot be one
        raise StorageError(f"{call}: there is no file {name!r} (the current directory is {os.getcwd()!r})") from None
    except OSError as error:
        raise StorageError(f"{call}: {name!r} cannot be opened: {error.strerror or error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise StorageError(f"{call}: {name!r} is a directory: name its files, for example by ps.Dataset.list_files")


def size_of(name: str) -> int:
    """The bytes of a file that was opened before; -1 where nothing has told, which one more request would."""
    if has_protocol(name):
        return remote.SIZES.get(name, -1)
    try:
        return os.stat(name).st_size
    except OSError:  # a format may name what is no file
        return -1


def open_bytes(name: str, compression: str, file: Any = None) -> "ByteReader":
    """The bytes of a file, decompressed; of `file` where that was opened already, which its reader closes.

    Raises:
        StorageError: the file cannot be opened.
        ModuleNotFoundError: the name has a protocol, and what reads it is not installed.
    """
    with named_in_errors(name, "opened"):
        if file is None:
            file = open_plain(name)
        if compression == _ZSTD:
            return DecompressedZstandard(name, file)
        if compression == _XZ and lzma is None:
            raise StorageError(f"{name!r} cannot be decompressed: this Python was built without its module lzma")
        if compression == _XZ:
            return DecompressedParts(name, file, lzma.LZMADecompressor)
        if compression:
            return DecompressedParts(name, file, partial(_ZlibPart, WINDOW_BITS[compression]))
        return _held(name, file) or ByteReader(name, file)


def _held(name: str, file: Any) -> "HeldBytes | None":
    """All bytes of a small local file, which is closed: neither more reads nor what closes it later are paid for."""
    if not isinstance(file, io.FileIO):
        return None
    try:
        size = file.seek(0, os.SEEK_END)
        content = os.pread(file.fileno(), size, 0) if size <= SMALL_BYTES else b""
    except OSError:
        return None  # its reader meets this again, and says so
    except BaseException:  # as by Ctrl-C
        file.close()
        raise
    if not content or len(content) < size:
        return None
    file.close()
    return HeldBytes(name, content)


def open_plain(name: str) -> Any:
    """A file, opened for reading its bytes as they are.

    Raises:
        OSError: it cannot be opened.
        ModuleNotFoundError: the name has a protocol, and what reads it is not installed.
    """
    return remote.open_file(name) if has_protocol(name) else io.FileIO(name)


class ByteReader:
    """The bytes of one file. The file is closed by `close`, or when its reader is dropped.

    Attributes:
        name: of the file.
        size: how many bytes it had when it was opened.
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


class Decompressed(ByteReader):
    """The decompressed bytes of one file.

    The pieces that are decompressed do not depend on `count`, so damage is always found at the same byte.
    """

    plain = False

    def __init__(self, name: str, file: Any) -> None:
        super().__init__(name, file)
        self._ready = b""
        self._end = 0

    def read(self, count: int) -> bytes:
        ready, self._ready = self._ready, b""
        return ready or self._next()

    def seek(self, offset: int) -> bool:
        while self._end < offset:
            self._ready = self._next()
            if not self._ready:
                return False
        self._ready = self._ready[len(self._ready) - (self._end - offset) :]
        return True

    def _next(self) -> bytes:
        """The next piece; nothing at the end."""
        try:
            piece = self._piece()
        except StorageError:
            raise
        except _DAMAGE as error:
            raise StorageError(
                f"{self.name!r} is damaged, or not compressed as compression_type says: {error}, "
                f"after {self._end} decompressed bytes"
            ) from error
        self._end += len(piece)
        return piece

    def _piece(self) -> bytes:
        raise NotImplementedError


class DecompressedParts(Decompressed):
    """A file of several compressed parts, one after the other.

    Args:
        begin: makes what decompresses a part, with the interface of `lzma.LZMADecompressor`.
    """

    def __init__(self, name: str, file: Any, begin: Callable[[], Any]) -> None:
        super().__init__(name, file)
        self._begin = begin
        self._part: Any = None
        self._parts = 0
        self._raw = b""

    def _piece(self) -> bytes:
        while True:
            wanting = self._part is None or self._part.needs_input
            raw, self._raw = self._raw or (ByteReader.read(self, _RAW_BYTES) if wanting else b""), b""
            if self._part is None:
                if not raw:
                    return b""
                raw = raw.lstrip(b"\0") if self._parts else raw  # the last part may be padded with zeros
                if not raw:
                    continue
                self._part = self._begin()
                self._parts += 1
            piece: bytes = self._part.decompress(raw, _PIECE_BYTES)
            if self._part.eof:
                self._raw, self._part = self._part.unused_data, None
            elif wanting and not raw and not piece:
                raise StorageError(f"{self.name!r} is truncated: it ends after {self._end} decompressed bytes")
            if piece:
                return piece


class _ZlibPart:
    """What decompresses a part by zlib."""

    def __init__(self, window_bits: int) -> None:
        self._inner = zlib.decompressobj(window_bits)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


class DecompressedZstandard(Decompressed):
    """The bytes of a Zstandard file, as Arrow decompresses them."""

    def __init__(self, name: str, file: Any) -> None:
        super().__init__(name, file)
        arrow = load("pyarrow", None, "Zstandard")
        self._stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")

    def _piece(self) -> bytes:
        piece: bytes = self._stream.read(_PIECE_BYTES)
        return piece
