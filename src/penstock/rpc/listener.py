"""Connections between processes that did not start each other: one listens, and the other one dials.

Both ends first prove, before anything is decoded, that they know one secret. With TLS, everything is encrypted from the
start.
"""

import errno
import logging
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.addresses import listening_at
from penstock.rpc.connection import PlainConnection, SocketConnection, TlsConnection
from penstock.rpc.proof import Exchange, admitted, introduced
from penstock.rpc.tls import TlsNames

_logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0
"""For reaching a machine, and for all of the proof."""
_MOST_STRANGERS: Final = 128
"""The number of callers that may be in their proof. For one more, the first of them is disconnected: a process that
knows the secret needs two messages for its proof, so it is faster than any number of silent callers."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Address:
    """The address of a process that listens, as other processes reach it.

    Attributes:
        local: the name of its socket for processes of the same machine, which is dialled where it is given.
    """

    host: str = ""
    port: int = 0
    local: bytes = b""


@dataclass(frozen=True)
class Access:
    """The conditions for a connection.

    Attributes:
        secrets: those of which a caller must know one.
        tls: the TLS context for other machines; None does not encrypt.
    """

    secrets: tuple[bytes, ...]
    tls: ssl.SSLContext | None = None


@dataclass
class _Stranger:
    """A caller that has not proved who it is yet."""

    connection: SocketConnection
    exchange: Exchange
    until: float


class Listener:
    """Accepts the calls of processes that know a secret, in a separate thread.

    Args:
        access: returns the conditions for a connection; called for each caller, because they may change.
        host: at which address of this machine it listens, "" for all.
        port: 0 for one that the system chooses.
        local: whether it listens at a socket for processes of this machine too.

    Attributes:
        port: where it listens.
        local: the name of its socket for processes of this machine; b"" for none.
        refused: how many callers have not proved to know the secret.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, access: Callable[[], Access], host: str, port: int = 0, *, local: bool = False) -> None:
        access()  # raises early if it cannot be used
        self._access = access
        self._arrived: deque[tuple[int, SocketConnection]] = deque()
        self._strangers: dict[int, _Stranger] = {}  # by descriptor, in the order in which they have called
        self._sockets = [listening_at(host, _MOST_STRANGERS, port)]
        self.port = int(self._sockets[0].getsockname()[1])
        self.local = b""
        self.refused = 0
        if local:
            # A name of Linux's abstract namespace leaves nothing in the file system. Containers may have one each, in
            # which the same name could belong to another process.
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(b"\0penstock-" + secrets.token_hex(8).encode())
            listening.listen(_MOST_STRANGERS)
            self._sockets.append(listening)
            self.local = bytes(listening.getsockname())
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._end_reader, self._end_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._end_reader, selectors.EVENT_READ)
        for listening in self._sockets:
            listening.setblocking(False)
            self._selector.register(listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="penstock-listener", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor that is readable when `take` does not wait."""
        return self._wake_reader.fileno()

    def take(self, seconds: float | None = None) -> tuple[int, SocketConnection]:
        """Wait for the next process that has called; return the number that it gives, and the connection.

        Raises:
            TimeoutError: none has within these seconds.
        """
        self._wake_reader.settimeout(seconds)
        self._wake_reader.recv(1)
        caller, connection = self._arrived.popleft()
        connection.notice_loss()
        return caller, connection

    def _listen(self) -> None:
        while True:
            nearest = min((stranger.until for stranger in self._strangers.values()), default=None)
            found = self._selector.select(None if nearest is None else max(nearest - time.monotonic(), 0))
            for key, _ in found:
                if key.fileobj is self._end_reader:
                    return
                if isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj)
                elif key.fd in self._strangers:
                    self._hear(self._strangers[key.fd])
            now = time.monotonic()
            for stranger in [stranger for stranger in self._strangers.values() if stranger.until <= now]:
                self._send_away(stranger)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:  # the call is still there
                self._make_room()
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            self._make_room()
        connection: SocketConnection = PlainConnection(connected)
        access = self._access()
        if access.tls is not None and not connection.on_one_machine:
            connection = TlsConnection(connected, access.tls, None)
        stranger = _Stranger(connection, admitted(connection, access.secrets), time.monotonic() + _SECONDS)
        self._strangers[connection.fileno()] = stranger
        self._selector.register(connection, selectors.EVENT_READ)
        self._hear(stranger)

    def _make_room(self) -> None:
        if self._strangers:
            self._send_away(next(iter(self._strangers.values())))
        else:  # others of this process have all of it
            time.sleep(_PAUSE_SECONDS)

    def _hear(self, stranger: _Stranger) -> None:
        try:
            next(stranger.exchange)
        except StopIteration as proved:
            if len(self._arrived) >= _MOST_STRANGERS:  # the owner does not take them
                self._send_away(stranger)
                return
            self._forget(stranger)
            self._arrived.append((proved.value, stranger.connection))
            self._wake_writer.send(b"\0")
        except (OSError, EOFError) as error:  # who calls has ended, or does not know the secret
            _logger.info("a caller was refused: %r", error)
            self.refused += 1
            self._send_away(stranger)

    def _send_away(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)

    def close(self) -> None:
        """Accept no more calls, and close the connections that were not taken. A second call does nothing."""
        self._end_writer.close()
        self._thread.join()
        for stranger in list(self._strangers.values()):
            self._send_away(stranger)
        while self._arrived:
            self._arrived.popleft()[1].close()
        self._selector.close()
        for end in (*self._sockets, self._wake_reader, self._wake_writer, self._end_reader):
            end.close()


def dial(
    address: Address, secret: bytes, caller: int, tls: TlsNames | None = None, seconds: float = _SECONDS
) -> SocketConnection:
    """The connection to a process that listens.

    Args:
        caller: a number by which the other end knows this one.
        tls: the trusted authorities of other machines, if the connection is encrypted.

    Raises:
        NotAdmittedError: it has another secret.
        ssl.SSLError: it is not trusted.
        OSError: it cannot be reached in time, or speaks another protocol.
    """
    until = time.monotonic() + seconds
    connection: SocketConnection
    if address.local:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(seconds)
        try:
            _connect(connected, address.local, until)
        except OSError:
            connected.close()
            raise
        connection = PlainConnection(connected)
    else:
        connected = socket.create_connection((address.host, address.port), seconds)
        connection = PlainConnection(connected) if tls is None else tls.connection(connected, address.host)
    try:
        _complete(introduced(connection, secret, caller), connection, until, seconds)
        connection.notice_loss()
    except EOFError as end:
        connection.close()
        raise ConnectionError("it closed the connection before it identified itself") from end
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, name: bytes, until: float) -> None:
    """Connect to a socket of this machine; if it has too many callers, Linux raises an error instead of waiting."""
    while True:
        try:
            return connection.connect(name)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_SECONDS / 10)


def _complete(exchange: Exchange, connection: SocketConnection, until: float, seconds: float) -> None:
    with suppress(StopIteration):
        while True:
            next(exchange)
            if not connection.wait(until):
                raise TimeoutError(f"it has not identified itself within {seconds:.0f} s")
