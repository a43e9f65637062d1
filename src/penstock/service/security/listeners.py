"""Finds which users listen at a TCP port of this machine, on Linux: by netlink, or more slowly from /proc.

The messages of netlink are those of netlink(7) and sock_diag(7), in the byte order of the machine.
"""

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
_SOCKET = struct.Struct("=B3x2s2x16s28x12xI")
_MOST_BYTES: Final = 1 << 16
_MOST_SECONDS: Final = 1.0


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_ANY: Final = (ipaddress.IPv4Address("0.0.0.0"), ipaddress.IPv6Address("::"))


class Listener(NamedTuple):
    """A listening socket, at an address of this machine or at all of them."""

    address: Address
    port: int
    user: int


def users_listening(host: str, port: int) -> set[int]:
    """The ids of the users who receive connections to a port at an address of this machine; none if it cannot tell.

    Args:
        host: a numeric address. A socket at it gets all connections; without one, sockets at the wildcard address get
            them.
    """
    wanted = _plain(ipaddress.ip_address(host.partition("%")[0]))
    found: dict[Address, set[int]] = {}
    for listener in _all_listeners():
        if listener.port == port:
            found.setdefault(listener.address, set()).add(listener.user)
    # A wildcard socket of IPv6 also gets IPv4 connections, unless there is one of IPv4.
    for address in (wanted, *_ANY[wanted.version == 6 :]):
        if address in found:
            return found[address]
    return set()


def _all_listeners() -> list[Listener]:
    try:
        return list(ask_netlink())
    except (OSError, AttributeError):  # not Linux, or not permitted to this process
        return list(read_tables())


def _plain(address: Address) -> Address:
    """The address as IPv4 if it is a mapped one."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def ask_netlink() -> Iterator[Listener]:
    """All listening sockets, from netlink.

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
                    if kind in (_ERROR, _DONE):  # a dump that cannot be made ends with an error
                        (number,) = _NUMBER.unpack_from(answer, _HEADER.size)
                        if number:
                            raise OSError(-number, os.strerror(-number))
                        more = False
                        break
                    version, port, where, user = _SOCKET.unpack_from(answer, _HEADER.size)
                    address = ipaddress.ip_address(where[:4] if version == socket.AF_INET else where)
                    yield Listener(_plain(address), int.from_bytes(port, "big"), user)
                    answer = answer[-(-size // 4) * 4 :]


def read_tables() -> Iterator[Listener]:
    """All listening sockets, from the files of /proc; none if these do not exist."""
    for table in _TABLES:
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if int(state, 16) == _LISTENING:
                    where, _, port = local.partition(":")
                    yield Listener(_plain(ipaddress.ip_address(_in_order(where))), int(port, 16), int(user))


def _in_order(where: str) -> bytes:
    """The bytes of an address that is written as 32-bit words in the machine's byte order."""
    words = [int(where[i : i + 8], 16) for i in range(0, len(where), 8)]
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)
