"""Closes connections that do not show the token: gRPC itself buffers what they send, and does not time out handshakes.

gRPC gives no access to its connections, so they are looked up among the open files of this process. If the memory of
this process grows, a client sends much; checking that is cheaper than checking all connections.
"""

import ipaddress
import os
import socket
import stat
import struct
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote

from penstock.addresses import split_address

MOST_BYTES: Final = 1 << 20
"""The most bytes from a connection that has not shown the token."""
MOST_SECONDS: Final = 60.0
"""The longest time without the token."""
_PAUSE_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 1.0
_GROWTH_BYTES: Final = 1 << 24

_FILES: Final = "/dev/fd"
_MEMORY: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_RECEIVED: Final = struct.Struct("=128xQ")
"""Of tcp_info in linux/tcp.h."""

_Peer = tuple[str, int]


@dataclass
class _Connection:
    """A connection to the server.

    Attributes:
        seconds: how long it has been open.
    """

    peer: _Peer
    seconds: float = 0.0
    admitted: bool = False


class UnauthenticatedConnections:
    """Watches the connections to a server of this process, in a thread of its own, until `stop`.

    Args:
        port: where the server listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._connections: dict[int, _Connection | None] = {}  # by inode; None for other files
        self._shown: set[str] = set()
        threading.Thread(target=self._run, name="penstock-unauthenticated", daemon=True).start()

    def admit(self, peer: str) -> None:
        """Admit a peer, as gRPC writes it, whose call has shown the token."""
        self._shown.add(peer)

    def stop(self) -> None:
        """Stop. A second call does nothing."""
        self._over.set()

    def _run(self) -> None:
        with _MEMORY.open("rb", buffering=0) if _MEMORY.exists() else nullcontext() as statm:
            memory, waited, before = _resident_bytes(statm), 0.0, time.monotonic()
            while not self._over.wait(_PAUSE_SECONDS):
                now = time.monotonic()
                # Do not count a time in which this process was suspended, and could not answer calls.
                waited, before = waited + min(now - before, _LOOK_SECONDS), now
                if waited >= _LOOK_SECONDS or _resident_bytes(statm) > memory + _GROWTH_BYTES:
                    self._check_connections(waited)
                    memory, waited = _resident_bytes(statm), 0.0

    def _check_connections(self, seconds: float) -> None:
        """Check all connections; known ones are older by `seconds`."""
        shown, self._shown = self._shown, set()
        peers = {peer_of(peer) for peer in shown}
        found: dict[int, _Connection | None] = {}
        for name in os.listdir(_FILES):
            try:
                file = int(name)
                status = os.fstat(file)
                if not stat.S_ISSOCK(status.st_mode):
                    continue
                known = status.st_ino in self._connections
                connection = self._connections[status.st_ino] if known else self._connection(file)
                found[status.st_ino] = connection
                if connection is None or connection.admitted:
                    continue
                connection.admitted = connection.peer in peers
                connection.seconds += seconds if known else 0.0
                if not connection.admitted:
                    _end_if_too_much(file, status.st_ino, connection)
            except OSError:  # it has been closed meanwhile
                continue
        self._connections = found

    def _connection(self, file: int) -> _Connection | None:
        with socket.socket(fileno=os.dup(file)) as line:
            if not self._is_ours(line):
                return None
            host, port = line.getpeername()[:2]
            return _Connection((_plain(host), port))

    def _is_ours(self, line: socket.socket) -> bool:
        if line.family not in (socket.AF_INET, socket.AF_INET6) or line.type != socket.SOCK_STREAM:
            return False
        return line.getsockname()[1] == self._port and not line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)

    def end_all(self) -> None:
        """End every connection, of whoever has shown the token too: gRPC waits for a client that does not read."""
        for name in os.listdir(_FILES):
            with suppress(OSError):  # it has been closed meanwhile
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    with socket.socket(fileno=os.dup(int(name))) as line:
                        if self._is_ours(line):
                            line.shutdown(socket.SHUT_RDWR)


def _end_if_too_much(file: int, inode: int, connection: _Connection) -> None:
    with socket.socket(fileno=os.dup(file)) as line:
        if os.fstat(line.fileno()).st_ino != inode:  # another file has its number now
            return
        if connection.seconds >= MOST_SECONDS or _received_bytes(line) > MOST_BYTES:
            line.shutdown(socket.SHUT_RDWR)


def _received_bytes(line: socket.socket) -> int:
    """How many bytes have arrived over a connection; 0 if the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else 0


def _resident_bytes(statm: BinaryIO | None) -> int:
    """The memory of this process; 0 if the system does not tell."""
    return int(os.pread(statm.fileno(), 100, 0).split()[1]) * _PAGE if statm is not None else 0


def peer_of(peer: str) -> _Peer:
    """The address and the port in "ipv4:127.0.0.1:5000" or "ipv6:[::1]:5000"."""
    host, port = split_address(unquote(peer).partition(":")[2])
    return (_plain(host), int(port)) if port.isdecimal() else ("", 0)


def _plain(host: str) -> str:
    """The address as IPv4 if it is a mapped one, and without the name of a network interface."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
