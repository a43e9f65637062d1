"""Counts of this process, of whichever iteration: its start, and its requests to stores."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Final

from msgspec.structs import asdict

from penstock.statistics.lanes import here
from penstock.statistics.schema import Requests

FILES: Final = "files listed and opened"
DATA_WORKERS: Final = "first rows of data workers"

seconds: Final[dict[str, float]] = {}
"""By what took them: the same names as in `Snapshot.start`."""
_lock: Final = Lock()


@contextmanager
def start(name: str) -> Iterator[None]:
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


class _Stores:
    """Counts of all requests to stores so far: threads that read ahead serve all iterations."""

    def __init__(self) -> None:
        self._counts = Requests()
        self._lock = Lock()

    def count(self, requests: int = 0, repeats: int = 0, nbytes: int = 0, waited: float = 0.0) -> None:
        """Add to the counts."""
        with self._lock:
            self._counts.merge(Requests(requests, repeats, nbytes, waited))

    def since(self, earlier: Requests) -> Requests:
        """Return the counts without earlier ones."""
        with self._lock:
            now = asdict(self._counts)
        return Requests(**{name: now[name] - value for name, value in asdict(earlier).items()})


stores: Final = _Stores()
