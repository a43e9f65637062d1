"""Finds the position of a span that kills workers, because a function ends the process that calls it.

Workers die for other reasons too, so a position is blamed only after three workers died while making nothing else. If
positions can be read by themselves, the rest of a span is requested in pieces after the first loss, and the piece
position by position after the second.

A worker must read a stream from its beginning, so small requests are expensive: single elements are requested only
after three workers in a row were lost without giving one.
"""

from math import isqrt
from typing import Final

from msgspec.structs import replace

from penstock.service.wire.subjects import Span

WORKERS: Final = 3
"""The number of workers that must be lost over a single element before it is blamed."""

_NEAR: Final = 64
_FARTHER: Final = 16
"""The number of elements of a stream that are requested one by one the first time, and the factor for the next."""


class PoisonSearch:
    """The search in one span."""

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._size = 0
        self._until = 0
        self._at = -1
        self._near = _NEAR

    @property
    def alone(self) -> bool:
        """Return whether a single position is requested, which the worker makes alone; only then may it be to blame."""
        return self._size == 1

    def next(self, missing: Span, stride: int) -> Span:
        """Return the part of the missing span to request next, if only every `stride`-th position is read."""
        if self._size and missing.start >= self._until:  # the position was not in the last piece
            self._workers, self._size = set(), 0
        if not self._size:
            return missing
        return replace(missing, stop=min(missing.stop, missing.start + self._size * stride))

    def worker_lost(self, worker_id: int, asked: Span) -> bool:
        """Note that a worker was lost over this span; returns whether its first position is to blame."""
        if self._size == 1:
            return self._lost_at(asked.start, worker_id) >= WORKERS
        self._size = 1 if self._size else isqrt(asked.stop - asked.start)
        self._until = asked.stop
        return False

    def stream_lost(self, worker_id: int, asked: Span, stride: int) -> bool:
        """Variant of `worker_lost`, for a span of a stream."""
        if self._lost_at(asked.start, worker_id) < WORKERS:
            return False
        if self._size == 1:
            return True
        self._size, self._until, self._workers = 1, asked.start + self._near * stride, set()
        self._near *= _FARTHER
        return False

    def _lost_at(self, position: int, worker_id: int) -> int:
        """Return the number of workers that were lost at a position, including this one."""
        if position != self._at:
            self._at, self._workers = position, set()
        self._workers.add(worker_id)
        return len(self._workers)
