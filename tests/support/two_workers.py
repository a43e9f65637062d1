"""A data service of two workers in this process: it costs no processes, and elements travel as they do between them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import penstock as ps


@contextmanager
def two_workers() -> Iterator[str]:
    """The target of a service that runs."""
    with ExitStack() as servers:
        dispatcher = servers.enter_context(ps.service.DispatchServer())
        address = dispatcher.target.split("://")[1]
        for _ in range(2):
            servers.enter_context(ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)))
        yield dispatcher.target
