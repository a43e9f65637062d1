"""Requests to stores of this process, of whichever iteration they are: threads that read ahead serve all of them."""

from threading import Lock
from typing import Final

from msgspec.structs import asdict

from penstock.statistics.schema import Requests


class _Stores:
    """Counts of all requests so far."""

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
