"""How far calls in other threads may run ahead of what is taken."""

from collections.abc import Collection
from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from penstock.runtime.callers import Callers

OVERTAKING = 16
"""For each call that may run, this many results may wait behind one that takes longer."""
_BYTES = 1 << 26
_DONE = attrgetter("done")
_LARGE_ROW_BYTES = 1 << 19
"""Rows of this size are counted one by one, though calls for several of them may be one task."""


class Begun(Protocol):
    """Rows that are made in advance."""

    @property
    def done(self) -> bool:
        """Whether they only wait to be taken."""

    @property
    def nbytes(self) -> int:
        """How many bytes wait."""

    @property
    def results(self) -> int:
        """How many results they are, in calls that took long enough to be a task, or were for a large row."""


class Lookahead:
    """Decides whether to begin another piece of work before it is asked for.

    It begins one as long as the callers want more and few results wait to be taken: as many as calls may run, if
    nothing holds them up. Behind a call that takes longer than others these may overtake it, up to 16 pieces for each
    call or 64 MB.
    """

    def __init__(self) -> None:
        self._callers: list[Callers] = []

    def meet(self, callers: Callers) -> None:
        """Note whose calls are waited for."""
        if callers not in self._callers:
            self._callers.append(callers)

    @property
    def wide(self) -> bool:
        """Whether the calls for one piece are too few for one task."""
        return all(callers.chunk > 1 for callers in self._callers)

    def free(self, pieces: Collection[Begun]) -> bool:
        """Whether there is room for another piece, ahead of these."""
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
    """How many results `Begun.results` says that calls for so many rows have, which were divided into so many tasks."""
    return max(1, tasks, min(rows, nbytes // _LARGE_ROW_BYTES))
