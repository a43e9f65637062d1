"""How long a thread waits: not because other processes have the processor, but because it has nothing to do."""

import os
import resource
import time
from typing import Final

_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)
_SCHEDULED: Final = "/proc/thread-self/schedstat"
"""Of the thread that reads it, on Linux: nanoseconds on a processor, and ready for one while others had it; slices."""
_WAITS_A_ROW = 0.5
_MOST_BYTES = 128
"""Three numbers of 64 bits have no more digits."""


class Stopwatch:
    """Measures calls of the thread that makes it, from then on.

    Args:
        exactly: whether to ask the system how long the thread was kept from the processor. That takes 15 µs; otherwise
            it is taken to wait if it gives up the processor at least in every second call.
    """

    def __init__(self, *, exactly: bool) -> None:
        asked = time.perf_counter()
        self._kept = _kept_seconds() if exactly else None
        self._given_up = _given_up()
        self._computed = time.thread_time()
        self._begun = time.perf_counter()
        # In the time that asking took others may have had the processor too.
        self._asking = self._begun - asked

    def stop(self, rows: int) -> tuple[float, float, float]:
        """The seconds of the calls for so many rows, those that were computed, and those that were waited for."""
        ended = time.perf_counter()
        seconds = ended - self._begun
        computed = time.thread_time() - self._computed
        waited = max(0.0, seconds - computed)
        kept = None if self._kept is None else _kept_seconds()
        if self._kept is not None and kept is not None:
            asking = self._asking + time.perf_counter() - ended
            waited = max(0.0, waited - max(0.0, kept - self._kept - asking))
        elif _THREAD is not None and _given_up() - self._given_up < _WAITS_A_ROW * rows:
            waited = 0.0
        return seconds, computed, waited


def _given_up() -> int:
    """How often this thread has given up the processor to wait for something; 0 where the system does not say."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nvcsw


def _kept_seconds() -> float | None:
    """How long this thread was ready while others had the processor; None where the system does not say."""
    try:
        file = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, _MOST_BYTES).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return None
