"""Lines between processes that did not start each other: one listens, and the other one dials and says who it is.

What arrives on a line is unpickled. So both ends first prove, before anything is decoded, that they know the secret of
the strategy that has started them. With TLS, what they say is encrypted from the start.
"""

import errno
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.addresses import listening_at
from penstock.parameter_server.connection import PlainConnection, SocketConnection, TlsConnection
from penstock.parameter_server.line import ProcessLine
from penstock.parameter_server.proof import Exchange, admitted, introduced
from penstock.parameter_server.tls import LineTls
from penstock.runtime.shared_memory import Arena

CONTROL: Final = -1
READER: Final = -2
"""Who dials, if it is not the process of a worker, which gives its number."""

_SECONDS: Final = 10.0
"""For reaching a machine, and for all of the proof."""
_MOST_STRANGERS: Final = 128
"""So many callers may be about to prove who they are. One more, and the first of them is sent away: a process of the
strategy needs two messages for its proof, and so outruns those who say nothing, however many call."""
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Address:
    """Where a process listens.

    Attributes:
        machine: whose processes share memory.
        process: its number there.
        local: the name of its socket for processes of the same machine; empty where it has none.
    """

    machine: str
    process: int
    local: bytes
    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass
class _Stranger:
    """Who has called, and has not proved yet who it is."""

    connection: SocketConnection
    exchange: Exchange
    until: float


class LineListener:
    """Takes the calls of processes that know the secret, in a thread of its own.

    Args:
        machine: the machine that this process is on.
        host: at which address of this machine it listens, "" for all.
        reached_at: by what other machines reach this one.
        shared_memory: whether processes of this machine share memory with it.
        tls: what it shows to other machines; None does not encrypt.
    """

    def __init__(
        self,
        machine: str,
        host: str,
        reached_at: str,
        secret: bytes,
        *,
        shared_memory: bool,
        tls: LineTls | None = None,
    ) -> None:
        self._secret = secret
        self._context = None if tls is None else tls.listening()
        self._arrived: deque[tuple[int, SocketConnection]] = deque()
        self._strangers: dict[int, _Stranger] = {}  # by descriptor, in the order in which they have called
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._end_reader, self._end_writer = socket.socketpair()
        self._sockets = [listening_at(host, _MOST_STRANGERS)]
        local = b""
        if shared_memory:
            # Linux names it: of its abstract namespace, nothing is left in the file system.
            listening = socket.socket(socket.AF_UNIX)
            listening.bind("")
            listening.listen(_MOST_STRANGERS)
            self._sockets.append(listening)
            local = listening.getsockname()
        self.address = Address(machine, os.getpid(), local, reached_at, self._sockets[0].getsockname()[1], secret)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._end_reader, selectors.EVENT_READ)
        for listening in self._sockets:
            listening.setblocking(False)
            self._selector.register(listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._listen, name="penstock-listener", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """What a selector finds readable when `take` does not wait."""
        return self._wake_reader.fileno()

    def take(self, arena: Arena) -> tuple[int, ProcessLine]:
        """The next process that has called, and the line to it; waits for one."""
        self._wake_reader.recv(1)
        caller, connection = self._arrived.popleft()
        return caller, _line(connection, arena)

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
        if self._context is not None and not connection.on_one_machine:
            connection = TlsConnection(connected, self._context, None)
        stranger = _Stranger(connection, admitted(connection, self._secret), time.monotonic() + _SECONDS)
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
            self._forget(stranger)
            self._arrived.append((proved.value, stranger.connection))
            self._wake_writer.send(b"\0")
        except (OSError, EOFError):  # who calls has ended, or does not know the secret
            self._send_away(stranger)

    def _send_away(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)

    def close(self) -> None:
        """Take no more calls, and hang up on those that nobody has taken."""
        self._end_writer.close()
        self._thread.join()
        for stranger in list(self._strangers.values()):
            self._send_away(stranger)
        for _, connection in self._arrived:
            connection.close()
        self._selector.close()
        for end in (*self._sockets, self._wake_reader, self._wake_writer, self._end_reader):
            end.close()


def dial(address: Address, machine: str, caller: int, arena: Arena, tls: LineTls | None = None) -> ProcessLine:
    """The line to a process that listens.

    Args:
        machine: the machine that this process is on.
        caller: `CONTROL`, `READER`, or the number of a worker's process.
        tls: whom it trusts on other machines, if what they say is encrypted.

    Raises:
        OSError: it cannot be reached, is not trusted, or does not know the secret.
    """
    until = time.monotonic() + _SECONDS
    connection: SocketConnection
    if address.local and address.machine == machine:
        connected = socket.socket(socket.AF_UNIX)
        connection = PlainConnection(connected)
        connected.connect(address.local)
    else:
        connected = socket.create_connection((address.host, address.port), _SECONDS)
        connection = PlainConnection(connected) if tls is None else tls.dialling(connected, address.host)
    try:
        _complete(introduced(connection, address.secret, caller), connection, until)
    except EOFError as end:
        connection.close()
        raise ConnectionError("it closed the connection before it identified itself") from end
    except BaseException:
        connection.close()
        raise
    return _line(connection, arena)


def _complete(exchange: Exchange, connection: SocketConnection, until: float) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    with suppress(StopIteration):
        while True:
            next(exchange)
            if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                raise TimeoutError(f"it has not said within {_SECONDS:.0f} s who it is")


def _line(connection: SocketConnection, arena: Arena) -> ProcessLine:
    if connection.on_one_machine:
        return ProcessLine(connection, arena)
    connection.notice_loss()
    return ProcessLine(connection, None)
