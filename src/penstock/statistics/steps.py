"""The clock of the consumer's steps: when it asks, when it gets, and what the device did meanwhile."""

import heapq
import time
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from penstock.statistics import tracing
from penstock.statistics.schema import SlowStep, Steps

_SLOWEST: Final = 10
_ASK_EVERY: Final = 50
"""One of so many marked steps waits for the device, to learn how long that takes for a step."""
_TOGETHER: Final = 256
"""So many times of steps go into the histograms at once: one alone costs as much as fifty of these."""
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
        self._marked = 0
        self._yours = 0.0
        # How long the device took for the last marked step for which it was waited, and whether that is the last step.
        self._device: float | None = None
        self._waited = False
        # The times that are in no histogram yet.
        self._times = _no_times()

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        now = self._asked = time.perf_counter()
        steps = self._steps
        if not self.begun:
            self.begun = now
            steps.opening = now - self._made
        elif self._got:
            yours = self._yours = now - self._got
            self._times["yours"].append(yours)
            if tracing.recorder is not None:
                tracing.recorder.add("your step", self._got, yours, number=steps.count - 1)
            if not steps.first_yours:
                steps.first_yours = yours

    def get(self, rows: int, operator: int) -> None:
        """Note that the consumer gets elements, for which it waited mostly because of an operator."""
        now = self._got = time.perf_counter()
        blocked = now - self._asked
        steps = self._steps
        self._times["blocked"].append(blocked)
        if len(self._times["blocked"]) >= _TOGETHER:
            times, self._times = self._times, _no_times()
            _add(steps, times)
        if not steps.count:
            steps.first = blocked
        elif self._device is not None and not self._waited:  # as long as it computes an earlier step, nothing is lost
            self._times["exposed"].append(max(0.0, blocked - max(0.0, self._device - self._yours)))
        self._waited = False
        if steps.count and blocked > _SHORT:
            waits = *steps.slowest, SlowStep(steps.count, blocked, operator)
            steps.slowest = heapq.nlargest(_SLOWEST, waits, key=attrgetter("blocked"))
        if tracing.recorder is not None:
            tracing.recorder.add("next", self._asked, blocked, number=steps.count)
            tracing.recorder.step(self, steps.count + rows)
        steps.count += rows

    def mark(self, begun: float, result: Any) -> None:
        """Note that a training step that began then has ended for Python; the device may still compute its result."""
        asks = self._marked % _ASK_EVERY == 2  # the first steps compile a program
        self._marked += 1
        if asks and hasattr(result, "block_until_ready"):
            result.block_until_ready()
        elif asks and hasattr(result, "cpu"):
            result.detach().cpu()
        if asks:
            self._device, self._waited = time.perf_counter() - begun, True

    def copy(self) -> Steps:
        """Return the steps so far, as a copy."""
        steps = self._steps
        copied = replace(steps, **{name: getattr(steps, name).copy() for name in self._times})
        _add(copied, {name: list(seconds) for name, seconds in self._times.items()})
        return copied


def _no_times() -> dict[str, list[float]]:
    return {"blocked": [], "yours": [], "exposed": []}


def _add(steps: Steps, times: dict[str, list[float]]) -> None:
    for name, seconds in times.items():
        getattr(steps, name).add(seconds)


class StepMark:
    """The marking of a training step in `with loader.step() as step:`.

    Attributes:
        result: what the step computes, such as its loss, if a device computes it after Python has gone on.
    """

    def __init__(self, statistics: Any) -> None:
        self.result: Any = None
        self._statistics = statistics
        self._begun = 0.0

    def __enter__(self) -> "StepMark":
        self._begun = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._statistics is not None:
            with suppress(Exception):  # an error of the step is raised where its result is used
                self._statistics.steps.mark(self._begun, self.result)
