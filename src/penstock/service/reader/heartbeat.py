"""What a reader tells the dispatcher of itself every now and then."""

import time

from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat


class Pulse:
    """Counts until it is told of; the reader holds a lock around it.

    Attributes:
        rows: elements that were handed on since the last heartbeat.
        seconds_waited: for how long the caller has waited since.
        skipped: elements that were left out in all.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.seconds_waited = 0.0
        self.skipped = 0
        self._since = time.monotonic()

    def heartbeat(
        self, consumer_id: int, version: int, rounds: list[int], turn: int, lost_workers: list[int]
    ) -> ConsumerHeartbeat:
        """What is to be told now."""
        rows, waited, self.rows, self.seconds_waited = self.rows, self.seconds_waited, 0, 0.0
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        return ConsumerHeartbeat(
            consumer_id=consumer_id,
            version=version,
            rounds=rounds,
            turn=turn,
            rows_per_second=rows / seconds,
            waiting_fraction=min(1.0, waited / seconds),
            lost_workers=lost_workers,
            skipped=self.skipped,
        )
