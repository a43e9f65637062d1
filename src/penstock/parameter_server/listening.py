"""Lines between processes that did not start each other: one listens, and the other one dials and says who it is.

What arrives on a line is unpickled. So both ends first prove, before anything is decoded, that they know the secret of
the strategy that has started them. What follows is not encrypted.
"""

import hmac
import os
import secrets
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from penstock.parameter_server.line import ProcessLine
from penstock.runtime.shared_memory import Arena

CONTROL: Final = -1
READER: Final = -2
"""Who dials, if it is not the process of a worker, which gives its number."""

_NONCE: Final = 32
_CALLER = struct.Struct("<q")
_SECONDS: Final = 10.0
"""For reaching a machine, and for the proof."""

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
"""A machine that is gone without a word is noticed after half a minute, where the system can be told so."""


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


class LineListener:
    """Takes the calls of processes that know the secret, in threads of its own.

    Args:
        machine: the machine that this process is on.
        host: at which address of this machine it listens, "0.0.0.0" for all.
        reached_at: by what other machines reach this one.
        shared_memory: whether processes of this machine share memory with it.
    """

    def __init__(self, machine: str, host: str, reached_at: str, secret: bytes, *, shared_memory: bool) -> None:
        self._secret = secret
        self._arrived: deque[tuple[int, socket.socket]] = deque()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._sockets = [socket.create_server((host, 0))]
        local = b""
        if shared_memory:
            # Linux names it: of its abstract namespace, nothing is left in the file system.
            listening = socket.socket(socket.AF_UNIX)
            listening.bind("")
            listening.listen()
            self._sockets.append(listening)
            local = listening.getsockname()
        self.address = Address(machine, os.getpid(), local, reached_at, self._sockets[0].getsockname()[1], secret)
        for listening in self._sockets:
            threading.Thread(target=self._listen, args=(listening,), name="penstock-listener", daemon=True).start()

    def fileno(self) -> int:
        """What a selector finds readable when `take` does not wait."""
        return self._wake_reader.fileno()

    def take(self, arena: Arena) -> tuple[int, ProcessLine]:
        """The next process that has called, and the line to it; waits for one."""
        self._wake_reader.recv(1)
        caller, connection = self._arrived.popleft()
        return caller, _line(connection, arena)

    def _listen(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._admit, args=(connection,), name="penstock-admission", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_SECONDS)
            own = secrets.token_bytes(_NONCE)
            connection.sendall(own)
            caller, nonce, proof = (_exactly(connection, size) for size in (_CALLER.size, _NONCE, _NONCE))
            if not hmac.compare_digest(proof, _proof(self._secret, b"dials", own, nonce, caller)):
                connection.close()
                return
            connection.sendall(_proof(self._secret, b"listens", own, nonce, caller))
            connection.settimeout(None)
            self._arrived.append((*_CALLER.unpack(caller), connection))
            self._wake_writer.send(b"\0")
        except OSError:  # who calls has ended, or says nothing
            connection.close()

    def close(self) -> None:
        """Take no more calls."""
        for listening in self._sockets:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            listening.close()
        for end in (self._wake_reader, self._wake_writer):
            end.close()


def dial(address: Address, machine: str, caller: int, arena: Arena) -> ProcessLine:
    """The line to a process that listens.

    Args:
        machine: the machine that this process is on.
        caller: `CONTROL`, `READER`, or the number of a worker's process.

    Raises:
        OSError: it cannot be reached, or does not know the secret.
    """
    if address.local and address.machine == machine:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_SECONDS)
        connection.connect(address.local)
    else:
        connection = socket.create_connection((address.host, address.port), _SECONDS)
    try:
        its = _exactly(connection, _NONCE)
        own, name = secrets.token_bytes(_NONCE), _CALLER.pack(caller)
        connection.sendall(name + own + _proof(address.secret, b"dials", its, own, name))
        if not hmac.compare_digest(_exactly(connection, _NONCE), _proof(address.secret, b"listens", its, own, name)):
            raise ConnectionError("who listens there does not know the strategy's secret")
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return _line(connection, arena)


def _line(connection: socket.socket, arena: Arena) -> ProcessLine:
    if connection.family == socket.AF_UNIX:
        return ProcessLine(connection, arena)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return ProcessLine(connection, None)


def _proof(secret: bytes, side: bytes, *spoken: bytes) -> bytes:
    return hmac.digest(secret, b"".join((side, *spoken)), "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError("the other end has closed the connection before it has said who it is")
        content += part
    return content
