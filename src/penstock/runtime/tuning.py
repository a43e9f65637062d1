"""Callers whose number is found while they work: threads where they gain, and none where they do not.

A function that mostly waits gains by threads, one that computes only where it lets go of Python's lock; so the second
kind is tried. What counts is how many seconds of serial work are done in a second, whatever the consumer is doing.
"""

import os
import time
from collections.abc import Callable

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result, Task
from penstock.runtime.threads import Threads

_MOST = 16
_WORTH_SECONDS = 2e-5
"""A call that takes less gains nothing, whatever it does."""
_GAIN = 1.15
_KEEP = 1.05
_FIRST_SECONDS = 0.05
"""So long a function that computes is called serially before threads are tried; later so many times longer."""
_PATIENCE = 40
_LONGEST_SECONDS = 60.0
_TRIAL_SECONDS = 0.02
_WINDOW_SECONDS = 0.5


class TunedCallers(Callers):
    """Callers that begin without threads: the thread that reads makes the calls while `serial`."""

    def __init__(self, threads: Threads, bell: Bell) -> None:
        super().__init__(threads, bell, 1)
        self._cores = os.cpu_count() or 1
        self.serial = True
        # What serial calls have cost: seconds, those of them that were computed, and rows, halved now and then.
        self._seconds = 0.0
        self._computed = 0.0
        self._rows = 0
        self._since = 0.0
        self._until_trial = _FIRST_SECONDS
        # In threads: how many work now and since when, how long any of them did, how long all together, and the rows.
        self._running = 0
        self._changed = 0.0
        self._busy = 0.0
        self._worked = 0.0
        self._done = 0
        self._on_trial = False

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def _row_seconds(self) -> float:
        return self._seconds / max(1, self._rows)

    def call_serially(self, call: Callable[[], Result], rows: int) -> Result:
        """What `call` gives, which makes the calls for so many rows; it is noted how long they take."""
        begun, computed = time.perf_counter(), time.thread_time()
        result = call()
        seconds = time.perf_counter() - begun
        with self._lock:
            if self._seconds > 1.0:
                self._seconds, self._computed, self._rows = self._seconds / 2, self._computed / 2, self._rows // 2
            self._seconds += seconds
            self._computed += time.thread_time() - computed
            self._rows += rows
            self._since += seconds
            self._decide()
        return result

    def _decide(self) -> None:
        """Go on serially, or see whether threads gain."""
        if self._row_seconds < _WORTH_SECONDS:
            return
        waits = self._computed < self._seconds / 2
        if self._since < (TASK_SECONDS if waits and self._until_trial == _FIRST_SECONDS else self._until_trial):
            return
        if waits:
            wanted = self._cores * self._seconds / max(self._computed, 1e-9)
            self.count = max(2, min(_MOST, int(wanted)))
        elif self._cores > 1:
            self.count = self._cores
        else:
            self._later()
            return
        self.serial, self._on_trial = False, True
        self._chunk = max(1, int(TASK_SECONDS / self._row_seconds))
        self._busy, self._worked, self._done = 0.0, 0.0, 0

    def _later(self) -> None:
        self._since = 0.0
        longer = _PATIENCE if self._until_trial == _FIRST_SECONDS else 2
        self._until_trial = min(longer * self._until_trial, _LONGEST_SECONDS)

    def _start(self, task: Task) -> None:
        with self._lock:
            if self._running == 0:
                self._changed = time.perf_counter()
            self._running += 1

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        with self._lock:
            now = time.perf_counter()
            self._running -= 1
            self._busy += now - self._changed
            self._changed = now
            self._worked += seconds
            self._done += rows
            self._judge()

    def _judge(self) -> None:
        """See whether threads have gained since they began, or since this was asked last."""
        if self.serial or self._busy < (_TRIAL_SECONDS if self._on_trial else _WINDOW_SECONDS):
            return
        if self._worked < 1.5 * self._busy:  # nobody asks for more than one at a time
            self._busy, self._worked, self._done = 0.0, 0.0, 0
            return
        gain = self._done * self._row_seconds / self._busy
        if gain < (_GAIN if self._on_trial else _KEEP):
            self.serial = True
            self._later()
        elif self._on_trial:
            self._until_trial = _FIRST_SECONDS
        self._on_trial = False
        self._busy, self._worked, self._done = 0.0, 0.0, 0
