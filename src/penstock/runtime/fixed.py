"""Callers whose number the user has chosen, which do not use all of them for calls that are too short to gain by it.

A task of one row costs the thread that hands it out and the one that makes it 50 to 200 µs together. Where rows come
one by one, and a call takes a microsecond, the program would do nothing else: the thread that reads makes the calls.

Where many rows come at a time, short calls in several threads pass Python's lock to each other in every call that lets
it go, as NumPy does for an image of 28 x 28. Each time a thread is woken, which takes longer than the call: the threads
take turns then.

This file measures, and `short_calls.py` decides.
"""

import time
from collections.abc import Callable, Iterator
from threading import Lock, get_ident
from typing import Any

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result
from penstock.runtime.short_calls import ROW_SECONDS, ReadingThread, ThreadTurns
from penstock.runtime.threads import Threads

_OVERDUE_SECONDS = 2.5 * TASK_SECONDS
"""Threads wait for their turn while tasks end, but no longer than this for a single one."""


class FixedCallers(Callers):
    """Up to `count` threads, which take turns while calls are short.

    While calls are very short and few rows come at a time, the thread that reads makes them.
    """

    def __init__(self, threads: Threads, bell: Bell, count: int) -> None:
        super().__init__(threads, bell, count)
        self.serial = False
        self._reader = ReadingThread(count)
        self._turns = ThreadTurns(count)
        self._turn = Lock()
        self._has_turn: int | None = None  # the thread that has it
        self._alone = False  # whether no other thread was busy as the latest task began

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def because(self) -> str:
        if self.serial:
            return ": each takes less time than giving it to a thread"
        return ": one thread at a time makes them, as they are too short to gain by more" if self._turns.taken else ""

    def call_here(self, rows: int) -> bool:
        if self.serial and rows > self.count:  # so many at a time are worth handing out
            with self._lock:
                self._reader.leave_to_threads()
                self._follow_reader()
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
            try:
                return call(row)
            finally:
                seconds = clock() - begun
                if seconds > ROW_SECONDS:
                    self._note_here(seconds, rows)
                    rows = 0

        while self.serial:
            yield timed

    def _note_here(self, seconds: float, rows: int) -> None:
        with self._lock:
            self._reader.called(seconds, rows)
            self._follow_reader()

    def _follow_reader(self) -> None:
        """Do what was decided, under the lock."""
        self.serial = self._reader.calls
        if not self.serial:
            self._chunk = 1

    def _do_task(self) -> bool:
        if not self._turns.taken or not self._turn_taken():
            return super()._do_task()
        try:
            while (done := super()._do_task()) and self._turns.taken:  # waking another thread takes longer than a call
                pass
            return done
        finally:
            self._has_turn = None
            self._turn.release()

    def _turn_taken(self) -> bool:
        """Wait for the turn; False where the task of another thread takes too long."""
        tasks = -1
        while tasks != self._turns.tasks:
            tasks = self._turns.tasks
            if self._turn.acquire(timeout=_OVERDUE_SECONDS):
                self._has_turn = get_ident()
                return True
        with self._lock:
            self._turns.end()
        return False

    def _start(self) -> None:
        super()._start()
        self._alone = self.running == 1

    def _note(self, seconds: float, rows: int) -> None:
        self._reader.thread_called(seconds, rows, more=rows >= self.chunk)
        self.serial = self._reader.calls
        super()._note(seconds, rows)
        if self._has_turn == get_ident():
            self._turns.task_done_in_turn(seconds, rows, alone=self._alone)
        else:
            self._turns.task_done(seconds, rows)
