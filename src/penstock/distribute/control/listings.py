"""One listing for all workers: worker 0 asks the object store, and the others wait for its answer."""

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.distribute.control.channel import Control
from penstock.errors import PenstockError, StorageError

_SECONDS: Final = 300.0
_MOST_BYTES: Final = 1 << 25
"""Longer listings would not fit into a message: each worker asks for those itself."""


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """Pattern that a worker wants to list, and what worker 0 found.

    Attributes:
        pattern: of the names.
        names: those that worker 0 found; None from other workers, and from worker 0 if there are too many to send.
        error: why worker 0 could not list them.
    """

    pattern: str
    names: list[str] | None = None
    error: str = ""


class WorkersListings:
    """Shares the listings of worker 0 with all workers of a channel, which must ask for them in the same order."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._count = 0

    def names(self, pattern: str, look: Callable[[], list[str]]) -> list[str]:
        """Return the names that `look` returned on worker 0, if that asks for the same pattern, else those found here.

        Raises:
            PenstockError: of `look`, on worker 0.
            StorageError: worker 0 could not list the files.
            WorkerError: another worker has failed, or does not list anything.
        """
        self._count += 1
        own, failure = Listed(pattern), None
        names: list[str] = []
        if self._control.worker == 0:
            try:
                names = look()
                own = Listed(pattern, names if sum(map(len, names)) < _MOST_BYTES else None)
            except PenstockError as error:
                own, failure = Listed(pattern, error=str(error)), error
        topic = f"listing {self._count} of files in strategy.scope()"
        (first, *_) = self._control.gather(topic, own, Listed, timeout=_SECONDS)
        if failure is not None:
            raise failure
        if first.pattern == pattern and first.error:
            raise StorageError(f"worker 0 could not list the files for all workers: {first.error}")
        if first.pattern == pattern and first.names is not None:
            return first.names
        return names if self._control.worker == 0 else look()
