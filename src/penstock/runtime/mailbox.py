"""One message at a time to another process of this machine, in a file without a name that both map.

The file begins with the number of the message's parts and their lengths, 8 bytes each; the parts follow, each at a
multiple of 64. A pipe beside it announces messages to the other side.
"""

import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from typing import Final

Part = bytes | memoryview

_ALIGNMENT: Final = 64
_LEAST_BYTES: Final = 1 << 16


class Mailbox:
    """The file of one direction, which grows with its messages.

    Attributes:
        file: its descriptor.

    Args:
        file: a descriptor, which is closed with this object.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        weakref.finalize(self, os.close, file)
        self._mapped: mmap.mmap | None = None

    def write(self, parts: Sequence[Part]) -> None:
        """Write a message over the one before.

        Raises:
            OSError: there is no room for it.
        """
        lengths = [memoryview(part).nbytes for part in parts]
        header = struct.pack(f"<{1 + len(parts)}Q", len(parts), *lengths)
        starts, end = _places(len(header), lengths)
        mapped = self._with_room_for(end)
        mapped[: len(header)] = header
        for part, start, length in zip(parts, starts, lengths, strict=True):
            mapped[start : start + length] = memoryview(part).cast("B")

    def read(self) -> list[memoryview]:
        """The parts of the message, a copy that may be written to."""
        mapped = self._with_room_for(os.fstat(self.file).st_size)
        (count,) = struct.unpack_from("<Q", mapped)
        lengths = struct.unpack_from(f"<{count}Q", mapped, 8)
        starts, end = _places(8 + 8 * count, lengths)
        message = memoryview(bytearray(memoryview(mapped)[:end]))
        return [message[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    def _with_room_for(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            length = os.fstat(self.file).st_size
            if length < size:
                length = max(_LEAST_BYTES, 2 * length, size)
                os.ftruncate(self.file, length)
            self._mapped = mmap.mmap(self.file, length)
        return self._mapped


def _places(begin: int, lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where parts of these lengths begin after a header, and where the last one ends."""
    starts, end = [], begin
    for length in lengths:
        starts.append(end + -end % _ALIGNMENT)
        end = starts[-1] + length
    return starts, end
