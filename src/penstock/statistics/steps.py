"""The clock of the consumer's steps: when it asks, when it gets, and what the device did meanwhile."""

from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from penstock.statistics import tracing
from penstock.statistics.schema import SLOWEST, SlowStep, Steps, slowest_of

_ASK_EVERY: Final = 50
"""One of so many marked steps waits for the device, to learn how long that takes for a step."""
_TOGETHER: Final = 1024
"""This number of times of steps goes into the histograms at once: a single one costs as much as a hundred of these."""
_SHORT: Final = 0.001
"""A shorter wait is never among the slowest."""


class StepClock:
    """Measures the steps of one consumer, which asks and then gets.

    Attributes:
        begun: when it asked first; 0 before.
        opening: the seconds until then.
    """

    def __init__(self) -> None:
        self._steps = Steps()
        self._made = perf_counter()
        self._asked = self._got = 0.0
        self.begun = self.opening = 0.0
        self._rows = 0
        self._marked = 0
        self._slow = _SHORT
        self._last_yours = 0.0
        # How long the device took for the last marked step for which it was waited, and whether that is the last step.
        self._device: float | None = None
        self._waited = False
        self._forget_times()

    def _forget_times(self) -> None:
        """Begin new lists of the times that are in no histogram yet."""
        self._blocked: list[float] = []
        self._yours: list[float] = []
        self._exposed: list[float] = []

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        now = self._asked = perf_counter()
        if self._got:
            yours = self._last_yours = now - self._got
            self._yours.append(yours)
            if tracing.recorder is not None:
                tracing.recorder.add("your step", self._got, yours, number=self._steps.count - 1)
                tracing.recorder.use(self._got)
        elif not self.begun:
            self.begun = now
            self.opening = now - self._made

    def get(self, rows: int, operator: int) -> None:
        """Note that the consumer gets elements, for which it waited mostly because of an operator."""
        now = self._got = perf_counter()
        blocked = now - self._asked
        steps = self._steps
        self._blocked.append(blocked)
        if not steps.count:
            steps.first = blocked
        elif blocked > self._slow:
            steps.slowest = slowest_of(*steps.slowest, SlowStep(steps.count, blocked, operator))
            if len(steps.slowest) == SLOWEST:
                self._slow = steps.slowest[-1].blocked
        if self._device is not None:
            if steps.count and not self._waited:  # as long as it computes an earlier step, nothing is lost
                self._exposed.append(max(0.0, blocked - max(0.0, self._device - self._last_yours)))
            self._waited = False
        if tracing.recorder is not None:
            tracing.recorder.add("next", self._asked, blocked, number=steps.count)
            tracing.recorder.step(self, steps.count + rows)
        steps.count += rows
        self._rows = rows
        if len(self._blocked) >= _TOGETHER:
            self._add_to(steps)
            self._forget_times()

    def mark(self, begun: float, result: Any) -> None:
        """Note that a training step that began then has ended for Python; the device may still compute its result."""
        asks = self._marked % _ASK_EVERY == 2  # the first steps compile a program
        self._marked += 1
        if asks and hasattr(result, "block_until_ready"):
            result.block_until_ready()
        elif asks and hasattr(result, "cpu"):
            result.detach().cpu()
        if asks:
            self._device, self._waited = perf_counter() - begun, True

    @property
    def elapsed(self) -> float:
        """The seconds from the first request to the last, or to what came of it."""
        return max(self._asked, self._got) - self.begun

    def copy(self) -> Steps:
        """Return the steps so far, as a copy."""
        steps = self._steps
        left = self._rows if self._got > self._asked else 0
        copied = replace(
            steps, left=left, blocked=steps.blocked.copy(), yours=steps.yours.copy(), exposed=steps.exposed.copy()
        )
        self._add_to(copied)
        return copied

    def _add_to(self, steps: Steps) -> None:
        if not steps.first_yours and self._yours:
            steps.first_yours = self._yours[0]
        steps.blocked.add(self._blocked)
        steps.yours.add(self._yours)
        steps.exposed.add(self._exposed)


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
        self._begun = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._statistics is not None:
            with suppress(Exception):  # an error of the step is raised where its result is used
                self._statistics.steps.mark(self._begun, self.result)
