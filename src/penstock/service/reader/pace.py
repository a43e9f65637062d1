"""Number of positions to fetch at a time, and limit of the elements under way."""

import math
import time
from collections.abc import Callable

_GROWTH = 4
_SECONDS = 0.1
_FEWEST_SECONDS = 0.005
"""A span that takes a worker less time is not divided: another request costs more than it gains."""
_BYTES = 4 << 20
_FEWEST = 2
"""A span has at least this many positions, however large: the next is made while one is on its way."""
_BUDGET_BYTES = 64 << 20
_MANY = 1 << 20
_ALPHA = 0.3
_MEMORY_SECONDS = 1.0
"""Elements that were consumed longer ago hardly count."""
_SHORTEST_SECONDS = 0.1
"""Rates are taken over at least this time, so a reader may hold ten times the elements that it has consumed."""
_LEASE_SECONDS = 1.0
"""A reader of a shared job holds about as much as its caller consumes in this time."""
_SHARE = 4
"""It requests more when one part in this many is consumed."""
_PART_SECONDS = 0.1
"""A span of a shared job is no more than its caller consumes in this time, so that others can have the rest."""


class Usage:
    """Number of elements that the caller of a reader consumes per second, measured over about the last second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._rows = self._seconds = 0.0

    def used(self, rows: int) -> None:
        """Note that the caller has taken this many elements."""
        if not self._rows:  # time before the first element was not the caller's
            self._at = self._clock()
        self._pass_time()
        self._rows += rows

    @property
    def elements_per_second(self) -> float:
        """The rate; it falls while the caller takes nothing."""
        self._pass_time()
        return self._rows / max(self._seconds, _SHORTEST_SECONDS)

    def _pass_time(self) -> None:
        now = self._clock()
        seconds, self._at = now - self._at, now
        kept = math.exp(-seconds / _MEMORY_SECONDS)
        self._rows *= kept
        self._seconds = kept * self._seconds + seconds


class SpanPace:
    """Chooses the size of the next span from the cost of the last blocks.

    A span should take a worker about 100 ms and hold about 4 MiB, or two positions, so that workers share the load
    finely and no round trip is paid for a single cheap element. It starts at one position and grows at most fourfold at
    a time. A position may give many elements or none; averages are taken over completed positions.

    A reader of a shared job requests no more than its caller consumes in about a second, and leaves the rest to others.

    Args:
        limit: the most elements that may be requested and not delivered; None allows as many as 64 MiB hold.
        usage: the caller's consumption, if other readers cannot have the elements that are fetched here.
    """

    def __init__(self, limit: int | None, usage: Usage | None = None) -> None:
        self.limit = limit
        self._usage = usage
        self._bytes_per_row = 0.0
        # Sums with exponentially falling weights.
        self._positions = self._rows = self._bytes = self._seconds = 0.0
        self._new_rows = 0
        self._first_seconds = 0.0
        self._span = 1

    def arrived(self, rows: int, nbytes: int) -> None:
        """Note how large the elements of a block are."""
        old, new = self._bytes_per_row, nbytes / rows
        self._bytes_per_row = new if old == 0 else old + _ALPHA * (new - old)
        self._new_rows += rows

    def began(self, rows: int, seconds: float) -> None:
        """Note how long it took until the first `rows` elements of a span came.

        Where calls overlap, the first takes much longer than each of those that follow.
        """
        others = (rows - 1) * self._seconds / self._rows if self._rows else 0.0
        self._first_seconds += _ALPHA * (max(0.0, seconds - others) - self._first_seconds)

    def measured(self, positions: int, nbytes: int, seconds: float) -> None:
        """Note the cost of this many more completed positions, which may be none."""
        kept = 1 - _ALPHA if positions else 1.0
        self._positions = kept * self._positions + positions
        self._rows = kept * self._rows + self._new_rows
        self._new_rows = 0
        self._bytes = kept * self._bytes + nbytes
        self._seconds = kept * self._seconds + seconds
        if positions:
            fitting = min(
                _SECONDS / self._seconds * self._positions if self._seconds else float(_MANY),
                max(_FEWEST, _BYTES / self._bytes * self._positions) if self._bytes else float(_MANY),
            )
            self._span = max(1, int(min(fitting, self._span * _GROWTH)))

    def size(self, remaining: int | None, lanes: int, under_way: int) -> int:
        """Return the number of positions that the next span should have; 0 if nothing more may be under way now.

        Args:
            remaining: positions that no reader has begun; None if that is not known.
            lanes: the number of spans that are fetched at the same time.
            under_way: elements that were requested and not delivered; positions for a shared job.
        """
        size = self._span
        if self._usage is not None:
            size = min(size, max(1, self.used_in(_PART_SECONDS)))
        if remaining is not None:
            # A span of fewer would not be there earlier.
            seconds = max(_FEWEST_SECONDS, self._first_seconds)
            fewest = int(seconds / self._seconds * self._positions) if self._seconds else 1
            size = min(size, max(1, fewest, remaining // lanes))  # all lanes end at about the same time
        return min(size, max(0, self._most(lanes) - under_way))

    def lease(self, spans: int, lanes: int, under_way: int) -> int:
        """Return the number of positions to lease for `spans` spans; 0 if nothing more may be requested now.

        These may be more than 64 MiB hold: leased positions are fetched when there is room.
        """
        size, most = spans * self._span, self._most(lanes)
        room = max(0, most - under_way)
        if self._usage is not None:
            return min(size, room) if room >= most / _SHARE else 0  # not a few at a time
        return min(size, room) if self.limit is not None or room == 0 else size

    def _most(self, lanes: int) -> int:
        """Return the number of elements that may be under way; of positions for a shared job."""
        most = self._budget(lanes)
        return most if self._usage is None else min(most, max(2 * lanes, self.used_in(_LEASE_SECONDS)))

    def _budget(self, lanes: int) -> int:
        """Return the number of elements that may be under way by the limit, or to keep to 64 MiB."""
        if self.limit is not None:
            return self.limit
        if self._bytes_per_row:
            return max(2 * lanes, int(_BUDGET_BYTES / self._bytes_per_row))
        return _MANY if self._positions else 2 * lanes  # they gave no elements, or nothing is known yet

    def positions_of(self, rows: int) -> float:
        """Return the number of positions that give this many elements, judging by those that have arrived."""
        return rows * self._positions / self._rows if self._rows and self._positions else rows

    def used_in(self, seconds: float) -> int:
        """Return the number of positions that the caller consumes in this time."""
        if self._usage is None or (self._positions and not self._rows):  # they give no elements
            return _MANY
        return int(min(self.positions_of(1) * self._usage.elements_per_second * seconds, _MANY))

    def holds(self, rows: int) -> bool:
        """Return whether this many elements may be buffered."""
        if self.limit is not None:
            return rows <= self.limit
        if self._usage is not None and rows > max(_FEWEST, _LEASE_SECONDS * self._usage.elements_per_second):
            return False
        return rows * self._bytes_per_row <= _BUDGET_BYTES
