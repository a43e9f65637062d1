"""A service on one machine: a dispatcher in this process, and worker processes that end with it."""

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Final

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.options import check_integer
from penstock.runtime.at_exit import end_at_exit
from penstock.runtime.child_process import start_child, status_in_words
from penstock.service.background import Ending
from penstock.service.config import DispatcherConfig
from penstock.service.connected import status
from penstock.service.dispatcher.server import DispatchServer
from penstock.service.scaling import DECISION_SECONDS, Scaler, ServiceLoad
from penstock.service.security.credentials import ClientCredentials, forget, remember
from penstock.service.security.resolving import note_begin, note_end
from penstock.service.wire.dispatcher_messages import Status

_logger = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_CHECK_SECONDS: Final = 0.1
_QUICK_RESTARTS: Final = 10
_RESTART_SECONDS: Final = 5.0
"""The pause between replacements from the tenth on: the machine itself may be what kills the workers."""


class LocalService:
    """A data service that this process has started, with worker processes on this machine; `local` makes it.

    Attributes:
        target: what `distribute` takes as its `service`.
    """

    def __init__(self, num_workers: int, max_workers: int | None) -> None:
        self._running = _RunningService(num_workers, max_workers)
        self.target = self._running.dispatcher.target
        weakref.finalize(self, self._running.endings.put, "stop").atexit = False
        try:
            self._running.start_workers()
        except BaseException:
            self.stop()
            raise

    def kill_worker(self) -> None:
        """Kill a worker, for testing that nothing is lost with it. Another one replaces it."""
        self._running.kill_worker()

    def status(self) -> Status:
        """What it does, as `ps.service.status` returns it."""
        return status(self.target)

    def scale(self, num_workers: int) -> None:
        """Have this many workers, which start or end in the background. Those that end finish their requests first.

        With `max_workers` the number continues to follow the load from there.

        Raises:
            InvalidTypeError: no integer.
            InvalidArgumentError: less than 1, or more than `max_workers`.
        """
        check_integer("scale", "num_workers", num_workers, minimum=1)
        most = self._running.max_workers
        if most is not None and num_workers > most:
            raise InvalidArgumentError(f"scale(num_workers={num_workers}) is more than max_workers={most}")
        self._running.wanted = num_workers

    def stop(self, *, drain: bool = False) -> None:
        """End the workers and the dispatcher, and wait until they have ended. A second call does nothing.

        Args:
            drain: let readers read to the end first; no epoch can begin meanwhile.
        """
        self._running.stop(drain)

    def __enter__(self) -> "LocalService":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _RunningService:
    """The running part of a service. It refers to nothing that the user holds, so an unused service can end."""

    def __init__(self, num_workers: int, max_workers: int | None) -> None:
        self.wanted = num_workers
        self.max_workers = max_workers
        self._scaler = None if max_workers is None else Scaler(num_workers, max_workers)
        self._decide_at = time.monotonic() + DECISION_SECONDS
        self._token = secrets.token_hex(32)
        self.dispatcher = DispatchServer(DispatcherConfig(token=self._token))
        self._address = self.dispatcher.target.split("://")[1]
        remember(self._address, ClientCredentials(self._token))
        note_begin(self._address)
        self._processes: list[Popen[bytes]] = []
        self._leaving: list[Popen[bytes]] = []
        self._restarts = 0
        # Anything that is put here ends it. The garbage collector may write to a queue of this kind.
        self.endings: SimpleQueue[Ending] = SimpleQueue()
        self._thread = threading.Thread(target=self._supervise, name="penstock-local", daemon=True)
        end_at_exit(self, partial(_RunningService.stop, drain=False))

    def start_workers(self) -> None:
        """Start the processes, and wait until the dispatcher knows all of them."""
        try:
            for _ in range(self.wanted):
                self._processes.append(_start(self._address, self._token))
            for process in self._processes:
                _wait_until_registered(process)
        finally:
            self._thread.start()

    def _supervise(self) -> None:
        pause = _CHECK_SECONDS
        while not (ending := self._wait_for_ending(pause)):
            pause = self._replace_one()
            self._reach_wanted()
            self._decide()
        if ending == "drain":
            self.dispatcher.stop(drain=True)
        for process in self._processes:
            _close_input(process)
        until = time.monotonic() + _STOP_SECONDS
        for process in (*self._processes, *self._leaving):
            _wait_until_ended(process, until)
        self.dispatcher.stop()
        forget(self._address)
        note_end(self._address)

    def _reach_wanted(self) -> None:
        """Start a worker if there are too few, or let one leave if there are too many."""
        self._leaving = [process for process in self._leaving if not _has_ended(process)]
        if len(self._processes) > self.wanted:
            leaving = self._processes.pop()
            _close_input(leaving)
            self._leaving.append(leaving)
        elif len(self._processes) < self.wanted:
            try:
                self._processes.append(_start(self._address, self._token))
            except OSError as error:  # tried again at the next look
                _logger.error("no further local data worker could be started: %s", error)

    def _decide(self) -> None:
        """Change the wanted number of workers now and then, if it follows the load."""
        now = time.monotonic()
        if self._scaler is None or now < self._decide_at or len(self._processes) != self.wanted:
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

    def kill_worker(self) -> None:
        """Kill the worker that has run longest, as far as the system knows."""
        min(self._processes, key=lambda process: process.pid).kill()

    def _wait_for_ending(self, seconds: float) -> Ending | None:
        with suppress(Empty):
            return self.endings.get(timeout=seconds)
        return None

    def _replace_one(self) -> float:
        """Replace a worker whose process has ended; returns after how many seconds to look again."""
        for number, process in enumerate(self._processes):
            status = process.poll()
            if status is not None:
                _logger.warning(
                    "a local data worker ended with %s: another one takes its place", status_in_words(status)
                )
                _close_input(process)
                _wait_until_ended(process)
                try:
                    self._processes[number] = _start(self._address, self._token)
                except OSError as error:  # the ended one stays in the list until this works
                    _logger.error("no local data worker could be started in its place: %s", error)
                    return _RESTART_SECONDS
                self._restarts += 1
                return _CHECK_SECONDS if self._restarts < _QUICK_RESTARTS else _RESTART_SECONDS
        return _CHECK_SECONDS

    def stop(self, drain: bool) -> None:
        """End it, and wait until it has ended."""
        self.endings.put("drain" if drain else "stop")
        self._thread.join()


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


