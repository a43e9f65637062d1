"""The work of each thread: a lane has each moment at one operator, as work or as waiting."""

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter, sleep, thread_time
from types import TracebackType
from typing import Any, Final, TypeVar, TypeVarTuple

from penstock.statistics import tracing
from penstock.statistics.machine import queued
from penstock.statistics.schema import Counts, Operator

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_EVERY_SECONDS: Final = 0.02
"""Processor time is measured for one block in so long: reading its clock takes longer than all else here."""
_LOCK_SECONDS: Final = 0.001
"""Python's lock comes back later than this only if another thread took it."""


class _Here(threading.local):
    """The present thread.

    Attributes:
        lane: the lane that measures now.
        name: what the thread is for.
        owner: the number of the operator that started it.
        starts: whether the start of the process is measured now.
    """

    lane: "Lane | None" = None
    name = "consumer"
    owner = -1
    starts = False


here = _Here()


class Lane:
    """One thread's part of an iteration.

    Attributes:
        counts: the counts of each operator that ran here.
        number: the operator at work; -1 for none.
        inner: the seconds, since that began, of the operators within it and of waits.
        longest: the longest time that one operator took in this step.
        slowest: the number of that operator; -1 for none.
        thorough: whether processor time is measured for this block, or a trace is made.
    """

    def __init__(
        self, name: str, owner: int, operator: Callable[[int], Operator], fail: Callable[[Exception], None]
    ) -> None:
        self.name = name
        self.owner = owner
        self.fail = fail
        self.counts: defaultdict[int, Counts] = defaultdict(Counts)
        self._operator = operator
        self._sampled = self._waits_since = 0.0
        # For each operator at work, the processor time when it began, and that of the operators within it.
        self._processor: list[tuple[float, float]] = []
        self._outer: Lane | None = None
        self._mark: Callable[[str], AbstractContextManager[Any]] | None = None
        self.longest, self.slowest = 0.0, -1
        self.forget()

    def forget(self) -> None:
        """Forget what Ctrl-C has left unfinished."""
        self.number, self.inner, self.thorough = -1, 0.0, False
        self._processor.clear()
        if here.lane is self:
            self.leave()

    def enter(self, number: int) -> float:
        """Begin to measure in this thread, where none of this iteration's operators is at work; returns the time."""
        self._outer, here.lane = here.lane, self
        now = perf_counter()
        samples = now - self._sampled > _EVERY_SECONDS
        self._mark = tracing.annotation_now()
        self.thorough = samples or tracing.recorder is not None or self._mark is not None
        if samples:
            self._sampled = now
            if self.name == "worker":
                self._try_lock(number)
        return now

    def leave(self) -> None:
        """End to measure in this thread: no operator is at work any more."""
        here.lane, self._outer = self._outer, None

    def _try_lock(self, number: int) -> None:
        """Count whether another thread waits for Python's lock, by leaving it."""
        counts = self.counts[number]
        before = queued()  # takes long itself, so it is read before and after the time that is measured
        begun = perf_counter()
        sleep(0)  # leaves the lock long enough for another thread to wake up
        seconds = perf_counter() - begun
        counts.lock_asked += 1
        counts.lock_waited += seconds - (queued() - before) > _LOCK_SECONDS

    def begin_thorough(self, number: int, function: Callable[..., Result]) -> tuple[Callable[..., Result], float]:
        """Measure an operator's processor time from the time that is returned too.

        Its function is marked in the trace of the user's framework.
        """
        if self._mark is not None:
            function = partial(_marked, self._mark(self._operator(number).label), function)
        self._processor.append((thread_time(), 0.0))
        return function, perf_counter()

    def end_thorough(self, number: int, begun: float, seconds: float, made: Any) -> None:
        """Count the processor time of an operator that has worked so long, and the size of what it has made."""
        since, inner = self._processor.pop()
        processor = thread_time() - since
        if self._processor:
            above, others = self._processor[-1]
            self._processor[-1] = above, others + processor
        counts = self.counts[number]
        counts.sampled += seconds
        counts.processor += processor - inner
        if getattr(made, "length", 0):  # a block
            counts.sampled_rows += made.length
            counts.sampled_bytes += made.nbytes
        if tracing.recorder is not None:
            tracing.recorder.add(self._operator(number).label, begun, perf_counter() - begun)

    def begin_wait(self) -> None:
        """Note that the thread begins to wait for another."""
        self._waits_since = perf_counter()

    def end_wait(self) -> None:
        """Count the wait of the operator at work."""
        number = self.number
        if number < 0:
            return
        seconds = perf_counter() - self._waits_since
        self.counts[number].waited += seconds
        self.inner += seconds
        if seconds > self.longest:
            self.longest, self.slowest = seconds, number
        if tracing.recorder is not None:
            tracing.recorder.add(f"{self._operator(number).label} waits", self._waits_since, seconds)


def _marked(mark: AbstractContextManager[Any], function: Callable[..., Result], *args: Any) -> Result:
    """Return what a function returns, in a context."""
    with mark:
        return function(*args)


class _Waiting:
    """The time in `with waiting:` is one in which the thread waits for others, and no work."""

    def __enter__(self) -> None:
        if here.lane is not None:
            here.lane.begin_wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        lane = here.lane
        if lane is not None:
            try:
                lane.end_wait()
            except Exception as fault:
                lane.fail(fault)


waiting = _Waiting()


def operator_here() -> int:
    """Return the number of the operator that is at work in this thread; -1 for none."""
    return -1 if here.lane is None else here.lane.number


def name_thread(name: str, owner: int) -> None:
    """Say what this thread is for, and which operator has started it."""
    here.name, here.owner = name, owner
