"""The frames of a line: a header, and the bytes of arrays behind it or in shared memory."""

import hmac
import struct
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.runtime.memory import Bytes

LENGTHS: Final = struct.Struct("<IQ")
"""The beginning of a frame: the lengths of its header and its body, which begins at a multiple of `ALIGNMENT`."""
ALIGNMENT: Final = 64

T = TypeVar("T")

_building = threading.Lock()
"""msgspec ends the process if one thread decodes a type whose first decoder another thread is still building."""


class BytesLocation(msgspec.Struct, frozen=True, array_like=True):
    """The location of the bytes of an array.

    Attributes:
        segment: the number of the segment of shared memory; -1 for the body of the frame.
        token: the receiver returns it when it no longer needs the shared memory.
    """

    size: int
    offset: int
    segment: int = -1
    token: int = -1


class ArrayPart(msgspec.Struct, frozen=True, array_like=True):
    """An array in a message."""

    shape: tuple[int, ...]
    dtype: str
    place: BytesLocation


class Header(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """The header of a frame.

    Attributes:
        message: None in frames that only keep the line in order.
        number: of the request that it is, or that it answers.
        tokens: of the shared memory that comes with the message.
        returned: tokens of memory that the sender no longer needs.
        segments: the number and the size of each segment whose file comes with the frame.
        forgotten: segments that the sender has given up.
        lines: how many open sockets come with it, after the segments.
        alive: 1 asks the other end for a sign of life, 2 is that sign.
    """

    message: T | None
    number: int = 0
    tokens: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    segments: tuple[tuple[int, int], ...] = ()
    forgotten: tuple[int, ...] = ()
    lines: int = 0
    alive: int = 0


class FrameTags:
    """Digests at the ends of frames: each is the next one of the process that has proved to know the secret.

    Args:
        sends: the key of frames that this end sends.
        receives: the key of those that come.

    Attributes:
        received: the number of frames that have come; the line counts them.
    """

    SIZE: Final = 16

    def __init__(self, sends: bytes, receives: bytes) -> None:
        self._sends, self._receives = sends, receives
        self._sent = self.received = 0

    def next_sent(self, parts: Iterable[memoryview]) -> memoryview:
        """The tag of the next frame that is sent."""
        self._sent += 1
        return memoryview(self._tag(self._sends, self._sent, parts))

    def checked(self, frame: Bytes) -> Bytes:
        """The frame that was counted last, without its tag.

        Raises:
            ConnectionError: it was changed on its way, or comes from another process, or at another place than before.
        """
        content, tag = frame[: -self.SIZE], frame[-self.SIZE :]
        if not hmac.compare_digest(tag.tobytes(), self._tag(self._receives, self.received, [content.data])):
            raise ConnectionError("a message was changed on its way between the two processes")
        return content

    def _tag(self, key: bytes, number: int, parts: Iterable[memoryview]) -> bytes:
        digest = hmac.new(key, number.to_bytes(8, "little"), "sha256")
        for part in parts:
            digest.update(part)
        return digest.digest()[: self.SIZE]


@cache
def decoder_of(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    """The decoder of a type of messages. Threads may ask for it at the same time."""
    with _building:
        return msgspec.msgpack.Decoder(kind)


def padding(size: int) -> int:
    """The number of bytes between an array of this size and the next one."""
    return -size % ALIGNMENT
