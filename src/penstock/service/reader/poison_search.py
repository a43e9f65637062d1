"""Which position of a span costs workers, when its function ends the process that calls it.

Workers die for other reasons too. A position is taken for the reason when three workers were lost that made nothing
else for this reader. Where positions can be had by themselves, the rest of a span is asked for in pieces when a worker
was lost over it, and the piece position by position when a second one was.

In a stream a worker has gone far before it has anything to give, and small requests are dear: single elements are asked
for only when three workers in a row were lost without giving one.
"""

from math import isqrt
from typing import Final

from msgspec.structs import replace

from penstock.service.wire.subjects import Span

WORKERS: Final = 3
"""How many workers are lost over an element alone before it is taken for the reason."""

_NEAR: Final = 64
_FARTHER: Final = 16
"""How many elements of a stream are asked for one by one the first time, and how many times more at the next."""


class PoisonSearch:
    """What is known of one span.

    Attributes:
        alone: whether a single position is asked for, which a worker is to be given with nothing else.
    """

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._size = 0
        self._until = 0
        self._at = -1
        self._stream = False
        self._near = _NEAR

    @property
    def alone(self) -> bool:
        return self._size == 1 and not self._stream  # all lanes of a stream's reader may be at one worker for ever

    def next(self, missing: Span, stride: int) -> Span:
        """What to ask for next of what is missing, where only every `stride`-th position is read."""
        if self._size and missing.start >= self._until:  # it was not here
            self._workers, self._size = set(), 0
        if not self._size:
            return missing
        return replace(missing, stop=min(missing.stop, missing.start + self._size * stride))

    def worker_lost(self, worker_id: int, asked: Span) -> bool:
        """A worker was lost that had been asked for this in vain; whether its first position is to blame."""
        if self._size == 1:
            return self._lost_at(asked.start, worker_id) >= WORKERS
        self._size = 1 if self._size else isqrt(asked.stop - asked.start)
        self._until = asked.stop
        return False

    def stream_lost(self, worker_id: int, asked: Span, stride: int) -> bool:
        """The same for a span of a stream."""
        self._stream = True
        if self._lost_at(asked.start, worker_id) < WORKERS:
            return False
        if self._size == 1:
            return True
        self._size, self._until, self._workers = 1, asked.start + self._near * stride, set()
        self._near *= _FARTHER
        return False

    def _lost_at(self, position: int, worker_id: int) -> int:
        """How many workers were lost at one position, with this one."""
        if position != self._at:
            self._at, self._workers = position, set()
        self._workers.add(worker_id)
        return len(self._workers)
