"""A function for a parallel map that works only where its calls overlap."""

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


def generator(rows: int) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(np.arange(rows)))
