"""The consumer's end of the service: lanes fetch spans from workers, the caller takes what has arrived.

`lanes.py` has the threads that fetch, `session.py` the one that keeps in touch with the dispatcher. All of them end
soon after `stop`, which waits for nothing.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.data.block import Block
from penstock.errors import ClosedError
from penstock.runtime.threads import Threads
from penstock.service.reader.epoch_progress import EpochProgress
from penstock.service.reader.fetch_task import Arrival, Arrived, FetchedBehind, FetchTask
from penstock.service.reader.lanes import Lanes
from penstock.service.reader.read_options import ReadOptions
from penstock.service.reader.session import DispatcherSession
from penstock.service.reader.shared_state import SharedState
from penstock.service.reader.worker_pool import WorkerPool
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import EpochOpened
from penstock.service.wire.worker_messages import LeftOut

_logger = logging.getLogger(__name__)

_SILENCE_SECONDS: Final = 5.0
"""How long the caller waits before a warning says what it waits for."""


class Reader:
    """Reads one epoch of a job, as one of its consumers: it owns the passes, or leases spans of them.

    Args:
        reopen: opens the epoch again at a dispatcher that knows nothing of it.
        progress: how far it is.
        left_out: counts what the workers have left out before an element, given its number.
    """

    def __init__(
        self,
        options: ReadOptions,
        opened: EpochOpened,
        dispatcher: DispatcherClient,
        reopen: Callable[[dict[str, Any]], EpochOpened],
        workers: WorkerPool,
        threads: Threads,
        progress: EpochProgress,
        left_out: Callable[[int, LeftOut], None],
    ) -> None:
        self._options = options
        self._left_out = left_out
        self._workers = workers
        self._progress = progress
        self._shared = SharedState(options, opened, dispatcher, progress)
        self._session = DispatcherSession(options, self._shared, workers, opened, dispatcher, reopen)
        lanes = Lanes(options, self._shared, workers, self._session, threads)
        self._session.start(threads, lanes.start)

    @property
    def number(self) -> int:
        """The number of the element that comes next, failures counted."""
        return self._progress.delivered.number

    @property
    def shared(self) -> bool:
        """Whether other readers have had something of the epoch."""
        with self._shared.changed:
            return self._shared.leases is not None and not self._progress.all_read

    def next(self) -> Block | None:
        """The next elements, or None at the end.

        Raises:
            ClosedError: the reader was stopped.
            Exception: what a user's function raised in place of an element; the reader continues after it.
        """
        shared = self._shared
        with shared.changed:
            while (task := self._awaited_task()) is not None:
                self._progress.count_left_out(task, self._left_out)
                arrival = self._deliver(task)
                shared.changed.notify_all()
                if isinstance(arrival, Arrived):
                    return arrival.block
                if isinstance(arrival, FetchedBehind):
                    continue
                if not self._options.leaves_out(arrival):
                    raise arrival.error
                shared.counters.skipped += 1
            return None

    def _awaited_task(self) -> FetchTask | None:
        """Wait for the task that delivers the next elements; None at the end."""
        task = self._progress.next_task()
        if task is None:
            with self._shared.counters.waiting():
                task = self._wait()
        return task

    def _wait(self) -> FetchTask | None:
        shared = self._shared
        begun = warned = time.monotonic()
        while (task := self._progress.next_task()) is None:
            if shared.failure is not None:
                raise shared.failure
            if self._progress.all_delivered and (shared.leases is None or shared.leases.over):
                self._end()
                return None
            if shared.stopping:
                raise ClosedError("this iterator was closed while an element was waited for")
            shared.caller_waits = True
            shared.arrived.wait(_SILENCE_SECONDS)
            shared.caller_waits = False
            if time.monotonic() > warned + _SILENCE_SECONDS:
                warned = time.monotonic()
                why = self._session.trouble or self._workers.why_silent()
                _logger.warning("no element for %.0f s: %s", warned - begun, why)
        return task

    def _end(self) -> None:
        """Stop at the end. What is left of a shared job's epoch goes to others only when the dispatcher knows of it."""
        self._session.ended = True
        self.stop()
        if self._shared.leases is not None:
            self._session.wait()

    def _deliver(self, task: FetchTask) -> Arrival:
        shared = self._shared
        arrival = self._progress.deliver(task)
        if isinstance(arrival, Arrived):
            shared.buffered -= arrival.chunk.rows
            shared.counters.rows += arrival.chunk.rows
            shared.usage.used(arrival.chunk.rows)
        shared.finish(task)
        return arrival

    def consumed(self, number: int) -> None:
        """Note that the caller has consumed all elements before this number."""
        with self._shared.changed:
            used = self._progress.delivered.use(number)
            if self._shared.leases is not None:
                self._shared.leases.used(used)

    def replay_from(self, number: int, *, bare: bool) -> dict[str, Any]:
        """What a restored reader needs to repeat the elements from `number` on: see `LiveStream.replay_from`."""
        with self._shared.changed:
            return self._progress.replay_from(number, bare=bare)

    def claim(self) -> None:
        """Tell the dispatcher that what the last replay says is this reader's must not be given to another one.

        Raises:
            PenstockError: it does not know this reader any more, or cannot be reached.
        """
        self._session.claim()

    def unread(self, rows: int) -> None:
        """Note that the last `rows` delivered elements were not consumed; the caller takes no more."""
        self._session.unread = max(self._session.unread, rows)

    def leave(self) -> None:
        """Prepare to be stopped and replaced by a restored reader, which gets back what this one was given."""
        self._session.replaced = self._shared.leases is not None

    def stop(self) -> None:
        """End all threads of this reader; waits for nothing."""
        self._shared.stop()
        self._session.stop()
