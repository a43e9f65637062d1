"""The address at which other machines reach this one."""

import socket
from typing import Final

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is kept for documents: to connect a datagram socket to it sends nothing."""


def own_address() -> str:
    """The IP address by which this machine's packets leave it: a host's bare name need not resolve for others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(_ELSEWHERE)
        except OSError:  # no network but the machine itself
            return "127.0.0.1"
        return str(line.getsockname()[0])
