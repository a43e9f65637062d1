"""The limit on how far calls in other threads run ahead of the consumer."""

from collections.abc import Collection
from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from penstock.runtime.callers import Callers

OVERTAKING = 16
"""The number of results that may wait behind a slow call, for each call that may run."""
_BYTES = 1 << 26
_DONE = attrgetter("done")
_LARGE_ROW_BYTES = 1 << 19
"""Rows of this size are counted individually, even if one task makes several of them."""


class Begun(Protocol):
    """Rows that are made in advance."""

    @property
    def done(self) -> bool:
        """Return whether the rows are finished and wait to be taken."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait."""

    @property
    def results(self) -> int:
        """The number of results: one for each task, or for each large row."""


class Lookahead:
    """Decision whether to begin another piece of work before it is requested.

    One begins as long as the callers want more and few results wait to be taken: as many as calls may run, if nothing
    delays them. Other calls may overtake a slow one, up to 16 pieces for each call or 64 MB.
    """

    def __init__(self) -> None:
        self._callers: list[Callers] = []

    def meet(self, callers: Callers) -> None:
        """Add callers whose calls are waited for."""
        if callers not in self._callers:
            self._callers.append(callers)

    @property
    def wide(self) -> bool:
        """Return whether the calls for one piece are too few for one task."""
        return all(callers.chunk > 1 for callers in self._callers)

    def free(self, pieces: Collection[Begun]) -> bool:
        """Return whether another piece may begin after these."""
        with_threads = [callers for callers in self._callers if not callers.serial]
        if not with_threads or not all(callers.want_more for callers in with_threads):
            return False
        count = max(callers.count for callers in with_threads)
        ready = sum(piece.results for piece in takewhile(_DONE, pieces))
        if ready >= count or len(pieces) >= OVERTAKING * count:
            return False
        if sum(piece.results for piece in pieces) <= 2 * count:
            return True
        return sum(piece.nbytes for piece in pieces) < _BYTES


def results_of(tasks: int, rows: int, nbytes: int) -> int:
    """Return the value of `Begun.results` for calls for `rows` rows in `tasks` tasks, which hold `nbytes`."""
    return max(1, tasks, min(rows, nbytes // _LARGE_ROW_BYTES))
