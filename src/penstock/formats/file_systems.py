"""Files whose protocol object_stores.py does not know, such as hf:// or memory://, through fsspec."""

import hashlib
from typing import Any

import fsspec

from penstock.errors import InvalidArgumentError, MissingExtraError, StorageError
from penstock.formats.remote_file import RemoteFile


class _SystemFile(RemoteFile):
    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self._system, self._path = file_system(name)
        about = self._system.info(self._path)
        if about.get("type") == "directory":
            raise StorageError(f"{name!r} is a directory: name its files, for example by ps.Dataset.list_files")
        self.size = int(about["size"])
        self.version = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()
        self.head = self._fetch(0, min(first, self.size)) if first and self.size else b""

    def _fetch(self, begin: int, end: int) -> Any:
        try:
            return self._system.cat_file(self._path, begin, end)
        except OSError as error:
            raise StorageError(f"{self.name!r} cannot be read: {error.strerror or error}") from error


def open_file(name: str, first: int) -> RemoteFile:
    """A file, and with `first` more than 0 its first bytes.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        OSError: it cannot be opened.
    """
    return _SystemFile(name, first)


def read_file(name: str) -> bytes:
    """All bytes of a file.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        OSError: it cannot be read.
    """
    system, path = file_system(name)
    content: bytes = system.cat_file(path)
    return content


def matching(pattern: str) -> list[str]:
    """The names of the files that match a pattern, each with its protocol.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
    """
    system, path = file_system(pattern)
    found = system.glob(path, detail=True)
    return [system.unstrip_protocol(name) for name, detail in found.items() if detail["type"] == "file"]


def file_system(name: str) -> tuple[Any, str]:
    """The file system of a name, and the name's path in it.

    Raises:
        InvalidArgumentError: fsspec does not know the protocol.
        MissingExtraError: the package that fsspec needs for the protocol is not installed.
    """
    try:
        system, path = fsspec.url_to_fs(name)
    except ValueError as error:
        raise InvalidArgumentError(f"{name!r} has a protocol that fsspec does not know: {error}") from error
    except ImportError as error:
        raise MissingExtraError(
            f"{name!r} needs a package that is not installed ({error}): pip install 'penstock[cloud]' brings those for "
            "s3:// and gs://",
            name=getattr(error.__cause__, "name", None),
        ) from error
    return system, path
