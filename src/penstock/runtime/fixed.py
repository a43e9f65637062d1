"""Callers whose number the user has chosen, which do not use all of them for calls that are too short to gain by it.

A task of one row costs the thread that hands it out and the one that makes it 50 to 200 µs together. Where rows come
one by one, and a call takes a microsecond, the program would do nothing else: the thread that reads makes the calls.

Where many rows come at a time, short calls in several threads pass Python's lock to each other in every call that lets
it go, as NumPy does for an image of 28 x 28. Each time a thread is woken, which takes longer than the call: the threads
take turns then.

Neither can be told from how long a call takes while others run, which on some machines is ten times as long as alone.
So that decides no more than when to try, and how long it takes then whether to go on.
"""

import time
from collections.abc import Callable, Iterator
from threading import Lock, get_ident
from typing import Any

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result
from penstock.runtime.gains import HANDING_SECONDS, WORTH_SECONDS
from penstock.runtime.threads import Threads

_BESIDE_OTHERS = 2.5
"""A short call takes up to so many times as long for each thread that makes calls."""
_BACKOFF = 4
"""So many times as many rows or tasks must be short before what was tried in vain is tried again."""
_ENOUGH = 4
"""What went on for so many times as many was not in vain."""

_ROW_SECONDS = 1e-4
"""A row that takes less gains nothing in a thread, if it is a task of its own."""
_BESIDE_OTHERS_SECONDS = 1e-3
"""So long a row that takes less may take beside other threads."""
_ROWS = 16
"""For each call that may run, so many rows may pass one that is slow."""

_BESIDE_READER = 1.5
"""A short call takes up to so many times as long beside the thread that reads."""
_OVERDUE_SECONDS = 2.5 * TASK_SECONDS
"""Threads wait for their turn while tasks end, but no longer than this for a single one."""
_KEPT = 0.875
"""What tasks before it weigh after each task: a single one may have been interrupted."""


class ReadingThread:
    """Whether the thread that reads makes the calls for rows that come one by one.

    Args:
        count: how many threads there are.

    Attributes:
        calls: whether it does.
    """

    def __init__(self, count: int) -> None:
        self.calls = False
        self._count = count
        # By how many seconds calls of late took longer than they may.
        self._excess = _ROWS * _BESIDE_OTHERS_SECONDS
        self._backoff = 1
        # For how many rows it has made the calls.
        self._rows = 0

    @property
    def patience(self) -> float:
        """How many seconds the next call may take."""
        return self._count * _ROWS * _ROW_SECONDS - self._excess + _ROW_SECONDS

    def called(self, seconds: float, rows: int) -> None:
        """Note how long it took for the last of some rows; those before were short."""
        self._rows += rows
        self._excess = max(0.0, self._excess - (rows - 1) * _ROW_SECONDS)
        if seconds <= self.patience:
            self._excess = max(0.0, self._excess + seconds - _ROW_SECONDS)
            return
        in_vain = self._rows < _ENOUGH * self._backoff * self._count * _ROWS
        self._backoff = _BACKOFF * self._backoff if in_vain else 1
        self.leave_to_threads()

    def thread_called(self, seconds: float, rows: int, waiting: bool) -> None:
        """Note how long a thread took for some rows.

        Args:
            waiting: whether there were no more rows for it.
        """
        longer = seconds - rows * _BESIDE_OTHERS_SECONDS
        if rows > self._count:
            self.leave_to_threads()
        elif waiting or longer > 0:
            self._excess = max(0.0, min(self._excess + longer, self._most))
            if self._excess == 0.0 and not self.calls:
                self.calls, self._rows = True, 0

    def leave_to_threads(self) -> None:
        """Have threads make the calls for a while."""
        self.calls, self._excess = False, self._most

    @property
    def _most(self) -> float:
        return self._backoff * self._count * _ROWS * _BESIDE_OTHERS_SECONDS


class FixedCallers(Callers):
    """Up to `count` threads, which take turns while calls are short.

    While calls are very short and few rows come at a time, the thread that reads makes them.
    """

    def __init__(self, threads: Threads, bell: Bell, count: int) -> None:
        super().__init__(threads, bell, count)
        self.serial = False
        self._reader = ReadingThread(count)
        self._take_turns = False
        self._turn = Lock()
        self._has_turn: int | None = None  # the thread that has it
        self._alone = False  # whether no other thread was busy as it began
        # So many tasks must be short before threads take turns; more, each time that this was in vain.
        self._until_turns = self._backoff = 1
        # How many tasks were done in turn, how many seconds they took of late, and in how many more threads would gain.
        self._turns, self._seconds, self._worth = 0, 0.0, 0.0

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
            with self._lock:
                self._reader.leave_to_threads()
                self.serial, self._chunk = False, 1
        return self.serial

    def call_serially(
        self, call: Callable[[], Result], rows: int, made: Callable[[Result], int] | None = None
    ) -> Result:
        """As the class above says; threads make the next calls if these have taken long."""
        begun = time.perf_counter()
        try:
            return call()
        finally:
            self._note_here(time.perf_counter() - begun, rows)

    def patience(self, rows: int) -> float:
        return self._reader.patience

    def calls_here(self, call: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
        clock = time.perf_counter
        rows = 0

        def timed(row: Any) -> Any:
            nonlocal rows
            rows += 1
            begun = clock()
            value = call(row)
            seconds = clock() - begun
            if seconds > _ROW_SECONDS:
                self._note_here(seconds, rows)
                rows = 0
            return value

        while self.serial:
            yield timed

    def _note_here(self, seconds: float, rows: int) -> None:
        with self._lock:
            self._reader.called(seconds, rows)
            if not self._reader.calls:
                self.serial, self._chunk = False, 1

    def _do_task(self) -> bool:
        if not self._take_turns or not self._turn_taken():
            return super()._do_task()
        try:
            while (done := super()._do_task()) and self._take_turns:  # waking another thread takes longer than a call
                pass
            return done
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
        with self._lock:
            self._end_turns()
        return False

    def _start(self) -> None:
        super()._start()
        self._alone = self.running == 1

    def _note(self, seconds: float, rows: int) -> None:
        self._reader.thread_called(seconds, rows, waiting=rows < self.chunk)
        self.serial = self._reader.calls
        super()._note(seconds, rows)
        if self._has_turn == get_ident():
            self._note_turn(seconds, rows)
        elif seconds < rows * self.count * _BESIDE_OTHERS * WORTH_SECONDS:
            self._until_turns -= 1
            self._take_turns = self._until_turns <= 0

    def _note_turn(self, seconds: float, rows: int) -> None:
        """Note a task that was done in turn: if calls are not short, all threads make them again."""
        self._turns += 1
        if not self._alone:
            return
        self._seconds = _KEPT * self._seconds + seconds
        worth = rows * WORTH_SECONDS + HANDING_SECONDS
        self._worth = _KEPT * self._worth + worth
        # The thread that reads needs the lock too, at times.
        if self._seconds > self._worth * (_BESIDE_READER if self._worth > worth else 1):
            self._end_turns()

    def _end_turns(self) -> None:
        """Have all threads make calls again, for longer each time that there were few turns before."""
        if self._take_turns:
            in_vain = self._turns < _ENOUGH * self._backoff
            self._backoff = _BACKOFF * self._backoff if in_vain else 1
            self._take_turns, self._until_turns = False, self._backoff
            self._turns, self._seconds, self._worth = 0, 0.0, 0.0
