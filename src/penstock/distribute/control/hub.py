"""The hub of the control channel, in worker 0: forwards every message to all other workers, and waits for none."""

import logging
import secrets
import selectors
import threading
import time
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
from penstock.rpc.line import TICK_SECONDS
from penstock.rpc.listener import Access, Listener

_logger = logging.getLogger(__name__)

_MOST_WAITING: Final = 4 * MAXIMUM_BYTES
"""So many bytes may wait for a worker that does not take them."""


class Hub:
    """Forwards the messages of each worker to all others; runs in worker 0.

    Args:
        host: the name or address at which the other workers reach this process.
        workers: how many will connect, worker 0 itself among them.
    """

    def __init__(self, host: str, workers: int) -> None:
        self.host = host
        self.key = secrets.token_bytes(32)
        # At all addresses, unless the others are on this machine: what they reach may be an address that it does not
        # have, such as a service's of Kubernetes, and its own name often resolves to 127.0.1.1 here.
        self._listener = Listener(lambda: Access((self.key,)), host if is_loopback(host) else "")
        self.port = self._listener.port
        self._workers = workers
        self._lines: dict[int, ControlLine] = {}
        self._came: set[int] = set()
        self._left: set[int] = set()
        self._early: list[tuple[int, Message]] = []  # what was said before all had come
        self._first_ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="penstock-control-hub", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        looked = time.monotonic()
        while self._lines or len(self._came) < self._workers:
            for key, events in self._selector.select(TICK_SECONDS):
                if key.data is None:
                    self._admit()
                elif key.data in self._lines:  # what another one has said may have ended it
                    self._exchange(key.data, events)
            before, looked = looked, time.monotonic()
            for worker, line in list(self._lines.items()):
                self._look_for_silence(worker, line, looked - before)
        self._selector.close()

    def _admit(self) -> None:
        worker, connection = self._listener.take()
        if worker in self._came or not 0 <= worker < self._workers:
            _logger.warning("the control channel turned worker %d away, which is none or has come before", worker)
            connection.close()
            return
        self._came.add(worker)
        self._lines[worker] = control_line(connection)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        if len(self._came) == self._workers:
            self._selector.unregister(self._listener)
            self._listener.close()
            early, self._early = self._early, []
            for sender, message in early:
                self._forward(sender, message)
        self._exchange(worker, selectors.EVENT_READ)  # what came with its proof is here already

    def _exchange(self, worker: int, events: int) -> None:
        """Receive and send what can be without waiting for the worker."""
        line = self._lines[worker]
        try:
            if events & selectors.EVENT_READ:
                line.fill()
            if events & selectors.EVENT_WRITE:
                line.flush()
            while worker in self._lines and line.has_more():
                message = line.receive_one()
                if isinstance(message, WorkerLeft):
                    self._left.add(worker)
                if message is not None:
                    self._forward(worker, message)
            self._watch(worker)
        except (EOFError, OSError) as error:
            said = isinstance(error, OSError) and error.errno is None  # the line's own error, not the system's
            self._lose(worker, str(error) if said else "its process has ended")

    def _forward(self, sender: int, message: Message) -> None:
        if len(self._came) < self._workers:
            self._early.append((sender, message))
            return
        for worker, line in list(self._lines.items()):
            if worker == sender:
                continue
            try:
                line.send(message, seconds=0)
                self._watch(worker)
            except OSError as error:  # it has ended, which reading from its own line reports
                _logger.debug("a message could not be passed on: %r", error)
            if line.unsent_bytes > _MOST_WAITING:
                self._lose(worker, f"it takes no messages, and {line.unsent_bytes:,} bytes wait for it")

    def _watch(self, worker: int) -> None:
        line = self._lines.get(worker)
        if line is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
            if self._selector.get_key(line).events != events:
                self._selector.modify(line, events, worker)

    def _look_for_silence(self, worker: int, line: ControlLine, seconds: float) -> None:
        try:
            if line.is_silent(seconds):
                self._lose(worker, f"nothing was heard of it for {line.quiet:.0f} seconds")
        except OSError as error:  # which reading reports
            _logger.debug("a worker could not be asked for a sign of life: %r", error)

    def _lose(self, worker: int, why: str) -> None:
        line = self._lines.pop(worker, None)
        if line is None:
            return
        self._selector.unregister(line)
        line.close()
        if worker == 0:
            self._first_ended.set()
        if worker not in self._left:
            self._forward(worker, WorkerFailed(worker, f"was lost: {why}"))

    def finish(self) -> None:
        """At the end of this process, after worker 0 has left: wait until the other workers have been told."""
        self._first_ended.wait(EXIT_SECONDS)
