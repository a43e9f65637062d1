"""Functions for a parallel map: one that works only where its calls overlap, and one whose calls can be held."""

import threading
import time
from typing import Any

import numpy as np

import penstock as ps

CALLS = 8
ROWS = 4 * CALLS


class Together:
    """A function whose calls end only when eight of them are inside at the same moment."""

    def __init__(self) -> None:
        self.meeting = threading.Barrier(CALLS, timeout=20)

    def __call__(self, x: Any) -> Any:
        self.meeting.wait()
        time.sleep(0.005)  # long enough for every call to be a task of its own
        return np.full(2, np.min(x))


class Held:
    """A function whose calls end when they are released, but for that of row 0."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.released = threading.Event()
        self._entered = threading.Semaphore(0)

    def __call__(self, x: Any) -> Any:
        self.calls.append(int(x))
        self._entered.release()
        assert x == 0 or self.released.wait(timeout=60)
        return x

    def await_calls(self, count: int) -> None:
        """Wait until so many calls have begun."""
        for _ in range(count):
            assert self._entered.acquire(timeout=60)


def generator(rows: int) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(np.arange(rows)))
