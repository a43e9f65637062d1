"""A service on one machine: a dispatcher in this process, and worker processes that end with it."""

import logging
import secrets
import threading
import time
from contextlib import suppress
from queue import Empty
from typing import Final

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.options import check_integer
from penstock.runtime.child_process import status_in_words
from penstock.service.background import BackgroundServer, Ending, Running
from penstock.service.config import DispatcherConfig
from penstock.service.connected import SAY_SECONDS, readers_of, status
from penstock.service.dispatcher.server import DispatchServer
from penstock.service.local_worker import LocalWorker
from penstock.service.scaling import DECISION_SECONDS, Scaler, ServiceLoad
from penstock.service.security.credentials import ClientCredentials, note_begin, note_end, worker_token
from penstock.service.wire.dispatcher_messages import Status

_logger = logging.getLogger(__name__)

_STOP_SECONDS: Final = 5.0
_CHECK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0
"""The time between two looks at the workers' status in the dispatcher."""
_QUICK_RESTARTS: Final = 10
_RESTART_SECONDS: Final = 5.0
"""The pause between starts once ten workers were lost: the machine itself may kill them."""


class LocalService(BackgroundServer["_RunningService"]):
    """A data service that this process has started, with worker processes on this machine; `local` makes it.

    Args:
        num_workers: how many workers it begins with.
        max_workers: how many it may have if their number follows the load.
    """

    _name = "local service"

    def __init__(self, num_workers: int, max_workers: int | None) -> None:
        self._counts = num_workers, max_workers
        super().__init__(start=True)

    def _run(self) -> "_RunningService":
        return _RunningService(*self._counts)

    @property
    def target(self) -> str:
        """Return the `service` for `distribute`."""
        return self._running().dispatcher.target

    def kill_worker(self) -> None:
        """Kill a worker, for testing that nothing is lost with it. Another one replaces it."""
        for worker in sorted(self._running().workers, key=lambda worker: worker.pid)[:1]:  # as a rule the oldest
            worker.kill()

    def status(self) -> Status:
        """Return the state of the service, as `ps.service.status` does."""
        return status(self.target)

    def scale(self, num_workers: int) -> None:
        """Have this many workers, which start or end in the background. Those that end finish their requests first.

        With `max_workers` the number continues to follow the load from there.

        Raises:
            InvalidTypeError: no integer.
            InvalidArgumentError: less than 1, or more than `max_workers`.
        """
        check_integer("scale", "num_workers", num_workers, minimum=1)
        most = self._running().max_workers
        if most is not None and num_workers > most:
            raise InvalidArgumentError(f"scale(num_workers={num_workers}) is more than max_workers={most}")
        self._running().wanted = num_workers

    def stop(self, *, drain: bool = False) -> None:
        """End the workers and the dispatcher, and wait until they have ended. A second call does nothing.

        Args:
            drain: let readers read to the end first; no epoch can begin meanwhile.
        """
        super().stop(drain=drain)


