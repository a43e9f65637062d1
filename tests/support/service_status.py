"""The status of a data service, as tests ask for it."""

from penstock.service.security.credentials import ClientCredentials
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus, Status


def status(service: str, credentials: ClientCredentials | None = None, patience: float = 0) -> Status:
    """The status of the service at an address, which is waited for so many seconds."""
    client = DispatcherClient(service, patience_seconds=patience, credentials=credentials)
    try:
        found = client.ask(GetStatus())
        assert isinstance(found, Status)
        return found
    finally:
        client.close()
