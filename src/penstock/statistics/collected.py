"""The statistics of one iteration: its operators, and the lanes of all threads that work for it."""

import logging
import threading
import time
from collections.abc import Callable
from copy import copy
from functools import partial
from socket import gethostname
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

from penstock.statistics.lanes import Lane, here
from penstock.statistics.machine import findings, usable_cores
from penstock.statistics.schema import Operator, Snapshot, Stage
from penstock.statistics.steps import StepClock

_logger = logging.getLogger(__name__)
_Arguments = TypeVarTuple("_Arguments")
Result = TypeVar("Result")


class CallCounts(Protocol):
    """Makers of the calls of a function: up to `count` at a time, or `serial` in the reading thread."""

    serial: bool
    count: int


class Meter:
    """Measures one operator, in whichever thread it works. This one measures nothing."""

    number = -1

    def measured(self, function: Callable[[Unpack[_Arguments]], Result], *args: *_Arguments) -> Result:
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

    def measured(self, function: Callable[[Unpack[_Arguments]], Result], *args: *_Arguments) -> Result:
        statistics = self._statistics
        if statistics.off:
            return function(*args)
        try:
            lane = statistics.own.lane or statistics.new_lane()
            lane.begin(self.number)
        except Exception as error:
            statistics.fail(error)
            return function(*args)
        made: Result | None = None
        try:
            made = function(*args)
            return made
        finally:
            try:
                lane.end(made)
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
    """

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.steps = StepClock()
        self.calls: dict[int, CallCounts] = {}
        self.off = False
        self.own = _Own()
        self._meters: dict[tuple[object, ...], Meter] = {}
        self._operators: list[Callable[[], Operator] | Operator] = []
        self._lock = threading.Lock()

    def meter(self, key: tuple[object, ...], describe: Callable[[], Operator]) -> Meter:
        """Return what measures an operator, and describes it when that is asked for."""
        meter = self._meters.get(key)
        if meter is None:
            with self._lock:
                meter = self._meters.setdefault(key, _OperatorMeter(self, len(self._operators)))
                if meter.number == len(self._operators):
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
        lane = self.own.lane = Lane(here.name, here.owner, self.operator)
        self.lanes.append(lane)
        return lane

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        if self.off:
            return
        try:
            self.steps.ask()
            lane = self.own.lane
            if lane is not None:
                lane.begin_step()
        except Exception as error:
            self.fail(error)

    def get(self, rows: int) -> None:
        """Note that the consumer gets elements."""
        if self.off:
            return
        try:
            lane = self.own.lane
            self.steps.get(rows, -1 if lane is None else lane.longest[1])
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Count nothing any more after a fault, which must not stop the training."""
        if not self.off:
            self.off = True
            _logger.error("penstock's statistics are off, because of a fault in them", exc_info=error)

    def snapshot(self, rank: int = 0) -> Snapshot:
        """Return a copy of what was counted so far, with the lanes of each kind put together."""
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
        elapsed = time.perf_counter() - self.steps.begun if self.steps.begun else 0.0
        machine = gethostname(), usable_cores(), findings()
        return Snapshot(elapsed, operators, list(stages.values()), steps, rank, *machine)