class _RunningService(Running):
    """The running part of a service. It refers to nothing that the user holds, so an unused service can end."""

    def __init__(self, num_workers: int, max_workers: int | None) -> None:
        super().__init__()
        self.wanted = num_workers
        self.max_workers = max_workers
        self._scaler = None if max_workers is None else Scaler(num_workers, max_workers)
        self._decide_at = time.monotonic() + DECISION_SECONDS
        self._token = secrets.token_hex(32)
        self.dispatcher = DispatchServer(DispatcherConfig(token=self._token))
        self._address = self.dispatcher.target.split("://")[1]
        note_begin(self._address, ClientCredentials(self._token))
        self.workers: list[LocalWorker] = []
        self._leaving: list[LocalWorker] = []
        self._lost = 0
        self._look_at = 0.0
        self._thread = threading.Thread(target=self._supervise, name="penstock-local", daemon=True)
        try:
            self._start_workers()
        except BaseException:
            self.stop("stop")
            raise

    def _start_workers(self) -> None:
        """Start the processes, and wait until the dispatcher knows all of them."""
        try:
            for _ in range(self.wanted):
                self.workers.append(self._start())
            for worker in self.workers:
                worker.wait_until_ready()
        finally:
            self._thread.start()

    def _supervise(self) -> None:
        pause = _CHECK_SECONDS
        while not (ending := self._wait_for_ending(pause)):
            pause = self._reach_wanted()
            self._decide()
        if ending == "drain":
            self._wait_for_readers()
        for worker in self.workers:
            worker.finish()
        until = time.monotonic() + _STOP_SECONDS
        for worker in (*self.workers, *self._leaving):
            worker.wait_until_ended(until)
        self.dispatcher.stop()
        note_end(self._address)
        self.ended.set()

    def _start(self) -> LocalWorker:
        return LocalWorker(self._address, worker_token(self._token))

    def _wait_for_readers(self) -> None:
        """Refuse new epochs, and replace workers until all readers have read to the end."""
        draining = threading.Thread(target=self.dispatcher.stop, kwargs={"drain": True}, daemon=True)
        draining.start()
        say_at = time.monotonic() + SAY_SECONDS
        while draining.is_alive():
            draining.join(self._reach_wanted())
            if time.monotonic() >= say_at:
                say_at += SAY_SECONDS
                _logger.warning("stopping waits for readers: %s", readers_of(self.dispatcher.status()))

    def _kill_silent_ones(self) -> None:
        """Kill workers that the dispatcher has given up: a call that never returns may hold the interpreter's lock."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        workers = self.dispatcher.status().workers
        alive, given_up = (
            {worker.info.endpoint.address for worker in workers if worker.alive is state} for state in (True, False)
        )
        for worker in self.workers:
            if worker.address in given_up - alive and worker.status is None:
                _logger.warning("a local data worker has fallen silent and is killed: process %d", worker.pid)
                worker.kill()

    def _reach_wanted(self) -> float:
        """Start or end one worker towards the wanted number of living ones; return when to look again, in seconds."""
        self._kill_silent_ones()
        for worker in [worker for worker in (*self.workers, *self._leaving) if worker.status is not None]:
            worker.finish()
            worker.wait_until_ended()
            if worker in self._leaving:
                self._leaving.remove(worker)
                continue
            self.workers.remove(worker)
            self._lost += 1
            if not worker.killed:
                _logger.warning("a local data worker ended with %s and is replaced", status_in_words(worker.status))
        if len(self.workers) > self.wanted:
            leaving = self.workers.pop()
            leaving.finish()
            self._leaving.append(leaving)
        elif len(self.workers) < self.wanted:
            try:
                self.workers.append(self._start())
            except OSError as error:
                _logger.error("a local data worker could not be started, and it is tried again: %s", error)
                return _RESTART_SECONDS
            return _CHECK_SECONDS if self._lost < _QUICK_RESTARTS else _RESTART_SECONDS
        return _CHECK_SECONDS

    def _decide(self) -> None:
        """Change the wanted number of workers now and then, if it follows the load."""
        now = time.monotonic()
        if self._scaler is None or now < self._decide_at or len(self.workers) != self.wanted:
            return
        self._decide_at = now + DECISION_SECONDS
        try:
            decision = self._scaler.decide(ServiceLoad.of(status(self._address)), self.wanted)
        except ServiceError as error:
            _logger.warning("the number of local data workers stays as it is: %s", error)
            return
        if decision is not None:
            _logger.info("%s", decision.reason)
            self.wanted = decision.workers

    def _wait_for_ending(self, seconds: float) -> Ending | None:
        with suppress(Empty):
            return self.endings.get(timeout=seconds)
        return None


def local(num_workers: int = 2, max_workers: int | None = None) -> LocalService:
    """A data service on this machine: `num_workers` processes that run pipelines in parallel.

    So Python functions that hold the interpreter's lock use more than one core. The processes end with the `with`
    block, when the returned object is no longer referenced, and with this process, even if that is killed. One that
    is lost is replaced: ten of them at once, further ones every 5 seconds.

    Args:
        num_workers: how many there are, and with `max_workers` the fewest.
        max_workers: let the number follow the load, up to this many. More come within seconds where readers wait and
            workers are busy, so that these would be busy four fifths of the time; fewer are left after ten seconds
            of less. The log says why, at level INFO.

    Raises:
        InvalidTypeError: a number that is no integer.
        InvalidArgumentError: less than 1, or fewer at most than at least.
        ServiceError: a worker process cannot be started.

    Example:
        >>> import penstock as ps
        >>> with ps.service.local(num_workers=2) as service:
        ...     dataset = ps.Dataset.range(5).map(lambda x: x * x)
        ...     dataset = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
        ...     print([int(x) for x in dataset])
        [0, 1, 4, 9, 16]
    """
    least = check_integer("local", "num_workers", num_workers, minimum=1)
    if max_workers is not None:
        check_integer("local", "max_workers", max_workers, minimum=least)
    return LocalService(least, max_workers)
