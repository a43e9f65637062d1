"""The clock of the consumer's steps: when it asks, when it gets, and what the device did meanwhile."""

import heapq
import time
from typing import Final

from msgspec.structs import replace

from penstock.statistics import tracing
from penstock.statistics.schema import SlowStep, Steps

_SLOWEST: Final = 10
_SHORT: Final = 0.001
"""A wait of less than this is never among the slowest."""


class StepClock:
    """Measures the steps of one consumer, which asks and then gets.

    Attributes:
        begun: when it asked first; 0 before.
    """

    def __init__(self) -> None:
        self._steps = Steps()
        self._made = time.perf_counter()
        self._asked = self._got = 0.0
        self.begun = 0.0
        self._heap: list[tuple[float, int, int]] = []

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        now = self._asked = time.perf_counter()
        steps = self._steps
        if not self.begun:
            self.begun = now
            steps.opening = now - self._made
        elif self._got:
            yours = now - self._got
            steps.yours.add(yours)
            if tracing.recorder is not None:
                tracing.recorder.add("your step", self._got, yours, number=steps.count - 1)
            if steps.yours.count == 1:
                steps.first_yours = yours

    def get(self, rows: int, operator: int) -> None:
        """Note that the consumer gets elements, for which it waited mostly because of an operator."""
        now = self._got = time.perf_counter()
        blocked = now - self._asked
        steps = self._steps
        steps.blocked.add(blocked)
        if not steps.count:
            steps.first = blocked
        elif blocked > _SHORT and (len(self._heap) < _SLOWEST or blocked > self._heap[0][0]):
            push = heapq.heappush if len(self._heap) < _SLOWEST else heapq.heapreplace
            push(self._heap, (blocked, steps.count, operator))
        if tracing.recorder is not None:
            tracing.recorder.add("next", self._asked, blocked, number=steps.count)
            tracing.recorder.step(self, steps.count + rows)
        steps.count += rows

    def copy(self) -> Steps:
        """Return the steps so far, as a copy."""
        steps = self._steps
        slowest = [
            SlowStep(number, blocked, operator) for blocked, number, operator in sorted(self._heap, reverse=True)
        ]
        histograms = {name: getattr(steps, name).copy() for name in ("blocked", "yours", "exposed")}
        return replace(steps, slowest=slowest, **histograms)
