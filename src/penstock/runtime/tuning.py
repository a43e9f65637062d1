"""Callers whose number is found while they work: threads only for functions that gain by them.

A function that mostly waits gains by threads, one that computes only where it lets go of Python's lock; so the second
kind is tried. What counts is how many seconds of serial work are done in a second, whatever the consumer is doing. What
was found is remembered for the next iteration that calls the same function.
"""

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result
from penstock.runtime.threads import Threads

_MOST = 16
_WORTH_SECONDS = 2e-5
"""A call that takes less gains nothing, whatever it does."""
_UNSEEN = 31
"""Measuring a call costs as much as a short call, so only one in this many, plus one, is measured."""
_UNNOTED = 63
"""Even looking at the clock costs as much as a very short call: of calls for single rows one in this many, plus one,
is looked at."""
_UNSEEN_SECONDS = 1e-3
"""A call that takes longer than this is not short."""
_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
_GAIN = 1.15
_KEEP = 1.05
_WAITING_GAIN = 1.5
"""A function that waits gains much more, and its time without threads may be known from a single call."""
_LOSS = 0.95
_FIRST_SECONDS = 0.05
"""A function that computes is called serially this long before threads are tried, and longer by this factor each
time."""
_PATIENCE = 5
_LONGEST_SECONDS = 60.0
_TRIAL_SECONDS = 0.02
_LONG_TRIAL_SECONDS = 0.1
_WINDOW_SECONDS = 0.5
_HANDING_SECONDS = 5e-5
"""What it costs the thread that reads to hand out a task and to take its result."""
_ALIKE = 4.0
"""Calls of one function in two iterations are alike if they differ by less than this factor."""


@dataclass(frozen=True)
class _Found:
    """What an iteration has found out about a function.

    Attributes:
        row_seconds: how long a serial call takes.
        count: how many threads gained; 0 for none.
    """

    row_seconds: float
    count: int


_WAITS_A_ROW = 0.5
"""A function counts as waiting if it gives up the processor at least this often in each call."""

_found: WeakKeyDictionary[Any, _Found] = WeakKeyDictionary()
_found_lock = Lock()


