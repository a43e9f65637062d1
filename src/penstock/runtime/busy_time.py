"""The time in which something is done, also by several threads at once, and before it has ended."""

import time
from collections.abc import Callable
from threading import Lock


class BusyTime:
    """Adds up the time in which at least one thread is within `with`.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = Lock()
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._since = self._clock()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._seconds += self._clock() - self._since

    def take(self) -> float:
        """The seconds since this was called last."""
        with self._lock:
            if self._inside:
                now = self._clock()
                self._seconds += now - self._since
                self._since = now
            seconds, self._seconds = self._seconds, 0.0
        return seconds
