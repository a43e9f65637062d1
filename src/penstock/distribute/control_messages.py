"""What goes through the control channel: the messages, and how connections carry them."""

import os
import socket
from multiprocessing.connection import Connection
from typing import Any

import msgspec

MAXIMUM_BYTES = 1 << 26
"""The longest message: what claims to be longer is none."""
EXIT_SECONDS = 2.0
"""How long a program that has failed waits in JAX's exit for the others, who may be waiting for it in a collective."""


class Item(msgspec.Struct, tag="item", array_like=True):
    """One worker's part of a `gather`."""

    worker: int
    topic: str
    payload: Any


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A worker cannot go on; where its input ended it, others can go on up to the same step of that topic."""

    worker: int
    reason: str
    topic: str = ""


class InputFailed(msgspec.Struct, tag="input", array_like=True):
    """A worker's input has no step with this number; the steps before it are there."""

    worker: int
    topic: str
    step: int
    reason: str


class Left(msgspec.Struct, tag="left", array_like=True):
    """A worker's program has ended as it should."""

    worker: int


Message = Item | Failed | InputFailed | Left
decoded = msgspec.msgpack.Decoder(Message).decode
"""The message that some bytes are; raises `msgspec.DecodeError` where they are none."""


def send_at_once(connection: Connection) -> None:
    """Let no message wait until the one before it was acknowledged, which can take 40 ms."""
    set_option(connection, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def set_option(connection: Connection, level: int, option: int, value: int | bytes) -> None:
    """Set an option of the socket under a connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(level, option, value)
