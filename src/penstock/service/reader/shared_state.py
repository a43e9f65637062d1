"""State that the threads of one reader share: the caller's, the lanes, and that of its session with the dispatcher."""

import math
import os
import socket
import time
from threading import RLock
from traceback import clear_frames

from penstock.runtime.busy_time import BusyTime
from penstock.runtime.conditions import BoundedCondition
from penstock.service.reader.epoch_progress import EpochProgress
from penstock.service.reader.fetch_task import FetchTask
from penstock.service.reader.leases import Holding, Leases
from penstock.service.reader.pace import SpanPace, Usage
from penstock.service.reader.read_options import ReadOptions
from penstock.service.reader.worker_pool import WorkerPool
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, EpochOpened
from penstock.service.wire.subjects import Span


class HeartbeatCounters:
    """Counts what the next heartbeat reports.

    Attributes:
        rows: elements that were delivered since the last heartbeat.
        waiting: the time in which the caller waits, entered by `with`.
        skipped: elements that were skipped in all.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.skipped = 0
        self._since = time.monotonic()
        self.waiting = BusyTime(time.monotonic)

    def heartbeat(
        self, consumer_id: int, version: int, rounds: list[int], turn: int, lost_workers: list[int]
    ) -> ConsumerHeartbeat:
        """Make the heartbeat, and reset the counters."""
        now = time.monotonic()
        rows, self.rows = self.rows, 0
        seconds, self._since = now - self._since, now
        return ConsumerHeartbeat(
            consumer_id=consumer_id,
            version=version,
            rounds=rounds,
            turn=turn,
            elements_per_second=rows / seconds,
            waiting_fraction=min(1.0, self.waiting.take() / seconds),
            lost_workers=lost_workers,
            skipped=self.skipped,
            process=f"{socket.gethostname()}:{os.getpid()}",
        )


class SharedState:
    """Everything here is read and changed under one lock, which all of the conditions have.

    Attributes:
        changed: for lanes that wait for work or for room; notified of every change.
        arrived: for the caller, who waits for an element; a separate condition, so that an element wakes no lane.
        heartbeat_due: for the thread of the session.
        workers: the workers that the reader may ask.
        progress: the reader's position in each pass, and the elements that it has delivered.
        leases: of a shared job; None for others.
        whole_passes: whether each pass is fetched from beginning to end.
        lanes: the number of lanes.
        buffered: the number of elements that have arrived and were not delivered.
        failure: the error that ends the reader.
        caller_waits: whether the caller waits for an element.
        stopping: whether the reader was stopped, or has come to its end.
    """

    def __init__(
        self,
        options: ReadOptions,
        opened: EpochOpened,
        dispatcher: DispatcherClient,
        workers: WorkerPool,
        progress: EpochProgress,
    ) -> None:
        settings, lock = options.settings, RLock()
        self.changed, self.arrived, self.heartbeat_due = (BoundedCondition(lock) for _ in range(3))
        self.options = options
        self.dispatcher = dispatcher
        self.workers = workers
        self.progress = progress
        self.leases = Leases(opened.consumer_id, dispatcher, lock, self._holding) if opened.leased else None
        self.whole_passes = options.endless and not opened.leased
        self.usage = Usage()
        self.pace = SpanPace(
            settings.max_outstanding_requests, self.usage if opened.leased or settings.trainer else None
        )
        self.counters = HeartbeatCounters()
        self.lanes = 0
        self.buffered = 0
        self.failure: Exception | None = None
        self.caller_waits = False
        self.stopping = False

    @property
    def ending(self) -> bool:
        """Return whether nothing more is to be fetched."""
        return self.stopping or self.failure is not None

    def wake(self) -> None:
        """Wake the lanes and the caller."""
        self.changed.notify_all()
        self.arrived.notify_all()

    def fail(self, error: Exception) -> None:
        """End the reader with an error, which the caller gets. What its frames held, such as a line, is released."""
        met: BaseException | None = error
        while met is not None:
            clear_frames(met.__traceback__)
            met = met.__cause__ or met.__context__
        with self.changed:
            self.failure = self.failure or error
            self.wake()

    def stop(self) -> None:
        """End all threads; waits for nothing."""
        with self.changed:
            self.stopping = True
            self.heartbeat_due.notify_all()
            self.wake()

    def finish(self, task: FetchTask) -> None:
        """Close a task if it is done; if its caller has also consumed it, it will be acknowledged."""
        if self.progress.finish(task) and self.leases is not None:
            self.leases.used([task])

    @property
    def under_way(self) -> int:
        """Return the number of elements that were requested and not delivered; of positions for a shared job."""
        buffered = self.buffered if self.leases is None else self.pace.positions_of(self.buffered)
        return self.progress.requested + math.ceil(buffered)

    @property
    def held(self) -> int:
        """Return the number of undelivered positions of a shared job that this reader has."""
        assert self.leases is not None
        return self.leases.not_begun + self.progress.unread

    def _holding(self) -> Holding:
        with self.changed:
            assert self.leases is not None
            return self.held, self.caller_waits, self.leases.requesting

    def consumed_of_open(self) -> list[Span]:
        """Return the consumed parts of spans that are not consumed completely."""
        with self.changed:
            return self.progress.begun(self.progress.delivered.used_until)
