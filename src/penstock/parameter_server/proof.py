"""The proof with which a line begins: an HMAC over two random numbers, from both ends, by the secret of a strategy."""

import hmac
import secrets
import struct
from collections.abc import Generator
from typing import Final

from penstock.parameter_server.connection import SocketConnection

_NONCE: Final = 32
_CALLER = struct.Struct("<q")

Exchange = Generator[None, None, int]
"""Goes on without waiting; yields where it needs to hear more, and returns who has called."""


def admitted(connection: SocketConnection, secret: bytes) -> Exchange:
    """The side that listens.

    Raises:
        OSError, EOFError: who has called does not know the secret, or has hung up.
    """
    while not connection.shake_hands():
        yield
    own = secrets.token_bytes(_NONCE)
    _say(connection, own)
    spoken = yield from _heard(connection, _CALLER.size + 2 * _NONCE)
    caller, nonce, proof = spoken[: _CALLER.size], spoken[_CALLER.size : -_NONCE], spoken[-_NONCE:]
    if not hmac.compare_digest(proof, _proof(secret, b"dials", own, nonce, caller)):
        raise ConnectionError("who calls does not know the strategy's secret")
    _say(connection, _proof(secret, b"listens", own, nonce, caller))
    return int(_CALLER.unpack(caller)[0])


def introduced(connection: SocketConnection, secret: bytes, caller: int) -> Exchange:
    """The side that dials.

    Raises:
        OSError, EOFError: who listens does not know the secret, or has hung up.
    """
    while not connection.shake_hands():
        yield
    its = yield from _heard(connection, _NONCE)
    own, name = secrets.token_bytes(_NONCE), _CALLER.pack(caller)
    _say(connection, name + own + _proof(secret, b"dials", its, own, name))
    proof = yield from _heard(connection, _NONCE)
    if not hmac.compare_digest(proof, _proof(secret, b"listens", its, own, name)):
        raise ConnectionError("the process that listens there does not know the strategy's secret")
    return caller


def _say(connection: SocketConnection, content: bytes) -> None:
    # So few bytes have room in the buffer of a new socket; of one that has none, nobody has read.
    if connection.send(memoryview(content), wait=False) != len(content) or connection.unsent:
        raise ConnectionError("who is there does not listen")


def _heard(connection: SocketConnection, size: int) -> Generator[None, None, bytes]:
    content = b""
    while True:
        content += connection.receive(size - len(content), wait=False)
        if len(content) == size:
            return content
        yield


def _proof(secret: bytes, side: bytes, *spoken: bytes) -> bytes:
    return hmac.digest(secret, b"".join((side, *spoken)), "sha256")
