"""A free port for a process that will listen later."""

import secrets
import socket

_PORTS = range(20_000, 30_000)
"""No system assigns these ports by itself, so a free one stays free until it is used."""


def free_port() -> int:
    """A port on which no process of this machine listens."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an old connection does not take it
            try:
                listener.bind(("", port))
            except OSError:  # a process listens there
                continue
            return port
