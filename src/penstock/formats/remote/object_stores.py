"""Files of object stores and web servers: s3://, gs://, az://, http:// and https://, through obstore.

obstore repeats a request that the server refuses for the moment (429 and 5xx) or that breaks off, after a growing
random delay, and asks for the rest only. That takes about two seconds altogether; servers that are too busy for longer
are asked again here. obstore does not pass on how long they ask to wait (`Retry-After`). Credentials, regions and
addresses come from the environment, by the names that the stores' own tools use; credentials also from a function that
the environment names.
"""

import importlib
import logging
import os
import random
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import obstore
import obstore.store
from obstore import exceptions

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.file_errors import by_library, changed, first_line
from penstock.formats.remote import retries
from penstock.formats.remote.file_cache import DIRECTORY
from penstock.formats.remote.parts import RemoteFile
from penstock.printing import in_bytes

PROTOCOLS: Final = ("s3", "gs", "az", "http", "https")
_WEB: Final = ("http", "https")
CREDENTIALS: Final = "PENSTOCK_CREDENTIALS"
"""The variable that names a function that gives credentials, as "package.module:function"."""
_AGAIN_SECONDS: Final = (5.0, 15.0)
"""After how long a function that has failed is called again: at random, since many processes call theirs."""
_EARLY: Final = timedelta(minutes=5)
"""How long before they expire new credentials are asked for, and how long obstore uses some without asking for them."""
_RENEWED_DELAYS: Final = (0.4,)
"""The seconds before a refused request is sent again: obstore asks for credentials once in a tenth of a second."""
_REFUSED: Final = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_SETTINGS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""The first letters of the environment variables that a kind of store reads."""
_RETRIES: Any = {
    "max_retries": 8,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2},
    "retry_timeout": timedelta(minutes=3),
}
_STATUS: Final = re.compile(r"status code: (\d+)")
"""The server's answer in the messages of obstore's errors."""
_PATTERN_SIGNS: Final = re.compile(r"[*?\[]")
"""In patterns of names "/" separates parts, and nothing else is a folder."""
_ABSENT: Final = "status code: 404"
_TIMES: Any = {"timeout": timedelta(minutes=5), "read_timeout": timedelta(seconds=30)}
"""Many requests that share a slow connection take long; one without any data is given up."""
WHOLE_BYTES: Final = 1 << 25
"""Of a server that sends no parts, files up to this size are held in memory."""
_COPIED_BYTES: Final = 1 << 20
_NAMES: Final = 1000
"""How many names come at a time."""

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_stores: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()
_process = os.getpid()


class _ObjectFile(RemoteFile):
    def __init__(self, name: str, store: Any, path: str, about: Any, head: bytes) -> None:
        self.name, self._store, self._path = name, store, path
        self.size, self.version, self.head = about["size"], _version(about), head
        self._tag = about["e_tag"]

    def _fetch(self, begin: int, end: int) -> Any:
        options: Any = {"range": (begin, end)}
        if self._tag and not self._tag.startswith("W/"):
            options["if_match"] = self._tag
        with reading(self.name):
            found = _retried(self._store, lambda: obstore.get(self._store, self._path, options=options))
            if _version(found.meta) != self.version:
                raise changed(self.name)
            return memoryview(found.bytes())


class _WholeFile(RemoteFile):
    """A file that its server sends as a whole, when a part of it is first needed.

    It is held in memory, or if it is large in a nameless file of this machine's disk.
    """

    def __init__(self, name: str, store: Any, path: str, about: Any) -> None:
        self.name, self.version, self.size = name, _version(about), about["size"]
        self._store, self._path = store, path
        self._lock = threading.Lock()
        self._received = False
        self._copy: int | None = None

    def receive(self, found: Any) -> None:
        """Take the content that the server sends.

        Raises:
            StorageError: it is another file than was opened, or does not fit on the disk.
        """
        if _version(found.meta) != self.version:
            raise changed(self.name)
        if self.size > WHOLE_BYTES:
            self._copy = self._copied(found)
        else:
            self.head = bytes(found.bytes())
        self._received = True

    def _fetch(self, begin: int, end: int) -> Any:
        with self._lock, reading(self.name):
            if not self._received:
                self.receive(_retried(self._store, lambda: obstore.get(self._store, self._path)))
        return memoryview(self.head)[begin:end] if self._copy is None else os.pread(self._copy, end - begin, begin)

    def _copied(self, found: Any) -> int:
        folder = os.environ.get(DIRECTORY) or tempfile.gettempdir()
        try:
            number, place = tempfile.mkstemp(dir=folder)
            weakref.finalize(self, os.close, number)
            os.unlink(place)
            with os.fdopen(number, "wb", closefd=False) as copy:
                for piece in found.stream(_COPIED_BYTES):
                    copy.write(piece)
        except OSError as error:
            raise StorageError(
                f"{self.name!r}, of {in_bytes(self.size)}, cannot be copied to {folder!r}: {error.strerror or error}. "
                "A copy is needed: its server sends no parts of files; "
                "ps.files.cache_remote_files(directory) chooses a disk"
            ) from error
        return number


def open_file(name: str, first: int) -> RemoteFile:
    """A file, and with `first` more than 0 its first bytes, by one request.

    Raises:
        StorageError: it cannot be opened.
    """
    store, path = _store_of(name)
    with reading(name):
        if not first and name.partition("://")[0] not in _WEB:  # a signed address may be good for GET alone
            return _ObjectFile(name, store, path, _retried(store, lambda: obstore.head(store, path)), b"")
        try:
            found = _retried(store, lambda: obstore.get(store, path, options={"range": (0, max(first, 1))}))
            return _ObjectFile(name, store, path, found.meta, bytes(found.bytes()))
        except (exceptions.GenericError, exceptions.NotSupportedError) as error:  # an empty file has no first bytes
            if _is_busy(error):
                raise
            found = _retried(store, lambda: obstore.get(store, path))
            whole = _WholeFile(name, store, path, found.meta)
            if first:  # otherwise a cache may have the content
                whole.receive(found)
            return whole


def read_file(name: str) -> bytes:
    """All bytes of a file, by one request.

    Raises:
        StorageError: it cannot be read.
    """
    store, path = _store_of(name)
    with reading(name):
        return bytes(_retried(store, lambda: obstore.get(store, path)).bytes())


def matching(pattern: str) -> list[str]:
    """The names of the files that match a pattern.

    Raises:
        InvalidArgumentError: the protocol has no listing.
        StorageError: the files cannot be listed.
    """
    protocol, _, rest = pattern.partition("://")
    if protocol in _WEB:
        raise InvalidArgumentError(
            f"{pattern!r}: web servers do not list their files, so there are no patterns: give the names"
        )
    bucket, _, inner = rest.partition("/")
    folder, deep = fixed_folder(inner)
    keeps = pattern_filter(inner)
    store, _ = _store_of(f"{protocol}://{bucket}/")
    with reading(pattern, "listed"):
        if deep:
            listed: Any = _retried(store, lambda: obstore.list(store, folder or None, chunk_size=_NAMES).collect())
        else:
            listed = _retried(store, lambda: obstore.list_with_delimiter(store, folder or None))["objects"]
    paths = [about["path"] for about in listed]
    return [f"{protocol}://{bucket}/{path}" for path in paths if keeps(path)]


def _retried(store: Any, request: Callable[[], Result]) -> Result:
    """Return the result of a request, which is sent again while its server is too busy; obstore does it for others.

    One that is refused is sent again with new credentials, where a function gives them.
    """
    given = getattr(store, "credential_provider", None)  # web servers have none
    used = given.held if isinstance(given, Credentials) else None

    def delays_after(error: Exception) -> Sequence[float]:
        if isinstance(given, Credentials) and isinstance(error, _REFUSED):
            if given.held is used:  # and not what another request has been given since
                given.held = None
            return _RENEWED_DELAYS
        return retries.BUSY_DELAYS if _is_busy(error) else ()

    return retries.with_retries(request, delays_after, _nbytes)


def _nbytes(found: Any) -> int:
    """Return the size of the content that comes with an answer; a list of names has none."""
    begin, end = getattr(found, "range", (0, 0))
    return int(end - begin)


def _is_busy(error: Exception) -> bool:
    status = _STATUS.search(str(error)) if isinstance(error, exceptions.GenericError) else None
    return status is not None and int(status[1]) in retries.BUSY


@contextmanager
def reading(name: str, done: str = "read") -> Iterator[None]:
    """A context within which errors are described in one line.

    Raises:
        StorageError: instead of obstore's errors.
    """
    try:
        yield
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        raise StorageError(
            f"{name!r} cannot be {done}: there is no such file, or no such bucket. Names are exact; a pattern such as "
            "'.../*' lists what there is"
        ) from error
    except _REFUSED as error:
        raise StorageError(
            f"{name!r} cannot be {done}: the server refuses access ({first_line(error)}). Credentials come from the "
            "environment, such as AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS or AZURE_STORAGE_ACCOUNT_KEY, or "
            f"from the function that {CREDENTIALS} names"
        ) from error
    except exceptions.PreconditionError as error:
        raise changed(name) from error
    except exceptions.BaseError as error:
        if _ABSENT in str(error):  # of a listing: a file that is not there is another error
            raise StorageError(f"{name!r} cannot be {done}: there is no such bucket") from error
        raise StorageError(f"{name!r} cannot be {done}: {first_line(error)}") from error


def _version(about: Any) -> str:
    return f"{about['size']} bytes, tag {about['e_tag']}, written at {about['last_modified']}"


def _store_of(name: str) -> tuple[Any, str]:
    """The store of a file, and the file's path in it."""
    if os.getpid() != _process:
        raise StorageError(
            f"{name!r} cannot be read: this process was forked from one that has read remote files. Start processes "
            'by multiprocessing\'s "spawn" or "forkserver"'
        )
    protocol, _, rest = name.partition("://")
    if protocol in _WEB:
        # The text behind the question mark, such as a signature, belongs to every request of the store.
        whole, mark, query = name.partition("?")
        base, _, path = whole.rpartition("/")
        return _store((protocol, base, query), lambda: _web_store(base + mark + query)), path
    bucket, _, path = rest.partition("/")
    begin = _SETTINGS[protocol]
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith((begin, CREDENTIALS))))
    return _store((protocol, bucket, settings), lambda: _bucket_store(protocol, bucket)), path


