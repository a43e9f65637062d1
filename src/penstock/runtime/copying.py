"""Copies of many rows, made by several threads: NumPy lets go of Python's lock while it moves plain values."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.threads import Threads

_WORTH_SHARING = 1 << 20
"""Handing a copy to other threads takes some 20 µs, in which one thread alone moves 100 kB or more."""
_CHUNKS_PER_THREAD = 4


@dataclass(frozen=True)
class Copiers:
    """The threads that may copy rows together: all but the calling one are workers of `threads`."""

    threads: Threads
    count: int = 1

    def copy(self, work: Callable[[int, int], None], rows: int, nbytes: int) -> None:
        """Call `work(start, stop)` for parts of `range(rows)` until all rows, of `nbytes` together, are copied."""
        if self.count == 1 or nbytes < _WORTH_SHARING:
            work(0, rows)
            return
        self.threads.share(work, rows, self.count, max(1, rows // (self.count * _CHUNKS_PER_THREAD)))
