"""How far calls in other threads may run ahead of what is taken."""

from collections.abc import Collection
from typing import Protocol

from penstock.runtime.callers import Callers

OVERTAKING = 16
"""For each call that may run, this many results may wait behind one that takes longer."""
_BYTES = 1 << 26


class Begun(Protocol):
    """Rows that are made in advance."""

    @property
    def done(self) -> bool:
        """Whether they only wait to be taken."""

    @property
    def nbytes(self) -> int:
        """How many bytes wait."""


class Room:
    """Decides whether to begin another piece of work before it is asked for.

    It begins one as long as the callers want more and few results wait to be taken: as many pieces as calls may run, if
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
        if not self._callers or not all(callers.want_more for callers in self._callers):
            return False
        count = max(callers.count for callers in self._callers)
        if len(pieces) < count:
            return True
        ready = 0
        for piece in pieces:
            if not piece.done:
                break
            ready += 1
        if ready >= count or len(pieces) >= OVERTAKING * count:
            return False
        if len(pieces) <= 2 * count:
            return True
        return sum(piece.nbytes for piece in pieces) < _BYTES
