"""Files that are opened: local or with a protocol, plain or compressed."""

import io
import os
import stat
from typing import Any, Final

from penstock.errors import StorageError
from penstock.formats.byte_reader import ByteReader, HeldBytes
from penstock.formats.compression import decompressed
from penstock.formats.file_errors import named_in_errors
from penstock.formats.remote.remote_files import SIZES, open_remote_bytes
from penstock.paths import has_protocol, local_path

_BUFFER_BYTES: Final = 1 << 16
SMALL_BYTES = 1 << 16
"""A local file of at most this size is read as a whole when it is opened."""


def open_file(name: str | os.PathLike[str]) -> io.BufferedReader:
    """A file for reading its bytes, like that of `open(name, "rb")`; with a protocol too, as "s3://bucket/name".

    It can be sought in, so functions that take an open file take it: `numpy.load`, `PIL.Image.open`, `zipfile.ZipFile`,
    `h5py.File`. A remote file that is read from front to back is fetched up to 32 MiB in advance.

    Raises:
        StorageError: it cannot be opened; later, it cannot be read, or has changed since it was opened.
        MissingExtraError: the package for its protocol is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import penstock as ps
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "poem.txt"
        >>> _ = path.write_text("rose")
        >>> with ps.files.open_file(path) as file:
        ...     file.read()
        b'rose'
    """
    given = os.fspath(name)
    with named_in_errors(given, "opened"):
        raw: Any = open_plain(given if has_protocol(given) else local_path(given))
    return io.BufferedReader(raw, _BUFFER_BYTES)


def open_plain(name: str) -> Any:
    """A file, opened for reading its bytes as they are.

    Raises:
        OSError: it cannot be opened.
        ModuleNotFoundError: the name has a protocol whose package is not installed.
    """
    return open_remote_bytes(name) if has_protocol(name) else io.FileIO(name)


def open_bytes(name: str, compression: str, file: Any = None) -> "ByteReader":
    """The bytes of a file, decompressed; of `file` where that was opened already, which its reader closes.

    Raises:
        StorageError: the file cannot be opened.
        ModuleNotFoundError: the name has a protocol whose package is not installed.
    """
    with named_in_errors(name, "opened"):
        if file is None:
            file = open_plain(name)
        if compression:
            return decompressed(name, file, compression)
        return _held(name, file) or ByteReader(name, file)


def _held(name: str, file: Any) -> "HeldBytes | None":
    """All bytes of a small local file, which is closed: this saves further reads and a finalizer."""
    if not isinstance(file, io.FileIO):
        return None
    try:
        size = file.seek(0, os.SEEK_END)
        content = os.pread(file.fileno(), size, 0) if size <= SMALL_BYTES else b""
    except OSError:
        return None  # its reader raises this again, with the file's name
    except BaseException:  # as by Ctrl-C
        file.close()
        raise
    if not content or len(content) < size:
        return None
    file.close()
    return HeldBytes(name, content)


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
        raise StorageError(
            f"{call}: {name!r} is a directory: name its files, as by the pattern {os.path.join(name, '**')!r}"
        )


def size_of(name: str) -> int:
    """The bytes of a file; -1 if finding them would take one more request, or if it is a directory."""
    if has_protocol(name):
        return SIZES.get(name, -1)
    try:
        found = os.stat(name)
        return -1 if stat.S_ISDIR(found.st_mode) else found.st_size
    except OSError:  # names of a format need not be files
        return -1
