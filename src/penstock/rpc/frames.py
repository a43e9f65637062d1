"""What travels over a line: a header, and the bytes of arrays behind it or in shared memory."""

import struct
from typing import Final, Generic, TypeVar

import msgspec

LENGTHS: Final = struct.Struct("<IQ")
"""How every frame begins: the lengths of its header and of its body. The body begins at a multiple of `ALIGNMENT`."""
ALIGNMENT: Final = 64

T = TypeVar("T")


class BytesLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of an array are.

    Attributes:
        segment: the number of the segment of shared memory; -1 for the body of the frame.
        token: what the receiver returns when it no longer needs the shared memory.
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


def padding(size: int) -> int:
    """How many bytes follow so many, up to where the next array may begin."""
    return -size % ALIGNMENT
