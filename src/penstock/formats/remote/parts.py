"""One remote file as it was when it was opened, and the requests for its parts, many at a time.

All files of a process share two sets of threads: one sends requests, the other opens files, which sends requests too.
Waiting for a server takes no processor time, so there are more of them than cores.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from penstock.errors import StorageError

REQUEST_BYTES: Final = 8 << 20
"""The most that one request asks for: larger parts are fetched by several requests at the same time."""
REQUESTS: Final = 32
OPENING: Final = 32
"""The number of requests that are sent, and of files that are opened, at a time."""

Result = TypeVar("Result")


class RemoteFile(ABC):
    """A file of a server. It stays as it was when it was opened, or reading it fails.

    Attributes:
        name: of the file, with its protocol.
        size: in bytes.
        version: differs when the file is another one.
        head: its first bytes, if they came when it was opened.
    """

    name: str
    size: int
    version: str
    head: bytes = b""

    def part(self, begin: int, end: int) -> Any:
        """The bytes from `begin` to `end`, in something that has the buffer interface.

        Raises:
            StorageError: they cannot be read, or the file has changed.
        """
        if end <= len(self.head):
            return memoryview(self.head)[begin:end]
        found = self._fetch(begin, end)
        if len(found) != end - begin:
            raise StorageError(
                f"{self.name!r} cannot be read: of bytes {begin} to {end} the server sent {len(found)} bytes"
            )
        return found

    def waits_for(self) -> str:
        """Say in words what a call waits for."""
        return f"a request for {self.name!r}"

    @abstractmethod
    def _fetch(self, begin: int, end: int) -> Any:
        """Fetch a part by one request."""


def parts_of(file: RemoteFile, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """Several parts of a file, fetched at the same time.

    Raises:
        StorageError: as `RemoteFile.part`.
    """
    if len(begins) == 1 and ends[0] - begins[0] <= REQUEST_BYTES:
        return [bytes(file.part(begins[0], ends[0]))]
    return RequestedParts(file, begins, ends).result()


class RequestedParts:
    """Several parts of a file that were asked for, and are on their way."""

    def __init__(self, file: RemoteFile, begins: Sequence[int], ends: Sequence[int]) -> None:
        self._requests = [
            [ask(file.part, at, min(at + REQUEST_BYTES, end)) for at in range(begin, end, REQUEST_BYTES)]
            for begin, end in zip(begins, ends, strict=True)
        ]

    def result(self) -> list[bytes]:
        """All of them, when they are there.

        Raises:
            StorageError: as `RemoteFile.part`.
        """
        return [b"".join([request.result() for request in several]) for several in self._requests]

    def cancel(self) -> None:
        """Ask for no more of them."""
        for several in self._requests:
            for request in several:
                request.cancel()


def ask(call: Callable[..., Result], *arguments: Any) -> "Future[Result]":
    """Send a request in another thread."""
    return _requests.threads.submit(call, *arguments)


def ask_ahead(call: Callable[..., Result], *arguments: Any) -> "Future[Result]":
    """Open a file, or read one whole, in another thread. It may wait for requests."""
    return _opening.threads.submit(call, *arguments)


def at_once(call: Callable[[Any], Result], arguments: Iterable[Any]) -> list[Result]:
    """The results of `call` for each, in order; files are opened and read at the same time."""
    return list(_opening.threads.map(call, arguments))


class _Pool:
    """Threads that start when they are first needed, also in a forked process, which begins without them."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begin without threads."""
        self.threads = ThreadPoolExecutor(self._count, self._name)


_requests: Final = _Pool(REQUESTS, "remote-requests")
_opening: Final = _Pool(OPENING, "remote-opening")
