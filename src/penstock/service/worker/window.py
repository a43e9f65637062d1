"""The newest elements of a stream by position, up to a number of bytes."""

from bisect import bisect_right
from dataclasses import dataclass

from penstock.data.block import Block
from penstock.service.wire.worker_messages import LeftOut

_OVERHEAD_BYTES = 256


@dataclass(frozen=True)
class Behind:
    """Rows skipped after the last element of a pass; they take one position, as an exception does."""

    left_out: LeftOut


Found = Block | Exception | Behind
"""The block, or its replacement, at a position of a pass."""


class ProducedWindow:
    """The elements at the positions `first` to `next` - 1, and the rows skipped before them."""

    def __init__(self, position: int) -> None:
        self.first = self.next = position
        self.nbytes = 0
        self._starts: list[int] = []
        self._found: list[Found] = []
        self._left_out: dict[int, LeftOut] = {}
        self._gone = 0  # dropped pieces at the beginning of the lists

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self._starts) - self._gone

    def add(self, found: Found, left_out: LeftOut | None) -> None:
        """Add the elements from `next` on, with the rows skipped before them."""
        if left_out is not None:
            self._left_out[self.next] = left_out
        self._starts.append(self.next)
        self._found.append(found)
        self.next += rows_of(found)
        self.nbytes += _bytes_of(found)

    def left_out(self, position: int) -> LeftOut | None:
        """The rows skipped before a position."""
        return self._left_out.get(position)

    def at(self, position: int, rows: int) -> Found:
        """Up to `rows` rows from a position on, of one block: read-only, because other readers share them."""
        number = bisect_right(self._starts, position) - 1
        found = self._found[number]
        if not isinstance(found, Block):
            return found
        start = position - self._starts[number]
        return found.slice(start, start + rows).read_only()

    def first_stop(self) -> int:
        """The position at which the oldest piece ends."""
        return self._starts[self._gone + 1] if len(self) > 1 else self.next

    def _drop(self) -> None:
        """Forget the oldest piece."""
        self._left_out.pop(self.first, None)
        self.first = self.first_stop()
        self.nbytes -= _bytes_of(self._found[self._gone])
        self._found[self._gone] = _DROPPED
        self._gone += 1
        if self._gone > len(self._starts) // 2:
            del self._starts[: self._gone], self._found[: self._gone]
            self._gone = 0

    def make_room(self, nbytes: int, needed: int) -> int:
        """Forget the oldest pieces, up to a number of bytes; returns how many were freed.

        The newest piece stays, and everything from the position `needed` on.
        """
        before = self.nbytes
        while before - self.nbytes < nbytes and len(self) > 1 and self.first_stop() <= needed:
            self._drop()
        return before - self.nbytes


_DROPPED = Exception()


def rows_of(found: Found) -> int:
    """Return the number of positions that a piece takes."""
    return len(found) if isinstance(found, Block) else 1


def _bytes_of(found: Found) -> int:
    return _OVERHEAD_BYTES + (found.nbytes if isinstance(found, Block) else 0)
