"""The work of each thread: a lane charges every moment to one operator, as work or as waiting."""

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter, sleep, thread_time
from types import TracebackType
from typing import Any, Final

from penstock.statistics import tracing
from penstock.statistics.schema import Counts, Operator

_EVERY_SECONDS: Final = 0.02
"""Processor time is measured for one block in so long: reading its clock takes longer than all else here."""
_LOCK_SECONDS: Final = 0.0005
"""Python's lock comes back later than this only if another thread took it."""


class _Here(threading.local):
    """The present thread.

    Attributes:
        lane: the lane that measures now.
        name: what the thread is for.
        owner: the number of the operator that started it.
    """

    lane: "Lane | None" = None
    name = "consumer"
    owner = -1


here = _Here()


class Lane:
    """One thread's part of an iteration.

    Attributes:
        counts: the counts of each operator that ran here.
        stack: the numbers of the operators at work, of which the last one is charged.
        since: when that began.
        waiting: whether it waits.
        longest: the longest time that one operator was charged in this step, and the operator's number.
    """

    def __init__(self, name: str, owner: int, operator: Callable[[int], Operator]) -> None:
        self.name = name
        self._operator = operator
        self._marks: list[AbstractContextManager[Any]] = []
        self.owner = owner
        self.counts: defaultdict[int, Counts] = defaultdict(Counts)
        self.stack: list[int] = []
        self.since = 0.0
        self.waiting = False
        self.longest = (0.0, -1)
        self._outer: Lane | None = None
        # When processor time was measured last, whether it is now, and the clock then.
        self._sampled = 0.0
        self._sampling = False
        self._processor = 0.0

    def begin_step(self) -> None:
        """Begin a step of the consumer; what Ctrl-C has left unfinished is forgotten."""
        self.longest = (0.0, -1)
        if self.stack:
            self.stack.clear()
            here.lane, self._outer = self._outer, None

    def begin(self, number: int) -> None:
        """Charge an operator from now on."""
        now = perf_counter()
        if self.stack:
            self._charge(now)
        else:
            self._outer, here.lane = here.lane, self
            self.waiting = False
            if self._sampling or now - self._sampled > _EVERY_SECONDS:
                self._begin_sample(number, now)
        if tracing.annotation is not None and len(self._marks) == len(self.stack):
            self._marks.append(tracing.annotation(self._operator(number).label))
            self._marks[-1].__enter__()
        self.stack.append(number)
        self.since = now

    def _begin_sample(self, number: int, now: float) -> None:
        """Measure processor time for this block, unless it was measured for the last one."""
        self._sampling = now - self._sampled > _EVERY_SECONDS
        if self._sampling:
            self._sampled = now
            if self.name == "worker":
                self._try_lock(number)
            self._processor = thread_time()

    def _try_lock(self, number: int) -> None:
        """Count whether another thread waits for Python's lock, by leaving it."""
        counts = self.counts[number]
        begun = perf_counter()
        sleep(0)  # leaves the lock long enough for another thread to wake up
        counts.lock_asked += 1
        counts.lock_waited += perf_counter() - begun > _LOCK_SECONDS

    def end(self, made: Any) -> None:
        """Charge the operator before again: this one has made rows, if this is a block."""
        self._charge(perf_counter())
        number = self.stack.pop()
        if self._marks and len(self._marks) > len(self.stack):
            self._marks.pop().__exit__(None, None, None)
        rows = getattr(made, "length", 0)
        if rows and number not in self.stack[-1:]:  # an operator that reads by index is measured within its stream
            counts = self.counts[number]
            counts.rows += rows
            if self._sampling:
                counts.sampled_rows += rows
                counts.sampled_bytes += made.nbytes
        if not self.stack:
            here.lane, self._outer = self._outer, None

    def _charge(self, now: float) -> None:
        """Add the time since the last change to the operator at work."""
        number = self.stack[-1]
        counts = self.counts[number]
        seconds = now - self.since
        self.since = now
        if self.waiting:
            counts.waited += seconds
        else:
            counts.seconds += seconds
        if seconds > self.longest[0]:
            self.longest = seconds, number
        if self._sampling:
            processor = thread_time()
            if not self.waiting:
                counts.sampled += seconds
                counts.processor += processor - self._processor
            self._processor = processor
        if tracing.recorder is not None:
            label = self._operator(number).label
            tracing.recorder.add(f"{label} waits" if self.waiting else label, now - seconds, seconds)

    def wait(self, waiting: bool) -> None:
        """Note that the thread begins or ends to wait for another."""
        if self.stack:
            self._charge(perf_counter())
            self.waiting = waiting


class _Waiting:
    """The time in `with waiting:` is one in which the thread waits for others, and no work."""

    def __enter__(self) -> None:
        if here.lane is not None:
            here.lane.wait(True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if here.lane is not None:
            here.lane.wait(False)


waiting = _Waiting()


def operator_here() -> int:
    """Return the number of the operator that is at work in this thread; -1 for none."""
    lane = here.lane
    return lane.stack[-1] if lane is not None and lane.stack else -1


def name_thread(name: str, owner: int) -> None:
    """Say what this thread is for, and which operator has started it."""
    here.name, here.owner = name, owner
