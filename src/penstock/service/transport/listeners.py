"""Who listens at a TCP port of this machine. Linux tells: by netlink at once, in a file after a look at all sockets.

The messages of netlink are those of netlink(7) and sock_diag(7), in the byte order of the machine.
"""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING: Final = 10

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_PROTOCOL: Final = socket.IPPROTO_TCP
_REQUEST_DUMP: Final = 0x301
_ERROR: Final = 2
_DONE: Final = 3
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBxxI48x")
_NUMBER = struct.Struct("=i")
_SOCKET = struct.Struct("=4x2s46x12xI")
_MOST_BYTES: Final = 1 << 16
_MOST_SECONDS: Final = 1.0


def users_listening(port: int) -> set[int]:
    """The ids of the users who listen at a TCP port of this machine, on any address; none where it does not tell."""
    try:
        sockets = list(ask_netlink())
    except (OSError, AttributeError):  # not of Linux, or kept from this process
        sockets = list(read_tables())
    return {user for listening, user in sockets if listening == port}


def ask_netlink() -> Iterator[tuple[int, int]]:
    """The port and the user of each socket that listens.

    Raises:
        OSError: the system does not answer.
        AttributeError: it has no netlink.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        question = _QUESTION.pack(family, _PROTOCOL, 1 << _LISTENING)
        header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as line:
            line.settimeout(_MOST_SECONDS)
            line.send(header + question)
            more = True
            while more:
                answer = line.recv(_MOST_BYTES)
                while answer:
                    size, kind, *_ = _HEADER.unpack_from(answer)
                    if kind in (_ERROR, _DONE):  # where a dump cannot be made, its end says so
                        (number,) = _NUMBER.unpack_from(answer, _HEADER.size)
                        if number:
                            raise OSError(-number, os.strerror(-number))
                        more = False
                        break
                    port, user = _SOCKET.unpack_from(answer, _HEADER.size)
                    yield int.from_bytes(port, "big"), user
                    answer = answer[-(-size // 4) * 4 :]


def read_tables() -> Iterator[tuple[int, int]]:
    """The same, from the files of /proc; nothing where there are none."""
    for table in _TABLES:
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if int(state, 16) == _LISTENING:
                    yield int(local.rpartition(":")[2], 16), int(user)
