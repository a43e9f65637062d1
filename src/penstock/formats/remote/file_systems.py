"""Files whose protocol object_stores.py does not know, such as hf:// or memory://, through fsspec.

Its file systems have clients of many kinds, of which few send a request again that has failed. So that is done here.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import fsspec

from penstock.errors import InvalidArgumentError, MissingExtraError, PenstockError, StorageError
from penstock.formats.file_errors import changed, first_line
from penstock.formats.remote import retries
from penstock.formats.remote.parts import RemoteFile

_BROKEN: Final = {
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("azure", "ServiceRequestError"),
    ("azure", "ServiceResponseError"),
    ("botocore", "HTTPClientError"),
    ("httpx", "TransportError"),
    ("httpx2", "TransportError"),
    ("requests", "ChunkedEncodingError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
}
"""The clients' errors for a connection that breaks or cannot be made, each with its package."""

_MARKS: Final = frozenset((
    "checksum", "contenthash", "contentmd5", "crc32c", "digest", "etag", "md5", "md5hash",
    "oid", "blobid", "sha", "generation", "version", "versionid", "size",
    "created", "lastmodified", "modificationtime", "modified", "modify", "mtime", "servermodified", "updated",
))  # fmt: skip
"""The names of signs of a version in file systems, in small letters without "_" and "-"."""

_SEPARATORS: Final = re.compile("[-_]")

Result = TypeVar("Result")


class _SystemFile(RemoteFile):
    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self._system, self._path = file_system(name)
        about = _asked(name, lambda: self._system.info(self._path))
        if about.get("type") == "directory":
            raise StorageError(
                f"{name!r} is a directory: name its files, as by the pattern {os.path.join(name, '**')!r}"
            )
        self.size = int(about["size"])
        self._marks = _marks(about)
        self.version = hashlib.sha256(repr(sorted(self._marks.items())).encode()).hexdigest()
        self.head = self._sent(0, min(first, self.size)) if first and self.size else b""

    def _fetch(self, begin: int, end: int) -> Any:
        found = self._sent(begin, end)
        # Requests cannot name a version. These bytes are of the file that was opened if that is still there.
        now = _asked(self.name, self._marks_now)
        if any(now.get(name, mark) != mark for name, mark in self._marks.items()):
            raise changed(self.name)
        return found

    def _sent(self, begin: int, end: int) -> Any:
        return _asked(self.name, lambda: self._system.cat_file(self._path, start=begin, end=end))

    def _marks_now(self) -> dict[str, str]:
        if getattr(self._system, "dircache", None):  # listings that were kept
            self._system.invalidate_cache(self._path.rpartition("/")[0])
        return _marks(self._system.info(self._path))


def _marks(about: Mapping[str, Any]) -> dict[str, str]:
    """The facts about a file that change when it is written again; times of access change by reading, too."""
    return {name: str(value) for name, value in about.items() if _SEPARATORS.sub("", name.lower()) in _MARKS}


def open_file(name: str, first: int) -> RemoteFile:
    """A file, and with `first` more than 0 its first bytes.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        StorageError: it cannot be opened.
    """
    return _SystemFile(name, first)


def read_file(name: str) -> bytes:
    """All bytes of a file.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        StorageError: it cannot be read.
    """
    system, path = file_system(name)
    content: bytes = _asked(name, lambda: system.cat_file(path))
    return content


def matching(pattern: str) -> list[str]:
    """The names of the files that match a pattern, each with its protocol.

    Raises:
        InvalidArgumentError, MissingExtraError: as `file_system`.
        StorageError: the files cannot be listed.
    """
    system, path = file_system(pattern)
    found = _asked(pattern, lambda: system.glob(path, detail=True), "listed")
    names = [name for name, detail in found.items() if detail["type"] == "file"]
    # The text around the path, such as a host, belongs to every name, and few file systems give it back.
    begin, inside, end = pattern.rpartition(path)
    return [f"{begin}{name}{end}" if inside else system.unstrip_protocol(name) for name in names]


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
            f"{name!r} needs a package that is not installed ({error}): pip install 'penstock-data[cloud]' brings "
            "those for s3://, gs://, az:// and http://",
            name=getattr(error.__cause__, "name", None),
        ) from error
    return system, path


def _asked(name: str, request: Callable[[], Result], done: str = "read") -> Result:
    """Return the result of a request, which is sent again after temporary faults.

    Raises:
        StorageError: instead of the errors of clients, which have no class in common.
    """
    try:
        return retries.with_retries(
            request,
            _delays_after,
            lambda found: len(found) if isinstance(found, bytes) else 0,
            lambda error: _seconds_asked(_faults(error)),
        )
    except PenstockError:
        raise
    except Exception as error:
        faults = _faults(error)
        status, last = _answer(faults), f"{type(faults[-1]).__name__}: {first_line(faults[-1])}"
        if any(map(_is_broken, faults)):
            what = last
        elif isinstance(error, PermissionError) or status in (401, 403):
            what = f"access is refused ({last}). Credentials are those of fsspec's package for the protocol"
        elif status is not None and status != 404:
            seconds = _seconds_asked(faults)
            what = f"the server answers {status} ({last})"
            what += f" and asks to wait for {seconds:.0f} s" if seconds else ""
        elif isinstance(error, FileNotFoundError) or status == 404:
            what = "there is no such file. Names are exact; a pattern such as '.../*' lists what there is"
        else:
            what = last
        raise StorageError(f"{name!r} cannot be {done}: {what}") from error


def _delays_after(error: Exception) -> Sequence[float]:
    """Return the seconds to wait between requests that fail in this way; none if the fault is permanent."""
    faults = _faults(error)
    if any(map(_is_broken, faults)):
        return retries.BROKEN_DELAYS
    return retries.BUSY_DELAYS if _answer(faults) in retries.BUSY else ()


def _faults(error: BaseException) -> list[BaseException]:
    """An error and its causes: some file systems report any fault as a missing file."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found


def _answer(faults: Sequence[BaseException]) -> int | None:
    """Return the HTTP status of the server's answer, if that was a refusal."""
    numbers = (str(status) for status, _ in map(_status_and_headers, faults))
    return next((int(number) for number in numbers if number.isdigit() and 400 <= int(number) < 600), None)


def _seconds_asked(faults: Sequence[BaseException]) -> float:
    """Return the seconds that the server asks to wait; 0 if it does not."""
    given = (retries.seconds_asked(headers) for _, headers in map(_status_and_headers, faults) if headers)
    return next(filter(None, given), 0.0)


def _status_and_headers(fault: BaseException) -> tuple[Any, Any]:
    """Return the status and the headers of the server's answer that a client's error holds."""
    response: Any = getattr(fault, "response", None)
    if isinstance(response, dict):  # of botocore
        about = response.get("ResponseMetadata", {})
        return about.get("HTTPStatusCode"), about.get("HTTPHeaders")
    places = ((response, "status_code"), (fault, "status"), (fault, "status_code"), (fault, "code"))
    status = next((number for owner, place in places if (number := getattr(owner, place, None))), None)
    return status, getattr(response, "headers", None) or getattr(fault, "headers", None)


def _is_broken(fault: BaseException) -> bool:
    """True if a connection broke or could not be made."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(fault).__mro__}
    return isinstance(fault, (ConnectionError, TimeoutError)) or not names.isdisjoint(_BROKEN)