def _waits() -> int:
    """How often this thread has let the processor go to wait for something; 0 where the system does not say."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nvcsw


def _recall(function: Any) -> _Found | None:
    try:
        with _found_lock:
            return _found.get(function)
    except TypeError:  # a function that takes no weak reference
        return None


def _remember(function: Any, found: _Found) -> None:
    with suppress(TypeError), _found_lock:
        _found[function] = found


class TunedCallers(Callers):
    """Callers that begin without threads: the thread that reads makes the calls while `serial`.

    Args:
        function: what is called. Threads that gained in an earlier iteration are there after the first call, and from
            the beginning where a call took long.
    """

    def __init__(self, threads: Threads, bell: Bell, function: Any) -> None:
        super().__init__(threads, bell, 1)
        self._function = function
        self._cores = os.cpu_count() or 1
        self.serial = True
        # What serial calls have cost: seconds, those of them that were computed, how often they waited, and for how
        # many rows in how many calls: all halved now and then.
        self._seconds = 0.0
        self._computed = 0.0
        self._waits = 0.0
        self._rows = 0
        self._calls = 0
        # So many calls are not measured, because those before them were short.
        self._unseen = 0
        self._since = 0.0
        self._until_trial = _FIRST_SECONDS
        # In threads: how long any of them worked, since when, how long all together, and the rows and tasks.
        self._changed = 0.0
        self._busy = 0.0
        self._worked = 0.0
        self._done = 0
        self._pieces = 0
        self._on_trial = False
        self._earlier = _recall(function)
        if self._earlier is not None and self._earlier.count and self._earlier.row_seconds > TASK_SECONDS:
            self._go_on_with(self._earlier)

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def _row_seconds(self) -> float:
        """How long a serial call takes, without the time in which other processes have the processor."""
        return (self._seconds if self._waiting else self._computed) / max(1, self._rows)

    @property
    def _worthwhile(self) -> bool:
        """Whether calls take so long that other threads could gain anything, beside what handing them out costs."""
        seconds = self._seconds if self._waiting else self._computed
        return seconds >= _WORTH_SECONDS * self._rows + _HANDING_SECONDS * self._calls

    @property
    def _waiting(self) -> bool:
        """Whether most of a call's time is spent on waiting, and not because other processes have the processor."""
        return self._computed < self._seconds / 2 and self._waits >= _WAITS_A_ROW * self._rows

    def call_serially(self, call: Callable[[], Result], rows: int) -> Result:
        """Return what `call` returns, which makes the calls for `rows` rows, and note how long they take."""
        if self._unseen:
            return self._call_unseen(call)
        waits, begun, computed = _waits(), time.perf_counter(), time.thread_time()
        result = call()
        seconds, computed = time.perf_counter() - begun, time.thread_time() - computed
        waits = _waits() - waits if _THREAD is not None else rows
        with self._lock:
            if self._seconds > 1.0:
                self._halve()
            self._seconds += seconds
            self._computed += computed
            self._waits += waits
            self._rows += rows
            self._calls += 1
            self._since += seconds if self._waiting else computed
            if self._worthwhile:
                self._decide()
            else:
                self._unseen = _UNSEEN
        return result

    def _call_unseen(self, call: Callable[[], Result]) -> Result:
        """As `call_serially`, where calls were too short to gain anything; until one takes long, they are not noted."""
        begun = time.perf_counter()
        result = call()
        self._unseen = self._unseen - 1 if time.perf_counter() - begun < _UNSEEN_SECONDS else 0
        return result

    @property
    def unnoted(self) -> int:
        """How many of the next calls this thread may make without `call_serially`, because those before were short."""
        return _UNNOTED if self._unseen else 0

    def _halve(self) -> None:
        """Halve the weight of earlier measurements."""
        self._seconds, self._computed = self._seconds / 2, self._computed / 2
        self._waits, self._rows, self._calls = self._waits / 2, self._rows // 2, self._calls // 2

    def _decide(self) -> None:
        """Continue serially, or try whether threads gain."""
        waiting = self._waiting
        if self._goes_on_as_before():
            return
        if self._since < (TASK_SECONDS if waiting and self._until_trial == _FIRST_SECONDS else self._until_trial):
            return
        if waiting:
            wanted = self._cores * self._seconds / max(self._computed, 1e-9)
            self._begin_threads(max(2, min(_MOST, int(wanted))))
        elif self._cores > 1:
            self._begin_threads(self._cores)
        else:
            self._later()

    def _goes_on_as_before(self) -> bool:
        """Use the threads that gained in an earlier iteration, if a call takes about as long as it did then."""
        found, self._earlier = self._earlier, None
        if found is None or not found.row_seconds / _ALIKE < self._row_seconds < _ALIKE * found.row_seconds:
            return False
        if found.count == 0:  # threads that did not gain once are tried again: another process may have been busy
            return False
        self._go_on_with(found)
        return True

    def _go_on_with(self, found: _Found) -> None:
        """Use the number of threads that was found earlier, on trial."""
        self._seconds = self._computed = found.row_seconds
        self._waits, self._rows, self._calls = 0.0, 1, 1
        self._begin_threads(found.count)

    def _begin_threads(self, count: int) -> None:
        self.count = count
        self.serial, self._on_trial = False, True
        self._chunk = max(1, int(TASK_SECONDS / self._row_seconds))
        self._begin_window()

    @property
    def _least_gain(self) -> float:
        if self.count > self._cores:
            return _WAITING_GAIN
        return _GAIN if self._on_trial else _KEEP

    def _begin_window(self) -> None:
        self._busy = self._worked = 0.0
        self._done = self._pieces = 0

    def _later(self) -> None:
        self._since = 0.0
        longer = _PATIENCE if self._until_trial == _FIRST_SECONDS else 2
        self._until_trial = min(longer * self._until_trial, _LONGEST_SECONDS)

    def _start(self) -> None:
        if self.running == 0:
            self._changed = time.perf_counter()
        super()._start()

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        now = time.perf_counter()
        self._busy += now - self._changed
        self._changed = now
        self._worked += seconds
        self._done += rows
        self._pieces += 1
        self._judge()

    def _judge(self) -> None:
        """Check whether threads have gained since they began, or since the last check."""
        handing = self._pieces * _HANDING_SECONDS
        if self.serial or self._busy + handing < (_TRIAL_SECONDS if self._on_trial else _WINDOW_SECONDS):
            return
        if handing < self._busy and self._worked < 1.5 * self._busy:  # no caller wants more than one at a time
            self._begin_window()
            return
        # A call cannot take longer without threads than it does in one: elements may have become smaller.
        work = min(self._done * self._row_seconds, self._worked)
        gain = work / (self._busy + handing)
        if self._on_trial and _LOSS < gain < _GAIN and self._busy < _LONG_TRIAL_SECONDS:
            return  # too close to decide
        if gain < self._least_gain:
            self.serial = True
            self._later()
        elif self._on_trial:
            self._until_trial = _FIRST_SECONDS
        self._on_trial = False
        self._begin_window()
        _remember(self._function, _Found(self._row_seconds, 0 if self.serial else self.count))
