"""How many rows to ask for at a time: as many as pay, and no more."""

import time

_SECONDS = 0.004
# Larger blocks gain nothing: they leave the cache, and their memory is given back to the system between blocks.
_GROW_BELOW_BYTES = 1 << 19
_MAXIMUM_ROWS = 1 << 16


class Pace:
    """The size of the next block, from what the last one cost.

    It starts at `minimum` rows, doubles while a block takes less than `seconds` and holds less than 512 KiB, and is
    halved above twice as long: an element that takes long to make does not wait for a thousand others, and one that
    takes none is not paid for one by one.
    """

    def __init__(self, minimum: int = 1, seconds: float = _SECONDS) -> None:
        self._minimum = minimum
        self._seconds = seconds
        self._rows = minimum
        self._grow_below_bytes = _GROW_BELOW_BYTES
        self._started = 0.0

    def aim(self, nbytes: int) -> None:
        """Let blocks grow up to about this size."""
        self._grow_below_bytes = nbytes // 2

    def start(self) -> int:
        """The rows to allow for the next block."""
        self._started = time.perf_counter()
        return self._rows

    def stop(self, nbytes: int, asked: int | None = None) -> None:
        """Note that a block has come. It may have fewer rows than were allowed: what counts is what asking cost.

        Args:
            asked: how many rows were asked for, where that may be fewer than were allowed: then the price of a block
                says nothing about larger ones.
        """
        seconds = time.perf_counter() - self._started
        if seconds > 2 * self._seconds:
            self._rows = max(self._minimum, self._rows // 2)
        elif seconds < self._seconds and nbytes < self._grow_below_bytes and (asked is None or asked >= self._rows):
            self._rows = min(self._rows * 2, _MAXIMUM_ROWS)
