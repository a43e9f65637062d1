"""A reader's session with the dispatcher: heartbeats, acknowledgements, spans given back, and the release at the end.

It runs in a separate thread, so that heartbeats do not depend on what the caller does.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from penstock.errors import ClosedError, LostLeaseError, PenstockError
from penstock.runtime.threads import Threads
from penstock.service.reader.shared_state import SharedState
from penstock.service.wire.dispatcher_messages import ConsumerNews, EpochOpened, ReleaseConsumer
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import PassInfo

_HEARTBEAT_SECONDS: Final = 1.0
_NEWS_SECONDS: Final = 0.2
"""How often to ask for news while no worker can be reached."""
_RECALL_SECONDS: Final = 0.1
"""How often to ask near the end of a shared epoch whether other readers need anything back."""
_KEPT_SECONDS: Final = 0.2
"""Elements that the caller consumes in this time are not given back."""


class DispatcherSession:
    """One reader's session, from the opening of an epoch on.

    Args:
        reopen: opens the epoch again at a dispatcher that does not know it, given the reader's replay.

    Attributes:
        opened: the dispatcher's answer to opening the epoch.
        unread: the number of the last delivered elements that were not consumed.
        replaced: whether a restored reader takes over, so that this one must not be released.
        ended: whether the reader has delivered everything, and nothing more will come.
    """

    def __init__(
        self, shared: SharedState, opened: EpochOpened, reopen: Callable[[dict[str, Any]], EpochOpened]
    ) -> None:
        self.opened = opened
        self.unread = 0
        self.replaced = False
        self.ended = False
        self._shared = shared
        self._reopen = reopen
        self._over = False
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS
        self._exchanging = Lock()
        self._version = -1
        self._passes: list[PassInfo] = []
        self._start_lanes: Callable[[int], None] = lambda workers: None

    def start(self, threads: Threads, start_lanes: Callable[[int], None]) -> None:
        """Start the lanes and the thread of the session.

        Args:
            start_lanes: called with the number of workers when they or the passes may have changed.
        """
        self._start_lanes = start_lanes
        self._enter(self.opened)
        threads.start(self._report_until_stopped, "service-session")

    def claim(self) -> None:
        """Tell the dispatcher that the elements of this reader by its last replay must not be given to another one.

        Raises:
            PenstockError: the dispatcher no longer knows this reader, or cannot be reached.
        """
        shared = self._shared
        if shared.leases is None:
            return
        with shared.changed:
            begun = shared.progress.begun(shared.progress.claimed)
        try:
            if not shared.stopping:
                shared.leases.claim(begun)
        except (LostLeaseError, ClosedError):
            # A thread that reads ahead may reach the end meanwhile: the reader is then released, and its connection
            # closed.
            if not shared.stopping:
                raise
        if shared.stopping:  # the release reports all delivered elements
            self.wait()

    def wait(self) -> None:
        """Wait until the stopped reader has been released."""
        with self._shared.changed:
            self._shared.changed.wait_for(lambda: self._over)

    def stop(self) -> None:
        """Wait no longer for a dispatcher that is away, unless the delivered elements must still be reported to it."""
        if not (self.ended and self._shared.leases is not None):
            self._shared.dispatcher.hurry()

    def report_soon(self) -> None:
        """Send the next heartbeat at once."""
        with self._shared.changed:
            self._next_heartbeat = 0.0
            self._shared.heartbeat_due.notify_all()

    def _report_until_stopped(self) -> None:
        """Send heartbeats and reports until the reader is stopped; then release it and close all connections."""
        shared = self._shared
        try:
            while not self._wait_for_next_message():
                if time.monotonic() >= self._next_heartbeat:
                    self._send_heartbeat()
                    self._next_heartbeat = time.monotonic() + (
                        _NEWS_SECONDS if self._shared.workers.none_reachable() else _HEARTBEAT_SECONDS
                    )
                elif shared.leases is not None:
                    shared.leases.report(shared.consumed_of_open())
                self._give_back()
        except Exception as error:  # otherwise the error would be lost
            shared.fail(error)
            with shared.changed:
                shared.heartbeat_due.wait_for(lambda: shared.stopping)
        self._shared.workers.close()
        if not self.replaced:
            # Elements that a reader of a shared job has delivered must not be leased again: wait for a dispatcher that
            # is away. The dispatcher notices a reader that stops early by missing heartbeats.
            patience_seconds = None if self.ended and shared.leases is not None else 0
            with suppress(PenstockError):
                self._shared.dispatcher.ask(self._release(), patience_seconds)
        self._shared.dispatcher.close()
        with shared.changed:
            self._over = True
            shared.changed.notify_all()

    def _release(self) -> ReleaseConsumer:
        shared = self._shared
        with shared.changed:
            used = shared.progress.delivered.number - self.unread
            consumed = [] if shared.leases is None else shared.leases.left(shared.progress.begun(used))
        return ReleaseConsumer(consumer_id=self.opened.consumer_id, consumed=consumed)

    def _wait_for_next_message(self) -> bool:
        """Wait until the next message to the dispatcher is due; returns whether the reader was stopped."""
        shared = self._shared
        with shared.changed:
            since = time.monotonic()
            while not shared.stopping:
                recall = shared.leases is not None and shared.leases.near_end and (shared.held or shared.leases.known)
                until = min(self._next_heartbeat, since + _RECALL_SECONDS) if recall else self._next_heartbeat
                left = until - time.monotonic()
                if left <= 0:
                    break
                shared.heartbeat_due.wait(left)
            return shared.stopping

    def _give_back(self) -> None:
        """If another reader has nothing, give back the positions that this one's caller does not need soon."""
        shared, leases = self._shared, self._shared.leases
        if leases is None or not leases.wanted:
            return
        with shared.changed:
            leases.wanted = False
            held = shared.held
            kept = min(held // 2, shared.pace.used_in(_KEPT_SECONDS))
            if shared.caller_waits:  # readers that all wait would hand the last element on before it is made
                kept = max(kept, min(held, 1))
            left = held - kept
            given = leases.take_back(left)
            given_up = shared.progress.give_up(left - count(given))
            given += given_up.spans
            shared.buffered -= given_up.rows
            leases.used(given_up.used)
            shared.wake()
        if given:
            leases.give_back(given, shared.consumed_of_open())

    def _send_heartbeat(self) -> None:
        shared = self._shared
        try:
            self.exchange_news()
        except LostLeaseError:
            if shared.leases is not None:
                raise
            # No other reader can have these elements: the epoch only has to be opened at the new dispatcher.
            with shared.changed:
                replay = shared.progress.replay_from(shared.progress.delivered.number, bare=True)
            self.opened = self._reopen(replay)
            self._enter(self.opened)
        if shared.leases is not None:
            shared.leases.acknowledge(shared.consumed_of_open())

    def exchange_news(self, *lost: int, patience_seconds: float | None = None) -> ConsumerNews | None:
        """Send a heartbeat that names unreachable workers, and apply the changes in its answer.

        Returns:
            The answer; None if another thread is waiting for one for longer than `patience_seconds`.
        """
        shared = self._shared
        # Answers must be taken over in order: each contains the changes since the last.
        if not self._exchanging.acquire(timeout=-1 if patience_seconds is None else patience_seconds):
            return None
        try:
            with shared.changed:
                rounds, turn = shared.progress.rounds()
                unreachable = sorted({*lost, *self._shared.workers.suspects()})
                consumer_id = self.opened.consumer_id
                heartbeat = shared.counters.heartbeat(consumer_id, self._version, rounds, turn, unreachable)
            news: ConsumerNews = self._shared.dispatcher.ask(heartbeat, patience_seconds)
            workers = self._shared.workers.update(news.workers, news.gone, whole=news.whole)
            self._update(workers, news.version, news.passes)
            if shared.leases is not None and news.wanted:
                shared.leases.wanted = True
            return news
        finally:
            self._exchanging.release()

    def _enter(self, opened: EpochOpened) -> None:
        """Take over the answer of a dispatcher that has just opened the epoch."""
        workers = self._shared.workers.update(opened.workers, whole=True)
        self._update(workers, opened.version, opened.passes)

    def _update(self, workers: int, version: int, passes: list[PassInfo] | None) -> None:
        """Take over changed passes, and start the lanes that can be used now."""
        with self._shared.changed:
            self._version = version
            self._passes = self._passes if passes is None else passes
            self._shared.progress.update([info for info in self._passes if self._reads(info)])
        self._start_lanes(workers)

    def _reads(self, info: PassInfo) -> bool:
        """Return whether this reader reads a pass; it keeps one that it has begun, whichever worker makes it."""
        begun = info.number in self._shared.progress.passes
        return begun or not self._shared.options.settings.own_passes or self._shared.workers.has(info.worker_id)
