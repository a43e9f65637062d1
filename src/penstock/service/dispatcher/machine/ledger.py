"""The ledger of a pass: which of its positions nobody owns yet."""

import msgspec

from penstock.service.wire.spans import clipped, count, merged, without
from penstock.service.wire.subjects import Pass, Span

ENDLESS = 1 << 62
"""Stands for the length of a pass that is infinite or not known."""


class Ledger(msgspec.Struct):
    """Free are the positions of `returned`, and all from `frontier` to the end of the pass.

    Attributes:
        home: the worker that the pass was made for, or that has adopted it; -1 when that one is gone.
        frontier: the first position that was never handed out.
        returned: free positions before the frontier, in order.
    """

    part: Pass
    home: int = -1
    frontier: int = 0
    returned: list[Span] = []

    @property
    def bound(self) -> int:
        """The length, or ENDLESS."""
        return self.part.length if self.part.length >= 0 else ENDLESS

    @property
    def free(self) -> int | None:
        """How many positions are free; None where that is not known."""
        if self.part.length < 0:
            return None
        return max(0, self.part.length - self.frontier) + count(self.returned)

    def copy(self) -> "Ledger":
        """One that can be changed by itself."""
        return msgspec.structs.replace(self, returned=list(self.returned))

    def take(self, span: Span) -> None:
        """Take out of what is free whatever of a span is."""
        stop = min(span.stop + (span.more > 0), self.bound)
        if stop > self.frontier:
            reached = Span(pass_number=self.part.number, start=self.frontier, stop=stop)
            self.returned = merged([*self.returned, reached])
            self.frontier = stop
        self.returned = without(self.returned, span)

    def give_back(self, span: Span) -> None:
        """Positions are free again."""
        self.returned = merged(clipped([*self.returned, span], self.part.number, self.bound))

    def end(self, length: int) -> None:
        """The pass is known to have ended. What was found first counts."""
        if self.part.length != -2:
            return
        self.part = msgspec.structs.replace(self.part, length=length)
        self.frontier = min(self.frontier, length)
        self.returned = clipped(self.returned, self.part.number, length)
