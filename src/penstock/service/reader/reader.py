"""The consumer's end of the service: lanes fetch spans from workers, the caller takes the elements that have arrived.

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
from penstock.service.reader.fetch_task import Arrived, FetchedBehind, FetchTask
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
"""The time that the caller waits before a warning names the reason."""


class Reader:
    """Reads one epoch of a job, as one of its consumers: it owns the passes, or leases spans of them.

    Args:
        reopen: opens the epoch again at a dispatcher that knows nothing of it.
        progress: its position in the epoch.
        left_out: counts the rows that the workers have skipped before an element, given its number.
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
        self._left_out = left_out
        self._progress = progress
        self._shared = SharedState(options, opened, dispatcher, workers, progress)
        self._session = DispatcherSession(self._shared, opened, reopen)
        self._session.start(threads, Lanes(self._shared, self._session, threads).start)

    @property
    def number(self) -> int:
        """The number of the element that comes next, failures counted."""
        return self._progress.delivered.number

    @property
    def shared(self) -> bool:
        """Return whether other readers have had something of the epoch."""
        with self._shared.changed:
            return self._shared.leases is not None and not self._progress.all_read

    def next(self) -> Block | None:
        """The next elements, or None at the end.

        Raises:
            ClosedError: the reader was stopped.
            Exception: the exception that a user's function raised instead of an element; the reader continues after it.
        """
        shared = self._shared
        with shared.changed:
            while (task := self._progress.next_task() or self._wait()) is not None:
                self._progress.count_left_out(task, self._left_out)
                arrival = self._progress.deliver(task)
                shared.finish(task)
                shared.changed.notify_all()
                if isinstance(arrival, Arrived):
                    rows = arrival.chunk.rows
                    shared.buffered -= rows
                    shared.counters.rows += rows
                    shared.usage.used(rows)
                    return arrival.block
                if isinstance(arrival, FetchedBehind):
                    continue
                if not shared.options.skips(arrival):
                    raise arrival.error
                shared.counters.skipped += 1
            return None

    def _wait(self) -> FetchTask | None:
        """Wait for the task that delivers the next elements; None at the end."""
        shared = self._shared
        begun = warned = time.monotonic()
        with shared.counters.waiting:
            while (task := self._progress.next_task()) is None:
                if shared.failure is not None:
                    raise shared.failure
                if self._progress.all_delivered and (shared.leases is None or shared.leases.over):
                    self._session.ended = True
                    self.stop()
                    if shared.leases is not None:  # others get the rest only when the dispatcher knows of the end
                        self._session.wait()
                    return None
                if shared.stopping:
                    raise ClosedError("this iterator was closed while an element was waited for")
                shared.caller_waits = True
                shared.arrived.wait(_SILENCE_SECONDS)
                shared.caller_waits = False
                if time.monotonic() > warned + _SILENCE_SECONDS:
                    warned = time.monotonic()
                    why = shared.dispatcher.trouble or shared.workers.why_silent() + shared.options.may_wait_for()
                    _logger.warning("no element for %.0f s: %s", warned - begun, why)
        return task

    def consumed(self, number: int) -> None:
        """Note that the caller has consumed all elements before this number."""
        with self._shared.changed:
            used = self._progress.delivered.use(number)
            if self._shared.leases is not None:
                self._shared.leases.used(used)

    def replay_from(self, number: int, *, bare: bool) -> dict[str, Any]:
        """Return the state from which a restored reader repeats the elements from `number` on."""
        with self._shared.changed:
            return self._progress.replay_from(number, bare=bare)

    def claim(self) -> None:
        """Claim the elements of the last replay: see `DispatcherSession.claim`."""
        self._session.claim()

    def unread(self, rows: int) -> None:
        """Note that the last `rows` delivered elements were not consumed; the caller takes no more."""
        self._session.unread = max(self._session.unread, rows)

    def leave(self) -> None:
        """Prepare to be stopped and replaced by a restored reader, which gets back the elements of this one."""
        self._session.replaced = self._shared.leases is not None

    def stop(self) -> None:
        """End all threads of this reader; waits for nothing."""
        self._shared.stop()
        self._session.stop()
