"""The proof with which a connection begins: an HMAC over two random numbers, from both ends, by a secret of both.

No proof can be used again, and the secret itself is never sent.
"""

import hmac
import secrets
import struct
from collections.abc import Generator, Sequence
from typing import Final

from penstock.rpc.connection import SocketConnection

_GREETING: Final = b"penstock rpc 1\r\n"
_ALERT: Final = b"\x15\x03"
"""The first bytes of a process that expects TLS, and does not understand the greeting."""
_NONCE: Final = 32
_CALLER = struct.Struct("<q")
_REFUSED: Final = bytes(_NONCE)

Exchange = Generator[None, None, int]
"""Continues without waiting; yields when it needs more bytes, and returns the number of the caller."""


class NotAdmittedError(ConnectionError):
    """The process that listens does not take the secret of the one that has dialled."""


class OtherProtocolError(ConnectionError):
    """The other end does not use this protocol.

    Attributes:
        tls: whether it expects TLS.
    """

    def __init__(self, *, tls: bool) -> None:
        super().__init__("it expects TLS" if tls else "it is not penstock, or another version of it")
        self.tls = tls


def admitted(connection: SocketConnection, known: Sequence[bytes]) -> Exchange:
    """The side that listens; `connection.secret` then is the number of the secret that was proved.

    Args:
        known: the secrets of which a caller must know one.

    Raises:
        OSError, EOFError: the caller knows none of them, or has hung up.
    """
    while not connection.shake_hands():
        yield
    own = secrets.token_bytes(_NONCE)
    _say(connection, _GREETING + own)
    nonce = yield from _greeted(connection)
    spoken = yield from _heard(connection, _CALLER.size + _NONCE)
    caller, proof = spoken[: _CALLER.size], spoken[_CALLER.size :]
    expected = [_proof(secret, b"dials", own, nonce, caller) for secret in known]
    proved = [number for number, digest in enumerate(expected) if hmac.compare_digest(proof, digest)]
    if not proved:
        _say(connection, _REFUSED)
        raise NotAdmittedError("authentication failed: the caller does not know the secret")
    connection.secret = proved[0]
    secret = known[connection.secret]
    connection.frame_keys = (
        _proof(secret, b"frames of who listens", own, nonce, caller),
        _proof(secret, b"frames of who dials", own, nonce, caller),
    )
    _say(connection, _proof(secret, b"listens", own, nonce, caller))
    return int(_CALLER.unpack(caller)[0])


def introduced(connection: SocketConnection, secret: bytes, caller: int) -> Exchange:
    """The side that dials.

    Raises:
        NotAdmittedError: the listening process has another secret.
        OtherProtocolError: it is something else.
        OSError, EOFError: it has hung up.
    """
    while not connection.shake_hands():
        yield
    own, name = secrets.token_bytes(_NONCE), _CALLER.pack(caller)
    if not connection.encrypted:  # an end that expects TLS answers this with an alert
        _say(connection, _GREETING + own)
    its = yield from _greeted(connection)
    if connection.encrypted:  # only now: an end that refuses a certificate has nothing unread, and its reason arrives
        _say(connection, _GREETING + own)
    _say(connection, name + _proof(secret, b"dials", its, own, name))
    proof = yield from _heard(connection, _NONCE)
    if not hmac.compare_digest(proof, _proof(secret, b"listens", its, own, name)):
        raise NotAdmittedError("the process that listens there has another secret")
    connection.frame_keys = (
        _proof(secret, b"frames of who dials", its, own, name),
        _proof(secret, b"frames of who listens", its, own, name),
    )
    return caller


def _say(connection: SocketConnection, content: bytes) -> None:
    # The buffer of a new socket has room for these bytes, unless the other end has read nothing.
    if connection.send([memoryview(content)]) != len(content) or connection.unsent:
        raise ConnectionError("the other end does not read")


def _greeted(connection: SocketConnection) -> Generator[None, None, bytes]:
    """Receive a greeting; return the random number in it."""
    begin = yield from _heard(connection, len(_ALERT))
    if begin != _GREETING[: len(_ALERT)]:
        raise OtherProtocolError(tls=begin == _ALERT)
    rest = yield from _heard(connection, len(_GREETING) - len(_ALERT))
    if begin + rest != _GREETING:
        raise OtherProtocolError(tls=False)
    return (yield from _heard(connection, _NONCE))


def _heard(connection: SocketConnection, size: int) -> Generator[None, None, bytes]:
    content = b""
    while True:
        content += connection.receive(size - len(content))
        if len(content) == size:
            return content
        yield


def _proof(secret: bytes, side: bytes, *spoken: bytes) -> bytes:
    return hmac.digest(secret, b"".join((side, *spoken)), "sha256")
