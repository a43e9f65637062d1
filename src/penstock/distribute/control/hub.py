"""The hub of the control channel, in worker 0: forwards every message to all other workers."""

import logging
import secrets
import socket
import struct
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait

import msgspec

from penstock.addresses import is_loopback, listening_at
from penstock.distribute.control.messages import (
    EXIT_SECONDS,
    MAXIMUM_BYTES,
    Message,
    WorkerFailed,
    WorkerLeft,
    decoded,
    send_at_once,
    set_option,
)

_logger = logging.getLogger(__name__)

_GREETING_SECONDS = 10.0
"""While workers connect, how long a silent connection may keep the next ones waiting."""


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
        self._listener = listening_at(host if is_loopback(host) else "", backlog=workers)
        self._workers = workers
        self._first_ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="penstock-control-hub", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        connections: dict[Connection, int] = {}
        while len(connections) < self._workers:
            try:
                connection = Connection(self._listener.accept()[0].detach())
                connections[connection] = self._authenticate(connection)
            except (AuthenticationError, EOFError, OSError, ValueError) as error:  # not one of the workers
                _logger.warning("the control channel turned a connection away: %r", error)
        self._listener.close()
        left: set[int] = set()
        while connections:
            for ready in wait(list(connections)):
                assert isinstance(ready, Connection)
                worker = connections[ready]
                message, data = _receive_from(ready, worker)
                if ready.closed:
                    del connections[ready]
                if isinstance(message, WorkerLeft):
                    left.add(worker)
                if not (ready.closed and worker in left):
                    _pass_on(data, [other for other in connections if other is not ready])
                if ready.closed and worker == 0:
                    self._first_ended.set()

    def finish(self) -> None:
        """At the end of this process, after worker 0 has left: wait until the other workers have been told."""
        self._first_ended.wait(EXIT_SECONDS)

    def _authenticate(self, connection: Connection) -> int:
        """Authenticate a connection, within a time limit; the number of its worker."""
        send_at_once(connection)
        _limit_silence(connection, _GREETING_SECONDS)
        deliver_challenge(connection, self.key)
        answer_challenge(connection, self.key)
        worker = int(connection.recv_bytes(maxlength=32))
        _limit_silence(connection, 0)
        return worker


def _limit_silence(connection: Connection, seconds: float) -> None:
    """Let reads fail after `seconds` without data; 0 for no limit."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    set_option(connection, socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _receive_from(connection: Connection, worker: int) -> tuple[Message, bytes]:
    """A worker's next message; if its connection has ended, close it and report that the worker was lost."""
    try:
        data = connection.recv_bytes(MAXIMUM_BYTES)
        return decoded(data), data
    except (EOFError, OSError):
        reason = "was lost: its process has ended"
    except msgspec.DecodeError as error:
        reason = f"was lost: it sent what is no message ({error})"
    connection.close()
    lost = WorkerFailed(worker, reason)
    return lost, msgspec.msgpack.encode(lost)


def _pass_on(data: bytes, connections: list[Connection]) -> None:
    for connection in connections:
        try:
            connection.send_bytes(data)
        except OSError as error:  # it has ended, which reading from its own connection reports
            _logger.debug("a message could not be passed on: %r", error)
