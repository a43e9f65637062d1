"""Callers whose number the user has chosen, which do not use all of them for calls that are too short to gain by it.

A task of one row costs the thread that hands it out and the one that makes it 50 to 100 µs together. Where rows come
one by one, and a call takes a microsecond, the program would do nothing else: the thread that reads makes the calls.

Where many rows come at a time, short calls in several threads pass Python's lock to each other in every call that lets
it go, as NumPy does for an image of 28 x 28. Each time a thread is woken, which takes longer than the call: the threads
take turns then, a task each.
"""

import time
from collections.abc import Callable, Iterator
from threading import Lock, get_ident
from typing import Any

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result
from penstock.runtime.gains import WORTH_SECONDS
from penstock.runtime.threads import Threads

_SHORT_SECONDS = 7.5e-5
"""A task that takes less gains nothing in a thread."""
_LONG_SECONDS = 1.5e-4
"""As soon as one takes more than this in the thread that reads, threads make the next."""
_IN_A_ROW = 16
"""For each call that may run, so many tasks must have been short, one after the other: as many may pass a slow one."""
_BESIDE_OTHERS = 2.5
"""A short call takes up to so many times as long while several threads make calls."""
_OVERDUE_SECONDS = 2.5 * TASK_SECONDS
"""Threads wait for their turn while tasks end, but no longer than this for a single one."""
_KEPT = 0.875
"""What tasks before it weigh after each task: a single one may have been interrupted."""
_PATIENCE = 4
"""So many times as many tasks must be short before threads take turns again, each time that calls were not."""


class FixedCallers(Callers):
    """Up to `count` threads, which take turns while calls are short.

    While calls are very short and few rows come at a time, the thread that reads makes them.
    """

    def __init__(self, threads: Threads, bell: Bell, count: int) -> None:
        super().__init__(threads, bell, count)
        self.serial = False
        # How many tasks were short, one after the other, because there were no more rows for them.
        self._short = 0
        self._take_turns = False
        self._turn = Lock()
        self._has_turn: int | None = None  # the thread that has it
        # So many tasks must have short calls before threads take turns; more, each time that this was wrong.
        self._until_turns = self._patience = 1
        # How many tasks were done in turn, and of late in how many seconds and for how many rows.
        self._turns, self._seconds, self._rows = 0, 0.0, 0.0

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def because(self) -> str:
        if self.serial:
            return ": each takes less time than giving it to a thread"
        return ": one thread at a time makes them, as they are too short to gain by more" if self._take_turns else ""

    def call_here(self, rows: int) -> bool:
        if self.serial and rows > self.count:  # so many at a time are worth handing out
            self._leave_to_threads()
        return self.serial

    def call_serially(
        self, call: Callable[[], Result], rows: int, made: Callable[[Result], int] | None = None
    ) -> Result:
        """As the class above says; threads make the next calls if this one takes long."""
        begun = time.perf_counter()
        try:
            return call()
        finally:
            if time.perf_counter() - begun > _LONG_SECONDS:
                self._leave_to_threads()

    def patience(self, rows: int) -> float:
        return _LONG_SECONDS

    def calls_here(self, call: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
        clock = time.perf_counter

        def timed(row: Any) -> Any:
            begun = clock()
            value = call(row)
            if clock() - begun > _LONG_SECONDS:
                self._leave_to_threads()
            return value

        while self.serial:
            yield timed

    def _leave_to_threads(self) -> None:
        with self._lock:
            self.serial, self._short, self._chunk = False, 0, 1

    def _do_task(self) -> bool:
        if not self._take_turns or not self._turn_taken():
            return super()._do_task()
        try:
            return super()._do_task()
        finally:
            self._has_turn = None
            self._turn.release()

    def _turn_taken(self) -> bool:
        """Wait for the turn; False where the task of another thread takes too long."""
        turns = -1
        while turns != self._turns:
            turns = self._turns
            if self._turn.acquire(timeout=_OVERDUE_SECONDS):
                self._has_turn = get_ident()
                return True
        self._take_turns = False
        return False

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        self._short = self._short + 1 if rows <= self.count and seconds < _SHORT_SECONDS else 0
        self.serial = self._short >= _IN_A_ROW * self.count
        if self._has_turn == get_ident():
            self._note_turn(seconds, rows)
        elif seconds < rows * _BESIDE_OTHERS * WORTH_SECONDS:
            self._until_turns -= 1
            self._take_turns = self._until_turns <= 0

    def _note_turn(self, seconds: float, rows: int) -> None:
        """Note a task that was done in turn: if calls are not short, all threads make them again."""
        self._turns += 1
        self._seconds = _KEPT * self._seconds + seconds
        self._rows = _KEPT * self._rows + rows
        if self._seconds > self._rows * WORTH_SECONDS and self._take_turns:
            self._take_turns, self._seconds, self._rows = False, 0.0, 0.0
            self._until_turns = self._patience = _PATIENCE * self._patience
