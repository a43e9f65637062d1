"""The number of data workers that a service needs, from the waiting time of readers and the load of the workers.

The rule: enough workers that they would be busy four fifths of the time if no reader waited. A reader that waits
half of the time could take twice as much; one decision assumes no more than four times as much. Workers are added at
the first sign. They are removed only after several decisions in a row, down to the largest number among these.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from penstock.service.wire.dispatcher_messages import Status

DECISION_SECONDS: Final = 2.0
"""The time between two decisions: by default that between two reports of a data worker."""

_BUSY_TARGET: Final = 0.8
_LEAST_READING: Final = 0.25
_CALM_DECISIONS: Final = 5


@dataclass(frozen=True)
class ServiceLoad:
    """The load of a service.

    Args:
        workers: the data workers that take requests.
        busy: the share of the time in which they compute, on average.
        waiting: the share of the time in which the caller of the reader waits that waits most.
        readers: how many there are.
    """

    workers: int
    busy: float
    waiting: float
    readers: int

    @classmethod
    def of(cls, status: Status) -> "ServiceLoad":
        """The load according to a status."""
        busy = [min(1.0, worker.busy_fraction) for worker in status.workers if worker.alive]
        waiting = [reader.waiting_fraction for epoch in status.epochs for reader in epoch.consumers]
        return cls(len(busy), sum(busy) / max(1, len(busy)), max(waiting, default=0.0), len(waiting))

    @property
    def needed(self) -> float:
        """The number of workers that would be busy four fifths of the time if no reader waited; not rounded."""
        return self.workers * self.busy / (_BUSY_TARGET * max(_LEAST_READING, 1 - self.waiting))


@dataclass(frozen=True)
class Decision:
    """Another number of data workers, and why."""

    workers: int
    reason: str


class Scaler:
    """Decides within bounds; it holds what the last decisions would have been."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._smallest = smallest
        self._largest = largest
        self._wanted: deque[int] = deque(maxlen=_CALM_DECISIONS)

    def decide(self, load: ServiceLoad, present: int) -> Decision | None:
        """Decide on another number of workers than the `present` one; None if that should stay.

        Args:
            load: as the workers report it. While others are still starting, nothing is decided.
            present: how many workers there are, those that are starting among them.
        """
        if load.workers < present:
            return None
        wanted = min(self._largest, max(self._smallest, math.ceil(load.needed)))
        self._wanted.append(wanted)
        seen = f"readers wait {load.waiting:.0%} of the time, data workers are busy {load.busy:.0%}"
        if wanted > present:
            return self._decided(wanted, f"{seen}: from {present} to {wanted} workers")
        if len(self._wanted) == _CALM_DECISIONS and max(self._wanted) < present:
            fewer = max(self._wanted)
            return self._decided(fewer, f"{seen}, for {_CALM_DECISIONS} reports: from {present} to {fewer} workers")
        return None

    def _decided(self, workers: int, reason: str) -> Decision:
        self._wanted.clear()
        return Decision(workers, reason)
