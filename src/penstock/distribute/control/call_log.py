"""The calls that need all workers, in numbers: one that a single worker makes pairs with another call of the others.

Devices would compute with both, or wait for ever. Nothing is exchanged in a call: every second the workers compare what
they have called by then.
"""

import threading
import time
import zlib
from collections import deque
from typing import Final

from penstock.distribute.control.messages import MadeCalls

_KEPT: Final = 1 << 16
"""The number of calls whose digests are kept: one worker may be that far ahead of another."""
_KEPT_NAMES: Final = 64


class CallLog:
    """Calls that this worker has made, and how many the others have made.

    Args:
        worker: the number of this worker.
        workers: the number of workers.
    """

    def __init__(self, worker: int, workers: int) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._count = self._digest = self._told = 0
        self._digests: deque[int] = deque([0], _KEPT)  # after each call, the last one is the newest
        self._names: deque[tuple[int, str]] = deque(maxlen=_KEPT_NAMES)  # from which call on they had another name
        self._moved = time.monotonic()
        self._others = dict.fromkeys(set(range(workers)) - {worker}, 0)
        self._others_moved = dict.fromkeys(self._others, self._moved)

    def note(self, name: str) -> None:
        """Note a call that this worker makes now."""
        with self._lock:
            self._count += 1
            self._digest = zlib.crc32(name.encode(), self._digest)
            self._digests.append(self._digest)
            if not self._names or self._names[-1][1] != name:
                self._names.append((self._count, name))
            self._moved = time.monotonic()

    def news(self) -> MadeCalls | None:
        """Return the message about new calls for the others, if there are any."""
        with self._lock:
            if self._told == self._count:
                return None
            self._told = self._count
            return MadeCalls(self._worker, self._count, self._digest, tuple(self._names))

    def compare(self, other: MadeCalls) -> tuple[int, str, str] | None:
        """The number of a call in which another worker differs, its name here and there; None where all are alike.

        The one that is ahead finds out. It is the first such call that both still know; 0 where they know none.
        """
        with self._lock:
            self._others[other.worker] = other.count
            self._others_moved[other.worker] = time.monotonic()
            behind = self._count - other.count
            if not 0 <= behind < len(self._digests) or self._digests[-1 - behind] == other.digest:
                return None
            own = tuple(self._names)
        first = max(own[0][0], other.names[0][0])
        for number in range(first, other.count + 1):
            here, there = _name_of(number, own), _name_of(number, other.names)
            if here != there:
                return number, here, there
        return 0, "", ""

    def missing(self, seconds: float) -> tuple[int, int, str] | None:
        """Return a worker that is behind, if no call came for `seconds`, with the number and name of its next call."""
        now = time.monotonic()
        with self._lock:
            for worker, count in self._others.items():
                if count < self._count and now - max(self._moved, self._others_moved[worker]) > seconds:
                    return worker, count + 1, _name_of(count + 1, tuple(self._names))
        return None


def _name_of(number: int, names: tuple[tuple[int, str], ...]) -> str:
    return next((name for first, name in reversed(names) if first <= number), "another call")
