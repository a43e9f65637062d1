"""Callers whose number is found while they work: threads only for functions that gain by them.

As long as a call takes less than 50 µs the thread that reads makes the calls. Otherwise they are compared once, by the
time that a row takes: the reading thread, a thread for each processor, and twice the number as long as that
gains. The fastest way stays until calls take another time than they did then.

A number of threads that gained is remembered for the next iteration that calls the same function, or one of the same
code: a function that makes a dataset makes the functions in it each time.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from penstock.runtime.callers import HANDING_SECONDS, TASK_SECONDS, Bell, Callers
from penstock.runtime.threads import Threads

_SHORT_SECONDS: Final = 5e-5
"""Calls that take less gain nothing by threads, whatever they do."""
_HERE_SECONDS: Final = 0.02
"""The reading thread makes calls for no longer than this at a time, so that threads can take over within a batch."""
_FIRST_SECONDS: Final = 0.01
"""A comparison begins when the reading thread has made calls for so long, of which the first may be a slow one."""
_AGAIN_SECONDS: Final = 5.0
"""Seconds of calls after which threads that did not gain are tried again; it doubles each time."""
_WINDOW_SECONDS: Final = 0.03
_SETTLED_WINDOW_SECONDS: Final = 0.5
_RECENT_SECONDS: Final = 0.25
_GAIN: Final = 1.15
"""More threads stay only if a row takes less time by this factor."""
_CHANGE: Final = 2.0
"""Factor by which the time of changed calls differs from before."""
_ALIKE: Final = 4.0
"""Calls of one function in two iterations are alike if they differ by less than this factor."""
_MOST: Final = 16


@dataclass
class _Calls:
    """Cost of calls.

    Attributes:
        rows: for how many rows they were made.
        tasks: in how many tasks.
        worked: the seconds that they took together.
        busy: the seconds in which at least one of them ran.
    """

    rows: int = 0
    tasks: int = 0
    worked: float = 0.0
    busy: float = 0.0

    @property
    def handing(self) -> float:
        """The seconds that handing out the tasks took."""
        return self.tasks * HANDING_SECONDS

    @property
    def row_worked(self) -> float:
        """The seconds that a call took."""
        return self.worked / max(1, self.rows)

    @property
    def row_seconds(self) -> float:
        """The seconds that a row took, of all that ran at the same time."""
        return (self.busy + self.handing) / max(1, self.rows)


@dataclass(frozen=True)
class _Found:
    """The number of threads that gained, and how long a call took then."""

    count: int
    row_seconds: float


_remembered: WeakKeyDictionary[Any, _Found] = WeakKeyDictionary()
_remembered_lock = Lock()


def _key(function: Any) -> Any:
    return getattr(function, "__code__", function)


class TunedCallers(Callers):
    """Callers that begin without threads: the thread that reads makes the calls while `serial`.

    Args:
        function: the called function.
    """

    def __init__(self, threads: Threads, bell: Bell, function: Any) -> None:
        super().__init__(threads, bell, 1)
        self.serial = True
        self._function = function
        self._here = _Calls()
        self._window = _Calls()
        # The seconds of calls that the reading thread has made since the last comparison, and how many make the next.
        self._since = 0.0
        self._wait = _FIRST_SECONDS
        # The fastest of those compared: how many threads, 0 for the reading thread, and how long a row takes.
        self._best = (0, 0.0)
        # How long a call took when the comparison ended; None before that.
        self._settled: float | None = None
        self._gain: float | None = None
        self._tried = 0
        # When the number of tasks that run has changed last.
        self._changed = 0.0
        self._earlier: _Found | None = None
        with suppress(TypeError), _remembered_lock:  # of a function that takes no weak reference nothing is remembered
            self._earlier = _remembered.get(_key(function))
        if self._earlier is not None and self._earlier.row_seconds > TASK_SECONDS:
            self._go_on(self._earlier)

    @property
    def want_more(self) -> bool:
        """Return whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def because(self) -> str:
        if self._gain is None:
            return ""
        return f": {self._tried} threads make {self._gain:.2g} times as many calls as the one that reads"

    def rows_here(self, rows: int) -> int:
        if not self.serial:
            return 0
        row_seconds = self._here.row_worked
        return min(rows, max(1, int(_HERE_SECONDS / max(row_seconds, 1e-9)))) if self._here.rows else 1

    def note_here(self, seconds: float, rows: int) -> None:
        with self._lock:
            here = self._here
            if here.worked > _RECENT_SECONDS:
                here.worked, here.rows = here.worked / 2, max(1, here.rows // 2)
            here.worked += seconds
            here.rows += rows
            self._since += seconds
            if not self.serial or here.row_worked < _SHORT_SECONDS:
                return
            earlier, self._earlier = self._earlier, None
            if earlier is not None and _differ(earlier.row_seconds, here.row_worked) < _ALIKE:
                self._go_on(earlier)
            elif (self._since >= self._wait and here.rows > 1) or self._has_changed(here.row_worked):
                self._best = 0, here.row_worked
                self._try(max(2, os.cpu_count() or 1))

    def _has_changed(self, row_seconds: float) -> bool:
        return self._settled is not None and _differ(row_seconds, self._settled) > _CHANGE

    def _go_on(self, found: _Found) -> None:
        """Use the threads that gained in an earlier iteration."""
        self._try(found.count)
        self._settled = found.row_seconds

    def _try(self, count: int) -> None:
        if self.serial:
            self._chunk = max(1, int(TASK_SECONDS / max(self._here.row_worked, 1e-9))) if self._here.rows else 1
        self.count, self.serial = count, False
        self._settled, self._window = None, _Calls()

    def _start(self) -> None:
        if self.running == 0:
            self._changed = time.perf_counter()
        super()._start()

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        now, window = time.perf_counter(), self._window
        window.busy += now - self._changed
        window.worked += seconds
        window.rows += rows
        window.tasks += 1
        self._changed = now
        enough = _WINDOW_SECONDS if self._settled is None else _SETTLED_WINDOW_SECONDS
        short = window.row_worked < _SHORT_SECONDS and window.tasks > _MOST
        if self.serial or (not short and (window.busy + window.handing < enough or window.tasks < 2 * self.count)):
            return
        self._window = _Calls()
        if window.handing < window.busy and window.worked < 1.5 * window.busy:
            return  # no more than one is wanted at a time
        if self._settled is None:
            self._compare(window)
        elif short or self._has_changed(window.row_worked):
            self._leave(_FIRST_SECONDS)

    def _compare(self, window: _Calls) -> None:
        """Compare the threads on trial with the fastest way so far."""
        count, row_seconds = self._best
        if count == 0:  # a call cannot take longer there than in a thread: the first ones may have been slow
            row_seconds = min(row_seconds, window.row_worked)
            self._gain, self._tried = row_seconds / window.row_seconds, self.count
        if window.row_seconds * _GAIN < row_seconds:
            self._best = self.count, window.row_seconds
            if self.count < _MOST:
                self._try(min(_MOST, 2 * self.count))
                return
        self._settle(window.row_worked)

    def _settle(self, row_worked: float) -> None:
        """Stay with the fastest way."""
        count, row_seconds = self._best
        if count == 0:
            self._leave(max(_AGAIN_SECONDS, 2 * self._wait))
            self._settled = row_seconds
            return
        self.count, self._settled = count, row_worked
        with suppress(TypeError), _remembered_lock:
            _remembered[_key(self._function)] = _Found(count, row_worked)

    def _leave(self, wait: float) -> None:
        """Have the reading thread make the calls again."""
        self.serial, self._settled = True, None
        self._here, self._since, self._wait = _Calls(), 0.0, wait


def _differ(one: float, other: float) -> float:
    """The factor between two times."""
    return max(one, other) / max(1e-9, min(one, other))
