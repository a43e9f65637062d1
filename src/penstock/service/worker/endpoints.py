"""Servers of a data worker: over the network, through shared memory, and within its process."""

from collections.abc import Callable

from penstock.addresses import joined_address
from penstock.errors import ServiceError
from penstock.rpc.listener import Access
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.interfaces import Produce
from penstock.service.wire.subjects import Endpoint


class Endpoints:
    """Serves the blocks that a worker produces.

    Args:
        host: the address to listen at.
        port: 0 for one that the system chooses.
        advertised: returns the address to advertise, given the port.
        access: returns who may connect.

    Attributes:
        endpoint: the addresses by which readers reach the worker; the dispatcher passes them on.

    Raises:
        ServiceError: it cannot listen there.
    """

    def __init__(
        self, produce: Produce, host: str, port: int, advertised: Callable[[int], str], access: Callable[[], Access]
    ) -> None:
        try:
            self._server = BlockServer(produce, host, port, access)
        except OSError as error:
            raise ServiceError(
                f"the data worker cannot listen at {joined_address(host, port)}: {error}; port 0 takes one that is free"
            ) from error
        address = advertised(self._server.port)
        self.endpoint = Endpoint(
            address=address,
            machine=this_machine(),
            socket=self._server.socket,
            process=this_process(),
            tls=access().tls is not None,
        )
        try:
            self._local = InProcessServer(produce, address)
        except BaseException:
            self._server.stop()
            raise

    def stop(self) -> None:
        """Stop listening, and end requests under way."""
        self._local.stop()
        self._server.stop()
