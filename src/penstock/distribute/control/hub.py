"""The hub of the control channel, in worker 0: forwards every message to all other workers, and waits for none."""

import logging
import secrets
import threading
from typing import Final

from penstock.addresses import is_loopback
from penstock.distribute.control.messages import (
    EXIT_SECONDS,
    MAXIMUM_BYTES,
    ControlLine,
    Message,
    WorkerFailed,
    WorkerLeft,
    control_line,
)
from penstock.rpc.connection import SocketConnection
from penstock.rpc.line import TICK_SECONDS, TooLongError
from penstock.rpc.listener import Access, Listener
from penstock.rpc.server import LineServer

_logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 4 * MAXIMUM_BYTES
"""The most bytes that may wait for a worker that does not take them."""


class Hub:
    """Forwards the messages of each worker to all others; runs in worker 0.

    Args:
        host: the name or address at which the other workers reach this process.
        workers: how many will connect, worker 0 itself among them.
    """

    def __init__(self, host: str, workers: int) -> None:
        self.host = host
        self.key = secrets.token_bytes(32)
        # At all addresses, unless the others are on this machine: they may reach it by an address that it does not
        # have, such as a service's of Kubernetes, and its own name often resolves to 127.0.1.1 here.
        listener = Listener(lambda: Access((self.key,)), host if is_loopback(host) else "")
        self.port = listener.port
        self._workers = workers
        self._lines: dict[int, ControlLine] = {}
        self._came: set[int] = set()
        self._left: set[int] = set()
        self._early: list[tuple[int, Message]] = []  # messages from before all had come
        self._first_left = threading.Event()
        self._server = LineServer(
            "penstock-control-hub", listener, self._admit, self._hear, self._ended, self._tick, TICK_SECONDS
        )

    def _admit(self, worker: int, connection: SocketConnection) -> ControlLine | None:
        if worker in self._came or not 0 <= worker < self._workers:
            _logger.warning("the control channel turned worker %d away, which is none or has come before", worker)
            return None
        self._came.add(worker)
        line = self._lines[worker] = control_line(connection)
        if len(self._came) == self._workers:
            self._server.close_listener()
            early, self._early = self._early, []
            for sender, message in early:
                self._forward(sender, message)
        return line

    def _worker_of(self, line: ControlLine) -> int:
        return next(worker for worker, its in self._lines.items() if its is line)

    def _hear(self, line: ControlLine, message: Message | TooLongError) -> None:
        if isinstance(message, TooLongError):
            raise message
        worker = self._worker_of(line)
        if isinstance(message, WorkerLeft):
            self._left.add(worker)
        self._forward(worker, message)
        if worker == 0 and isinstance(message, (WorkerLeft, WorkerFailed)):
            self._first_left.set()

    def _forward(self, sender: int, message: Message) -> None:
        if len(self._came) < self._workers:
            self._early.append((sender, message))
            return
        for worker, line in list(self._lines.items()):
            if worker == sender:
                continue
            try:
                line.send(message, seconds=0)
                self._server.watch(line)
            except OSError as error:  # it has ended, which reading from its own line reports
                _logger.debug("a message could not be passed on: %r", error)
            if line.unsent_bytes > _MOST_WAITING:
                waiting = f"it takes no messages, and {line.unsent_bytes:,} bytes wait for it"
                self._server.end(line, ConnectionError(waiting))

    def _tick(self, seconds: float) -> None:
        for line in list(self._lines.values()):
            try:
                if line.is_silent(seconds):
                    silent = f"nothing was heard of it for {line.quiet:.0f} seconds"
                    self._server.end(line, ConnectionError(silent))
            except OSError as error:  # which reading reports
                _logger.debug("a worker could not be asked for a sign of life: %r", error)

    def _ended(self, line: ControlLine, error: Exception) -> None:
        worker = self._worker_of(line)
        del self._lines[worker]
        if worker == 0:
            self._first_left.set()
        if worker not in self._left:
            said = isinstance(error, OSError) and error.errno is None  # the line's own error, not the system's
            why = str(error) if said else "its process has ended"
            self._forward(worker, WorkerFailed(worker, f"was lost: {why}"))
        if not self._lines and len(self._came) == self._workers:
            self._server.leave()

    def finish(self) -> None:
        """At the end of this process, after worker 0 has left: wait until the other workers know."""
        self._first_left.wait(EXIT_SECONDS)
