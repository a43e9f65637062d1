"""Chooses how many rows to ask for at a time: as many as are worthwhile, and no more."""

import time

_SECONDS = 0.004
# Larger blocks gain nothing: they leave the cache, and their memory is given back to the system between blocks.
_GROW_BELOW_BYTES = 1 << 20
_LARGE_ROW_BYTES = 1 << 20
"""Rows that are larger come one by one: copying one into a block costs more than a block does."""
_MAXIMUM_ROWS = 1 << 16
_TIMES_WHAT_CAME = 16
_MOST_READINGS = 16


class Demand:
    """Limits of reading for an iteration. Its streams share them.

    Attributes:
        ahead: whether more than was asked for may be read, where that saves time.
    """

    ahead = True


class Pace:
    """The size of the next block, adapted to the cost of the last one.

    It starts at `minimum` rows, doubles while a block takes less than `seconds` and holds less than 1 MiB, and is
    halved if a block takes more than twice as long. So a slow element does not wait for a thousand others, and the cost
    per block does not dominate for fast ones. A block that came quickly because it was made before, and is small, says
    little about a large one, so no more than 16 times the rows that came are allowed next. It stays at `minimum` where
    `demand` allows no more than is asked for. A block of `readings` sources may take as many times `seconds`: of each
    source it has a few rows only, which can cost as much as many.
    """

    def __init__(
        self, minimum: int = 1, seconds: float = _SECONDS, demand: Demand | None = None, readings: int = 1
    ) -> None:
        self._minimum = minimum
        self._demand = demand
        self._seconds = seconds * min(readings, _MOST_READINGS)
        self._rows = minimum
        self._grow_below_bytes = _GROW_BELOW_BYTES
        self._started = 0.0

    def aim(self, nbytes: int) -> None:
        """Let blocks grow up to about this size."""
        self._grow_below_bytes = nbytes // 2

    def start(self) -> int:
        """The rows to allow for the next block."""
        self._started = time.perf_counter()
        return self._rows if self._demand is None or self._demand.ahead else self._minimum

    def stop(self, nbytes: int, rows: int, asked: int | None = None) -> None:
        """Note that a block has come, possibly with fewer rows than were allowed.

        Args:
            nbytes: its size.
            rows: how many it has.
            asked: how many rows were asked for, if that may be fewer than were allowed: the cost of a smaller block
                says nothing about larger ones.
        """
        if nbytes > _LARGE_ROW_BYTES * rows:
            self._rows = self._minimum
            return
        seconds = time.perf_counter() - self._started
        if seconds > 2 * self._seconds:
            self._rows = max(self._minimum, self._rows // 2)
        elif seconds < self._seconds and nbytes < self._grow_below_bytes and (asked is None or asked >= self._rows):
            self._rows = max(self._rows, min(self._rows * 2, _MAXIMUM_ROWS, _TIMES_WHAT_CAME * rows))
