"""The statistics of one iteration: its operators, and the lanes of all threads that work for it."""

import logging
import threading
import time
from collections.abc import Callable
from copy import copy
from socket import gethostname
from typing import ParamSpec, Protocol, TypeVar

from penstock.statistics.lanes import Lane, here
from penstock.statistics.machine import findings, usable_cores
from penstock.statistics.schema import Operator, Snapshot, Stage
from penstock.statistics.steps import StepClock

_logger = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")


Result = TypeVar("Result")


class CallCounts(Protocol):
    """Makers of the calls of a function: up to `count` at a time, or `serial` in the reading thread."""

    serial: bool
    count: int


class Meter:
    """Measures one operator, in whichever thread it works. This one measures nothing."""

    number = -1

    def measuring(self, function: Callable[_Arguments, Result]) -> Callable[_Arguments, Result]:
        """Return a function that measures another, and counts the rows if it gives a block."""
        return function

    def calling(self, call: Callable[[int, int], None], start: int, stop: int) -> None:
        """Make calls for the rows start to stop."""
        call(start, stop)


NO_METER = Meter()


class _OperatorMeter(Meter):
    def __init__(self, statistics: "Statistics", number: int) -> None:
        self._statistics = statistics
        self.number = number

    def measuring(self, function: Callable[_Arguments, Result]) -> Callable[_Arguments, Result]:
        statistics, number = self._statistics, self.number

        def measured(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Result:
            lane = statistics.begin(number)
            made: Result | None = None
            try:
                made = function(*args, **kwargs)
            finally:
                if lane is not None:
                    statistics.end(lane, made)
            return made

        return measured

    def calling(self, call: Callable[[int, int], None], start: int, stop: int) -> None:
        lane = self._statistics.begin(self.number)
        try:
            call(start, stop)
        finally:
            if lane is not None:
                self._statistics.end(lane, None)  # rows count where they are taken


class Statistics:
    """Counts of one iteration.

    Attributes:
        operators: those met so far; their place is their number.
        lanes: those of all threads so far.
        steps: the consumer's.
        calls: what makes the calls of operators in threads.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.lanes: list[Lane] = []
        self.steps = StepClock()
        self.calls: dict[int, CallCounts] = {}
        self.off = False
        self._numbers: dict[tuple[object, ...], int] = {}
        self._lock = threading.Lock()
        self._own = threading.local()

    def meter(self, key: tuple[object, ...], describe: Callable[[], Operator]) -> Meter:
        """Return what measures an operator, which is described when its key comes first."""
        number = self._numbers.get(key)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(key, len(self.operators))
                if number == len(self.operators):
                    self.operators.append(describe())
        return _OperatorMeter(self, number)

    def begin(self, number: int) -> Lane | None:
        """Charge an operator for the time of this thread from now on; gives the thread's lane."""
        if self.off:
            return None
        try:
            lane: Lane | None = getattr(self._own, "lane", None)
            if lane is None:
                lane = self._own.lane = Lane(here.name, here.owner, self.operators)
                self.lanes.append(lane)
            lane.begin(number)
            return lane
        except Exception as error:
            self.fail(error)
            return None

    def end(self, lane: Lane, made: object) -> None:
        """Note that the operator that began last in a lane has ended, and what it has made."""
        try:
            lane.end(made)
        except Exception as error:
            self.fail(error)

    def ask(self) -> None:
        """Note that the consumer asks for its next elements."""
        if self.off:
            return
        try:
            self.steps.ask()
            lane: Lane | None = getattr(self._own, "lane", None)
            if lane is not None:
                lane.begin_step()
        except Exception as error:
            self.fail(error)

    def get(self, rows: int) -> None:
        """Note that the consumer gets elements."""
        if self.off:
            return
        try:
            lane: Lane | None = getattr(self._own, "lane", None)
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
            for number, counts in list(lane.counts.items()):
                stage.operators.setdefault(number, type(counts)()).merge(counts)
        steps = self.steps.copy()
        operators = [copy(one) for one in self.operators]
        for number, calls in list(self.calls.items()):
            operators[number].threads = 0 if calls.serial else calls.count
        elapsed = time.perf_counter() - self.steps.begun if self.steps.begun else 0.0
        machine = gethostname(), usable_cores(), findings()
        return Snapshot(elapsed, operators, list(stages.values()), steps, rank, *machine)
