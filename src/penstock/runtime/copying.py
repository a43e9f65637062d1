"""Copies many rows with several threads: NumPy releases the interpreter's lock while it copies plain values."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.threads import Threads

_WORTH_SHARING = 1 << 20
"""Handing work to other threads takes about 20 µs, in which one thread copies 100 kB or more."""
_CHUNKS_PER_THREAD = 4


@dataclass(frozen=True)
class Copiers:
    """The threads that copy rows together: the calling one, and workers of `threads`."""

    threads: Threads
    count: int = 1

    def copy(self, work: Callable[[int, int], None], rows: int, nbytes: int) -> None:
        """Call `work(start, stop)` for parts of `range(rows)` until all rows, of `nbytes` together, are copied."""
        if self.count == 1 or nbytes < _WORTH_SHARING:
            work(0, rows)
            return
        self.threads.share(work, rows, self.count, max(1, rows // (self.count * _CHUNKS_PER_THREAD)))
