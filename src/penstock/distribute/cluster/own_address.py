"""The address at which other machines reach this one."""

import socket
from typing import Final

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is kept for documents: to connect a datagram socket to it sends nothing."""


def own_address() -> str:
    """The IP address from which this machine sends packets: other machines may not be able to resolve its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(_ELSEWHERE)
        except OSError:  # no network but the machine itself
            return "127.0.0.1"
        return str(line.getsockname()[0])
