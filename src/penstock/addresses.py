"""Addresses of hosts, of IPv4 and IPv6, as they are written, and where to listen for both."""

import ipaddress
import socket
from contextlib import suppress
from typing import Final

WILDCARDS: Final = ("", "0.0.0.0", "::")
"""As a host to listen at: all addresses of this machine."""


def split_address(address: str) -> tuple[str, str]:
    """The host and the port of HOST:PORT; an IPv6 address without its brackets.

    Example:
        >>> split_address("[fd00::1]:5050"), split_address("host:%port%")
        (('fd00::1', '5050'), ('host', '%port%'))
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def host_of(address: str) -> str:
    """The host of HOST, of HOST:PORT or of an IPv6 address without brackets, without a port.

    Example:
        >>> host_of("host:5050"), host_of("host"), host_of("[fd00::1]:5050"), host_of("fd00::1")
        ('host', 'host', 'fd00::1', 'fd00::1')
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address if address.count(":") > 1 else address.partition(":")[0]


def joined_address(host: str, port: int | str) -> str:
    """HOST:PORT; an IPv6 address gets brackets.

    Example:
        >>> joined_address("fd00::1", 5050), joined_address("host", 5050)
        ('[fd00::1]:5050', 'host:5050')
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether the address means this machine everywhere, so that other machines cannot reach it."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def reached_here_at(host: str) -> str:
    """By what processes of this machine reach a server that listens at a host.

    Example:
        >>> [reached_here_at(host) for host in ("127.0.0.1", "0.0.0.0", "::1", "10.0.0.7")]
        ['localhost', 'localhost', '::1', '10.0.0.7']
    """
    return "localhost" if host in (*WILDCARDS, "127.0.0.1") else host.strip("[]")


def own_address_towards(host: str) -> str:
    """The address of this machine from which it reaches a host; "" for one that is unknown. Nothing is sent.

    Example:
        >>> own_address_towards("localhost")
        'localhost'
    """
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as route, suppress(OSError):
                route.connect(address)
                own: str = route.getsockname()[0]
                return "localhost" if is_loopback(own) else own
    return ""


def listening_at(host: str, backlog: int | None = None, port: int = 0) -> socket.socket:
    """A listening socket.

    Args:
        host: a name or an address of this machine; one of `WILDCARDS` for all of them.
        port: 0 for one that the system chooses.

    Raises:
        OSError: nothing can listen there.
    """
    if host in WILDCARDS:
        if socket.has_dualstack_ipv6():
            with suppress(OSError):  # the system knows IPv6, and this network has none of it
                return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=backlog)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, _, _, _, address) in enumerate(found):
        try:
            return socket.create_server(address, family=family, backlog=backlog)
        except OSError:  # such as of IPv6 for "localhost" where there is only IPv4
            if number == len(found) - 1:
                raise
    raise OSError(f"{host} has no address")
