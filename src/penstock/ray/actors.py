"""The processes of a data service as Ray's actors, which Ray starts again where they are lost."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
import ray.util

from penstock.addresses import joined_address
from penstock.service import DispatcherConfig, DispatchServer, ServiceAddress, WorkerConfig, WorkerServer, connect

NAMESPACE: Final = "penstock"
"""That of Ray, in which the dispatchers' names are, whatever namespace a program is in."""


@dataclass(frozen=True)
class Settings:
    """Base of all actors of a service.

    Args:
        name: of the service.
        life: of this service, which distinguishes it from an earlier one of the same name.
        alone: whether all of it is on one machine, and listens at its loopback address.
    """

    name: str
    life: str
    alone: bool
    token: str = field(repr=False)
    tls_cert: bytes | None = field(default=None, repr=False)
    tls_key: bytes | None = field(default=None, repr=False)
    tls_root: bytes | None = field(default=None, repr=False)
    tls_name: str | None = None
    insecure: bool = False

    def listening(self) -> dict[str, Any]:
        """The arguments of a server's configuration."""
        return {
            "host": "127.0.0.1" if self.alone else "0.0.0.0",
            "token": self.token,
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "insecure": self.insecure,
        }

    def own_host(self) -> str:
        """By what others reach this actor's machine."""
        if self.alone:
            return "localhost"
        found: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return found

    @property
    def dispatcher(self) -> str:
        """The name of the dispatcher's actor."""
        return f"dispatcher of {self.name}"


class Dispatcher:
    """The dispatcher, with a journal on the disk of its machine, from which it resumes when it is started again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._work_dir = Path(tempfile.gettempdir()) / f"penstock-ray-{os.getuid()}-{settings.name}-{settings.life}"
        self._server = DispatchServer(DispatcherConfig(work_dir=self._work_dir, **settings.listening()))

    def address(self) -> ServiceAddress:
        """Return where it is, and what to show to it."""
        settings = self._settings
        protocol = self._server.target.partition("://")[0]
        target = f"{protocol}://{joined_address(settings.own_host(), self._server.port)}"
        return ServiceAddress(
            target, settings.token, settings.tls_root, insecure=settings.insecure, tls_name=settings.tls_name
        )

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    def drain(self) -> None:
        """Refuse new epochs, and wait until all readers have read to the end, and the data workers have ended."""
        connect(self.address()).stop(drain=True)
        self._server.join()

    def end(self) -> None:
        """End for good: nothing is left of the journal."""
        self._server.stop()
        shutil.rmtree(self._work_dir, ignore_errors=True)


class DataWorker:
    """A data worker."""

    def __init__(self, settings: Settings) -> None:
        config = WorkerConfig(
            dispatcher_address=f"ray://{settings.name}",
            worker_address=joined_address(settings.own_host(), "%port%"),
            tls_root=settings.tls_root,
            tls_name=settings.tls_name,
            **settings.listening(),
        )
        self._server = WorkerServer(config)

    def process(self) -> int:
        """The id of its process."""
        return os.getpid()

    def leave(self) -> None:
        """Finish the present requests, and end."""
        self._server.stop(drain=True)
