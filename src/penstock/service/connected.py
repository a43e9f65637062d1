"""`ps.service.status` and `ps.service.connect`: for a service that was started elsewhere."""

from contextlib import closing
from typing import Final, Self

from penstock.errors import InvalidArgumentError
from penstock.service.security.resolving import Service
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus, Status, Stop

_PATIENCE_SECONDS: Final = 5.0
SAY_SECONDS: Final = 5.0
"""The time between two lines of the log about the readers that the end of a service waits for."""


def status(service: Service, *, patience_seconds: float = _PATIENCE_SECONDS) -> Status:
    """Return what a service does: its data workers, jobs and readers, as `penstock status` shows it.

    Args:
        service: as `distribute` takes it.
        patience_seconds: how long to try a dispatcher that cannot be reached.

    Raises:
        ServiceError: it cannot be reached, or does not accept this process's token.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     found = ps.service.status(dispatcher.target)
        >>> found.workers, found.epochs, found.datasets
        ([], [], 0)
    """
    with closing(DispatcherClient(service, patience_seconds=patience_seconds)) as client:
        found: Status = client.ask(GetStatus())
        return found


def readers_of(found: Status) -> str:
    """The readers of a service, as text, with their epochs and jobs."""
    return ", ".join(
        f"{reader.consumer} of epoch {epoch.epoch} of {f'the job {epoch.job!r}' if epoch.job else 'an unnamed job'}"
        for epoch in found.epochs
        for reader in epoch.consumers
    )


class ConnectedService:
    """A service that runs elsewhere, with the methods of one that this process has started; `connect` makes it.

    Attributes:
        target: the `service` for `distribute`.
    """

    def __init__(self, service: Service) -> None:
        self.target = service

    def status(self) -> Status:
        """Return the state of the service, as `ps.service.status` does."""
        return status(self.target)

    def scale(self, num_workers: int) -> None:
        """Refuse: only the process that started the workers can start others.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"the service at {self.target} was started elsewhere, and so are its data workers: "
            f"start or end them there to have {num_workers}"
        )

    def stop(self, *, drain: bool = False) -> None:
        """End the service: its workers, and then its dispatcher. Returns without waiting for that.

        Args:
            drain: let readers read to the end first. Otherwise they wait for a dispatcher, as long as their
                `dispatcher_timeout_seconds` say, and then raise.
        """
        with closing(DispatcherClient(self.target, patience_seconds=_PATIENCE_SECONDS)) as client:
            client.ask(Stop(drain=drain))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it running: it is not this process's."""


def connect(service: Service) -> ConnectedService:
    """A service that was started elsewhere, as an object with `target`, `status()` and `stop()`.

    Nothing is sent yet. Leaving a `with` block leaves it running.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher, ps.service.connect(dispatcher.target) as service:
        ...     len(service.status().workers)
        0
    """
    return ConnectedService(service)
