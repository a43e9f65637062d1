"""The statistics of one iteration: its operators, and the lanes of all threads that work for it."""

import logging
import threading
from collections.abc import Callable
from copy import copy
from functools import partial
from socket import gethostname
from time import perf_counter
from typing import Protocol, Unpack

from penstock.statistics import process
from penstock.statistics.lanes import Arguments, Lane, Result, here
from penstock.statistics.machine import findings, usable_cores
from penstock.statistics.schema import Operator, Requests, Snapshot, Stage
from penstock.statistics.steps import StepClock

_logger = logging.getLogger(__name__)


class CallCounts(Protocol):
    """Makers of the calls of a function: up to `count` at a time, or `serial` in the reading thread."""

    serial: bool
    count: int


class Meter:
    """Measures one operator, in whichever thread it works. This one measures nothing."""

    number = -1

    def measured(self, function: Callable[[Unpack[Arguments]], Result], *args: *Arguments) -> Result:
        """Return what a function returns, and count the rows if that is a block."""
        return function(*args)

    def measuring(self, function: Callable[[int, int], Result]) -> Callable[[int, int], Result]:
        """Return a function that measures another."""
        return function


NO_METER = Meter()


class _OperatorMeter(Meter):
    """Variant that measures. It is called for each block: what it costs is what statistics cost."""

    def __init__(self, statistics: "Statistics", number: int) -> None:
        self._statistics = statistics
        self.number = number

    def measured(self, function: Callable[[Unpack[Arguments]], Result], *args: *Arguments) -> Result:
        statistics, number = self._statistics, self.number
        if statistics.off:
            return function(*args)
        try:
            lane = statistics.own.lane or statistics.new_lane()
            above, inner = lane.number, lane.inner
            if above != number:
                begun = lane.enter(number) if above < 0 else perf_counter()
                lane.number, lane.inner = number, 0.0
                if lane.thorough:
                    function, begun = lane.begin_thorough(number, function)  # type: ignore[assignment]  # takes the same
        except Exception as error:
            statistics.fail(error)
            return function(*args)
        if above == number:  # an operator that reads by index is measured within its stream
            return function(*args)
        made: Result | None = None
        try:
            made = function(*args)
            return made
        finally:
            try:
                whole = perf_counter() - begun
                seconds = whole - lane.inner
                counts = lane.counts[number]
                counts.seconds += seconds
                if seconds > lane.longest:
                    lane.longest, lane.slowest = seconds, number
                block = made[0] if type(made) is tuple else made  # beside the failure of the row after it
                counts.rows += getattr(block, "length", 0)
                lane.number, lane.inner = above, inner + whole
                if lane.thorough:
                    lane.end_thorough(number, begun, seconds, block)
                if above < 0:
                    lane.leave()
            except Exception as error:
                statistics.fail(error)

    def measuring(self, function: Callable[[int, int], Result]) -> Callable[[int, int], Result]:
        return partial(self.measured, function)  # type: ignore[arg-type]  # mypy takes no arguments from it


class _Own(threading.local):
    """The lane of the present thread in one iteration."""

    lane: Lane | None = None


class Statistics:
    """Counts of one iteration.

    Attributes:
        lanes: those of all threads so far.
        steps: the consumer's.
        calls: what makes the calls of operators in threads.
        off: whether nothing is counted any more.
        own: the lane of the present thread.
        meters: what measures each operator, by what tells it from the others.
        start: the seconds of the start until the first request, and those of data workers.
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.steps = StepClock()
        self.calls: dict[int, CallCounts] = {}
        self.off = False
        self.own = _Own()
        self.meters: dict[tuple[object, ...], Meter] = {}
        self.start = dict(process.seconds)
        self._stores = process.stores.since(Requests())
        self._operators: list[Callable[[], Operator] | Operator] = []
        self._lock = threading.Lock()

    def meter(self, key: tuple[object, ...], describe: Callable[[], Operator]) -> Meter:
        """Return what measures an operator, and describes it when that is asked for."""
        with self._lock:
            meter = self.meters.get(key)
            if meter is None:
                meter = self.meters[key] = _OperatorMeter(self, len(self._operators))
                self._operators.append(describe)
        return meter

    def operator(self, number: int) -> Operator:
        """Return the operator of a number."""
        found = self._operators[number]
        if not isinstance(found, Operator):
            found = self._operators[number] = found()
        return found

    def new_lane(self) -> Lane:
        """Return the lane of this thread, which has none so far."""
        lane = self.own.lane = Lane(here.name, here.owner, self.operator, self.fail)
        self.lanes.append(lane)
        return lane

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        if self.off:
            return
        try:
            lane = self.own.lane
            if lane is not None:
                lane.longest, lane.slowest = 0.0, -1
                if lane.number >= 0:
                    lane.forget()
            self.steps.ask()
        except Exception as error:
            self.fail(error)

    def get(self, rows: int) -> None:
        """Note that the consumer gets elements."""
        if self.off:
            return
        try:
            lane = self.own.lane
            self.steps.get(rows, -1 if lane is None else lane.slowest)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Count nothing any more after a fault, which must not stop the training."""
        if self.own.lane is not None:
            self.own.lane.forget()
        if not self.off:
            self.off = True
            _logger.error("penstock's statistics are off, because of a fault in them", exc_info=error)

    def snapshot(self, rank: int = 0) -> Snapshot:
        """Return a copy of what was counted so far, with the lanes of each kind put together; empty after a fault."""
        try:
            return self._snapshot(rank)
        except Exception as error:
            self.fail(error)
            return Snapshot(rank=rank, off=True)

    def _snapshot(self, rank: int) -> Snapshot:
        stages: dict[tuple[str, int], Stage] = {}
        for lane in list(self.lanes):
            key = lane.name, -1 if lane.name == "worker" else lane.owner
            stage = stages.setdefault(key, Stage(*key))
            stage.threads += 1
            for number, counts in list(lane.counts.items()):
                stage.operators.setdefault(number, type(counts)()).merge(counts)
        steps = self.steps.copy()
        operators = [copy(self.operator(number)) for number in range(len(self._operators))]
        for number, calls in list(self.calls.items()):
            operators[number].threads = 0 if calls.serial else calls.count
        machine = gethostname(), usable_cores(), findings()
        start = {
            **self.start,
            "iter() until the first next()": self.steps.opening,
            "first element": steps.first,
            "your first step": steps.first_yours,
        }
        own = list(stages.values()), steps, rank, *machine
        return Snapshot(self.steps.elapsed, operators, *own, start=start, stores=process.stores.since(self._stores))