def _store(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    with _lock:
        if key not in _stores:
            with reading(f"{key[0]}://{key[1]}", "opened"):
                _stores[key] = make()
        return _stores[key]


def _web_store(address: str) -> Any:
    return obstore.store.HTTPStore.from_url(
        address, client_options=_TIMES | {"allow_http": True}, retry_config=_RETRIES
    )


def _bucket_store(protocol: str, bucket: str) -> Any:
    kinds = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
    begin = _SETTINGS[protocol]
    # An address without TLS was given on purpose.
    given = [(name, value) for name, value in os.environ.items() if name.startswith(begin)]
    plain = any("http://" in value and ("ENDPOINT" in name or "gcs_base_url" in value) for name, value in given)
    given_by = {"credential_provider": Credentials(f"{protocol}://{bucket}")} if CREDENTIALS in os.environ else {}
    return kinds[protocol](
        bucket, client_options=_TIMES | ({"allow_http": True} if plain else {}), retry_config=_RETRIES, **given_by
    )


class Credentials:
    """Credentials of a store, by a function of the user's.

    It is called again before they expire, and once if the store refuses them earlier. Where it fails, the old ones are
    kept until they expire, and it is called again some seconds later.

    Attributes:
        held: those that the function gave last; None if there are none, or they were refused.

    Raises:
        InvalidArgumentError: the environment names no function.
    """

    def __init__(self, store: str) -> None:
        place = os.environ[CREDENTIALS]
        module, _, name = place.partition(":")
        with by_library(f"{CREDENTIALS}={place!r} names no function, as package.module:function", InvalidArgumentError):
            self._give = getattr(importlib.import_module(module), name)
        self._store = store
        self.held: Any = None
        self._wait_until = 0.0

    def __call__(self) -> Any:
        """The credentials as obstore takes them. They seem to expire soon, so that it asks again."""
        now, held = datetime.now(UTC), self.held
        expires = held and held["expires_at"]
        valid = held is not None and (expires is None or expires > now)
        due = not valid or (expires is not None and expires < now + _EARLY and time.monotonic() >= self._wait_until)
        if due:
            try:
                self.held = held = self._give(self._store)
            except Exception:
                if not valid:
                    raise
                self._wait_until = time.monotonic() + random.uniform(*_AGAIN_SECONDS)
                _logger.warning("no new credentials for %s, the old ones are kept", self._store, exc_info=True)
        return {**held, "expires_at": now + _EARLY}


def fixed_folder(pattern: str) -> tuple[str, bool]:
    """The folder that all matching names are in, and True if some may be in folders below it.

    Example:
        >>> fixed_folder("data/train-*.txt"), fixed_folder("data/*/train.txt"), fixed_folder("data/**")
        (('data', False), ('data', True), ('data', True))
    """
    sign = _PATTERN_SIGNS.search(pattern)
    fixed = pattern if sign is None else pattern[: sign.start()]
    folder = fixed.rpartition("/")[0]
    rest = pattern[len(folder) :].lstrip("/")
    return folder, "/" in rest or "**" in rest


def pattern_filter(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches names with a pattern: `**` stands for any folders, `*` and `?` not for "/".

    Example:
        >>> keeps = pattern_filter("a/**/[xy]*.txt")
        >>> [keeps(name) for name in ("a/x1.txt", "a/b/c/y.txt", "a/z.txt", "a/x/b.txt")]
        [True, True, False, False]
    """
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", pattern)
    whole = re.compile("".join(map(_expression, tokens)), re.DOTALL)
    return lambda name: whole.fullmatch(name) is not None


def _expression(token: str) -> str:
    """A part of a pattern as a regular expression."""
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in known:
        return known[token]
    if token.startswith("[") and token.endswith("]") and len(token) > 2:
        inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(token)
