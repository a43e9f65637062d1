"""How many positions to fetch at a time, and how much may be under way."""

_GROWTH = 4
_SECONDS = 0.1
_FEWEST_SECONDS = 0.005
"""A span that takes a worker less is not cut: to ask for another one costs more than it may gain."""
_BYTES = 4 << 20
_FEWEST = 2
"""So many positions fit into a span however large they are: while one is on its way the next is made."""
_BUDGET_BYTES = 64 << 20
_MANY = 1 << 20
_ALPHA = 0.3


class SpanPace:
    """The size of the next span, from what the last blocks cost.

    A span is to take a worker about 100 ms and to hold about 4 MiB, or two positions, so that workers share the load
    finely and no round trip is paid for a single cheap element. It starts at one position and grows at most fourfold at
    a time. A position may give many elements or none, so what has come counts for those that are done.

    Args:
        limit: the most elements that may be under way and not handed on; None: as many as 64 MiB hold.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._bytes_per_row = 0.0
        # Sums in which what was longer ago counts less and less.
        self._positions = self._bytes = self._seconds = 0.0
        self._span = 1

    def arrived(self, rows: int, nbytes: int) -> None:
        """Note how large the elements of a block are."""
        old, new = self._bytes_per_row, nbytes / rows
        self._bytes_per_row = new if old == 0 else old + _ALPHA * (new - old)

    def measured(self, positions: int, nbytes: int, seconds: float) -> None:
        """Note what has come since so many positions were done before; there may be none since."""
        kept = 1 - _ALPHA if positions else 1.0
        self._positions = kept * self._positions + positions
        self._bytes = kept * self._bytes + nbytes
        self._seconds = kept * self._seconds + seconds
        if positions:
            fitting = min(
                _SECONDS / self._seconds * self._positions if self._seconds else float(_MANY),
                max(_FEWEST, _BYTES / self._bytes * self._positions) if self._bytes else float(_MANY),
            )
            self._span = max(1, int(min(fitting, self._span * _GROWTH)))

    def size(self, remaining: int | None, lanes: int, under_way: int) -> int:
        """How many positions the next span should have; 0 if nothing more may be under way now.

        Args:
            remaining: positions that nobody has begun, where that is known.
            lanes: how many spans are fetched at the same time.
            under_way: elements that were asked for and not handed on.
        """
        size = self._span
        if remaining is not None:
            fewest = int(_FEWEST_SECONDS / self._seconds * self._positions) if self._seconds else 1
            size = min(size, max(1, fewest, remaining // lanes))  # all lanes end at about the same time
        return min(size, max(0, self._most(lanes) - under_way))

    def lease(self, spans: int, lanes: int, under_way: int) -> int:
        """How many positions to lease, those of so many spans; 0 if nothing more may be under way now.

        That may be more than 64 MiB hold: what is leased comes when there is room.
        """
        size, room = spans * self._span, max(0, self._most(lanes) - under_way)
        return min(size, room) if self.limit is not None or room == 0 else size

    def _most(self, lanes: int) -> int:
        """How many elements may be under way."""
        if self.limit is not None:
            return self.limit
        if self._bytes_per_row:
            return max(2 * lanes, int(_BUDGET_BYTES / self._bytes_per_row))
        return _MANY if self._positions else 2 * lanes  # either nothing is left of them, or nobody knows yet

    def holds(self, rows: int) -> bool:
        """Whether so many elements may wait to be handed on."""
        if self.limit is not None:
            return rows <= self.limit
        return rows * self._bytes_per_row <= _BUDGET_BYTES
