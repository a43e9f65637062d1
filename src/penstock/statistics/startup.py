"""Seconds that the start of the process took, before any iteration."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Final

from penstock.statistics.lanes import here

FILES: Final = "files listed and opened"
DATA_WORKERS: Final = "first rows of data workers"

seconds: Final[dict[str, float]] = {}
"""By what took them: the same names as in `Snapshot.start`."""
_lock: Final = Lock()


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Count the seconds of this context, unless it is within another one, or within an iteration."""
    if here.starts or here.lane is not None:
        yield
        return
    here.starts, begun = True, perf_counter()
    try:
        yield
    finally:
        here.starts = False
        with _lock:
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - begun
