"""Connects to a worker by the best protocol, or by a given one."""

import logging
from typing import Final

from penstock.errors import InvalidArgumentError, LostDataWorkerError, ServiceError
from penstock.service.security.credentials import ClientCredentials
from penstock.service.transport import in_process
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.transport.worker_connection import WorkerConnection
from penstock.service.wire.address import is_address
from penstock.service.wire.interfaces import Connection
from penstock.service.wire.subjects import Endpoint

_logger = logging.getLogger(__name__)

PROTOCOLS: Final = ("in_process", "shared_memory", "network")
"""The protocols, the best first."""

_OTHER_NAMES = {"grpc": "network", "flight": "network"}


def as_protocol(data_transfer_protocol: object) -> str | None:
    """One of `PROTOCOLS`, or None for the best that there is.

    Raises:
        InvalidArgumentError: anything else.
    """
    if data_transfer_protocol is None:
        return None
    if isinstance(data_transfer_protocol, str):
        name = data_transfer_protocol.lower()
        name = _OTHER_NAMES.get(name, name)
        if name in PROTOCOLS:
            return name
    names = ", ".join(f'"{name}"' for name in (*PROTOCOLS, *_OTHER_NAMES))
    raise InvalidArgumentError(f"data_transfer_protocol must be None or one of {names}, got {data_transfer_protocol!r}")


def connect(
    endpoint: Endpoint, protocol: str | None = None, credentials: ClientCredentials | None = None
) -> Connection:
    """Connect to a worker. Over the network nothing is sent yet: whether it can be reached shows at the first fetch.

    Args:
        protocol: as `as_protocol` gives it.
        credentials: the credentials for the network; None takes those of this process.

    Raises:
        ServiceError: the worker does not offer that protocol here, has no address, or must not get the token.
        LostDataWorkerError: it does, and is gone.
    """
    offered = offered_protocols(endpoint)
    if protocol is None:
        protocol, better = offered[-1], offered[:-1]
        for name in better:
            try:
                return _open(name, endpoint, credentials)
            except LostDataWorkerError as error:  # containers of one machine do not see each other's sockets
                _logger.info('data_transfer_protocol="%s" is not possible: %s', name, error)
    if protocol not in offered:
        names = ", ".join(f'"{name}"' for name in offered)
        raise ServiceError(
            f'the worker at {endpoint.address} cannot be reached by data_transfer_protocol="{protocol}" from this '
            f"process: it offers {names}"
        )
    return _open(protocol, endpoint, credentials)


def offered_protocols(endpoint: Endpoint) -> list[str]:
    """The protocols by which this process can reach a worker, the best first."""
    offered = ["network"]
    if endpoint.machine == this_machine() and endpoint.socket:
        offered.insert(0, "shared_memory")
    if endpoint.process == this_process() and in_process.find(endpoint.address) is not None:
        offered.insert(0, "in_process")
    return offered


def _open(protocol: str, endpoint: Endpoint, credentials: ClientCredentials | None) -> Connection:
    if protocol == "in_process":
        return in_process.InProcessConnection(endpoint)
    if protocol == "network" and not is_address(endpoint.address):
        raise ServiceError(f'the address {endpoint.address!r:.300} of a data worker is no "host:port"')
    return WorkerConnection(endpoint, shared_memory=protocol == "shared_memory", credentials=credentials)
