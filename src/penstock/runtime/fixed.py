"""Callers whose number the user has chosen, which leave calls that are too short for threads to the thread that reads.

A task of one row costs the thread that hands it out and the one that makes it 50 to 100 µs together. Where rows come
one by one, and a call takes a microsecond, that is all that the program would do.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.runtime.callers import Bell, Callers, Result
from penstock.runtime.threads import Threads

_SHORT_SECONDS = 7.5e-5
"""A task that takes less gains nothing in a thread."""
_LONG_SECONDS = 1.5e-4
"""As soon as one takes more than this in the thread that reads, threads make the next."""
_IN_A_ROW = 16
"""For each call that may run, so many tasks must have been short, one after the other: as many may pass a slow one."""


class FixedCallers(Callers):
    """Up to `count` threads, or the thread that reads while few rows come at a time and calls are very short."""

    def __init__(self, threads: Threads, bell: Bell, count: int) -> None:
        super().__init__(threads, bell, count)
        self.serial = False
        # How many tasks were short, one after the other, because there were no more rows for them.
        self._short = 0

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def because(self) -> str:
        return ": each takes less time than giving it to a thread" if self.serial else ""

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

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        self._short = self._short + 1 if rows <= self.count and seconds < _SHORT_SECONDS else 0
        self.serial = self._short >= _IN_A_ROW * self.count
