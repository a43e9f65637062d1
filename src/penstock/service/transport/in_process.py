"""Connections within the worker's own process: blocks are passed by reference."""

import threading
from contextlib import closing

from penstock.errors import InvalidArgumentError, LostDataWorkerError
from penstock.service.wire.interfaces import Answers, Produce
from penstock.service.wire.subjects import Endpoint
from penstock.service.wire.worker_messages import Fetch

_servers: dict[str, "InProcessServer"] = {}
_lock = threading.Lock()


class InProcessServer:
    """Lets readers of this process reach a worker in it, under the address that it advertises.

    Raises:
        InvalidArgumentError: another worker of this process has that address.
    """

    def __init__(self, produce: Produce, address: str) -> None:
        self.address = address
        self.produce = produce
        self.stopped = False
        with _lock:
            if address in _servers:
                raise InvalidArgumentError(f"a worker of this process has the address {address} already")
            _servers[address] = self

    def stop(self) -> None:
        """Remove the worker; requests under way raise `LostDataWorkerError`."""
        self.stopped = True
        with _lock:
            if _servers.get(self.address) is self:
                del _servers[self.address]


def find(address: str) -> InProcessServer | None:
    """The worker of this process with that address; None if there is none."""
    return _servers.get(address)


class InProcessConnection:
    """A connection to a worker of this process: `fetch` computes in the calling thread.

    Raises:
        LostDataWorkerError: no worker of this process has that address.
    """

    protocol = "in_process"

    def __init__(self, endpoint: Endpoint) -> None:
        server = find(endpoint.address)
        if server is None:
            raise LostDataWorkerError(f"the worker at {endpoint.address} was stopped")
        self._server = server
        self._closed = False

    def fetch(self, request: Fetch) -> Answers:
        """Same as `Connection.fetch`."""
        self._check()
        with closing(self._server.produce(request)) as answers:
            for answer in answers:
                self._check()
                yield answer
                self._check()

    def _check(self) -> None:
        if self._closed:
            raise LostDataWorkerError(f"the connection to the worker at {self._server.address} was closed")
        if self._server.stopped:
            raise LostDataWorkerError(f"the worker at {self._server.address} was stopped")

    def close(self) -> None:
        """Same as `Connection.close`."""
        self._closed = True