@contextmanager
def _token_pipe(token: str) -> Iterator[str]:
    """Pass a token as a file that no other process can open: the end of a pipe."""
    reading, writing = os.pipe()
    try:
        os.write(writing, token.encode())
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def _start(dispatcher: str, token: str) -> "Popen[bytes]":
    """Start a worker. It ends when its standard input is closed, as the system does if this process is killed."""
    arguments = ("worker", "--dispatcher", dispatcher, "--quiet", "--until-input-ends", "--token-file")
    with _token_pipe(token) as file:
        descriptors = [int(Path(file).name)]
        return start_child("penstock", *arguments, file, descriptors=descriptors, stdin=PIPE, stdout=PIPE)


def _wait_until_registered(process: "Popen[bytes]") -> None:
    """Wait for the line that a worker writes when the dispatcher knows it.

    Raises:
        ServiceError: it ended instead, or took too long.
    """
    assert process.stdout is not None
    timer = threading.Timer(_START_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    if not line:
        status = status_in_words(process.wait())
        raise ServiceError(f"a local data worker ended with {status} before it was ready; what it wrote says why")


def _has_ended(process: "Popen[bytes]") -> bool:
    """Whether a worker has ended; if so, nothing is left of it."""
    if process.poll() is None:
        return False
    _wait_until_ended(process)
    return True


def _close_input(process: "Popen[bytes]") -> None:
    """Close a worker's standard input, which ends it."""
    assert process.stdin is not None
    process.stdin.close()


def _wait_until_ended(process: "Popen[bytes]", until: float | None = None) -> None:
    """Kill a process that has not ended in 5 seconds, or until then by `time.monotonic`."""
    try:
        process.wait(_STOP_SECONDS if until is None else max(0.0, until - time.monotonic()))
    except TimeoutExpired:  # it hangs in a user's function
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
