"""The configurations of dispatchers and workers, checked when they are made."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.errors import InvalidArgumentError, InvalidTypeError, ServiceError
from penstock.options import check_integer, check_number, check_seconds
from penstock.other_names import NotHere, OtherNames
from penstock.service.security.credentials import (
    ClientCredentials,
    Pem,
    ServerCredentials,
    ServerSettings,
    client_credentials,
    worker_token,
)
from penstock.service.security.resolving import Service, checked_service
from penstock.service.wire.address import is_address, is_host

PORT_WILDCARD: Final = "%port%"
LOCAL_ADDRESS: Final = f"localhost:{PORT_WILDCARD}"
"""For readers on the worker's own machine."""
_PROTOCOL = NotHere("it is always TCP, by TLS with tls_cert and tls_key")
_NO_SNAPSHOTS = NotHere("a data worker writes one shard for each span that it makes at a time")
_DISPATCHER = OtherNames(
    keywords={
        "__init__": {
            "fault_tolerant_mode": NotHere("work_dir alone asks for it"),
            "job_gc_check_interval_ms": NotHere("a job's time is looked at whenever something happens"),
            "job_gc_timeout_ms": NotHere("say job_gc_seconds=..., in seconds"),
            "client_timeout_ms": NotHere("say lease_seconds=..., in seconds"),
            "protocol": _PROTOCOL,
            "worker_max_concurrent_snapshots": _NO_SNAPSHOTS,
            "worker_timeout_ms": NotHere("say heartbeat_seconds=..., and missed_heartbeats=..."),
        }
    }
)
_WORKER = OtherNames(
    keywords={
        "__init__": {
            "data_transfer_address": NotHere("worker_address is where consumers reach it"),
            "data_transfer_protocol": NotHere(
                "each consumer uses the fastest available transport, or the one it names"
            ),
            "dispatcher_timeout_ms": NotHere("say dispatcher_timeout_seconds=..."),
            "heartbeat_interval_ms": NotHere("say heartbeat_seconds=..."),
            "protocol": _PROTOCOL,
        }
    }
)


@_DISPATCHER
@dataclass(frozen=True, kw_only=True)
class DispatcherConfig(ServerSettings):
    """Settings of a dispatcher. All times are seconds.

    Args:
        port: where it listens; 0 lets the system choose one.
        host: the address it listens at: "0.0.0.0" lets other machines reach it, by TLS and with a token.
        worker_addresses: the workers of static sharding policies, in the order of their shards: "host", "host:port" or
            "host:%port%", where any port will do. If empty, any worker may join, and static policies are refused.
        heartbeat_seconds: how often workers report.
        missed_heartbeats: how many reports in a row a worker may miss before it counts as lost.
        lease_seconds: how long a reader may be silent before its unconsumed elements go to others.
        finished_job_seconds: how long a finished job without readers is kept for late readers; after that its name is
            free.
        job_gc_seconds: the same for a job that is not finished.
        dataset_gc_seconds: how long an unused dataset is kept. A dataset that was registered with a `dataset_id` is
            kept for ever.
        worker_gc_seconds: how long a lost worker is shown in `penstock status`.
        max_message_bytes: larger messages are refused, such as a dataset that holds its data itself.
        max_definition_bytes: how much memory all registered datasets may take; beyond it, new ones are refused.
        work_dir: where it keeps a journal, from which a restarted dispatcher resumes: a directory on a local disk, used
            by one dispatcher at a time. None keeps everything in memory.
        token: the token that clients must know.
        token_file: a file with it; without either, the file named in PENSTOCK_TOKEN_FILE, or else a file of this user
            that no other user can read.
        tls_cert: this server's certificate, in PEM: the path of a file or the bytes themselves, as for the two others;
            clients then connect by TLS.
        tls_key: the certificate's private key.
        tls_client_ca: the authority that must have signed clients' certificates; None requires none.
        insecure: accept other machines without `token_file` and `tls_cert`, which is refused otherwise. Everybody who
            can reach the port can then run programs as this user.

    Raises:
        InvalidTypeError: `worker_addresses` that are not strings, a `work_dir` that is no path, a number that is none.
        InvalidArgumentError: a number out of range, an address that is empty or listed twice with its port, or a `host`
            that lets other machines come without a token and TLS.

    Example:
        >>> import penstock as ps
        >>> ps.service.DispatcherConfig(port=5050, worker_addresses=["host1", "host2:7000"]).worker_addresses
        ('host1', 'host2:7000')
    """

    worker_addresses: Iterable[str] = ()
    heartbeat_seconds: float = 2.0
    missed_heartbeats: int = 3
    lease_seconds: float = 10.0
    finished_job_seconds: float = 30.0
    job_gc_seconds: float = 300.0
    dataset_gc_seconds: float = 3600.0
    worker_gc_seconds: float = 600.0
    max_message_bytes: int = 1 << 28
    max_definition_bytes: int = 1 << 30
    work_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.work_dir is not None and not isinstance(self.work_dir, (str, os.PathLike)):
            raise InvalidTypeError(f"DispatcherConfig(work_dir=...) takes a path, got {self.work_dir!r}")
        if self.work_dir == "":
            raise InvalidArgumentError("DispatcherConfig(work_dir=...) must not be empty")
        if isinstance(self.worker_addresses, str):
            raise InvalidTypeError(
                f"DispatcherConfig(worker_addresses=...) takes a list of strings, got {self.worker_addresses!r}"
            )
        object.__setattr__(self, "worker_addresses", tuple(self.worker_addresses))
        for address in self.worker_addresses:
            _check_worker_address(address, self.addresses)
        for name in ("heartbeat_seconds", "lease_seconds"):
            check_seconds("DispatcherConfig", name, getattr(self, name))
        for name in ("missed_heartbeats", "max_message_bytes", "max_definition_bytes"):
            check_integer("DispatcherConfig", name, getattr(self, name), minimum=1)
        for name in ("finished_job_seconds", "job_gc_seconds", "dataset_gc_seconds", "worker_gc_seconds"):
            if not check_number("DispatcherConfig", name, getattr(self, name)) >= 0:
                raise InvalidArgumentError(
                    f"DispatcherConfig({name}=...) must be at least 0, got {getattr(self, name)!r}"
                )

    @property
    def addresses(self) -> tuple[str, ...]:
        """`worker_addresses` as a tuple."""
        return tuple(self.worker_addresses)

    @property
    def worker_timeout_seconds(self) -> float:
        """Return how long a worker may be silent before it counts as lost."""
        return self.heartbeat_seconds * self.missed_heartbeats

    def credentials(self) -> ServerCredentials:
        """Read the files of its credentials.

        Raises:
            ServiceError: a file cannot be used, or it has the token of data workers.
        """
        found = super().credentials()
        if found.token and found.token == worker_token(found.token):
            raise ServiceError(
                "a dispatcher needs the token of the service's trainers, and this is that of its data workers, which "
                "begins with worker-: name the file that data workers' tokens were made from"
            )
        return found


@_WORKER
@dataclass(frozen=True, kw_only=True)
class WorkerConfig(ServerSettings):
    """Settings of a data worker.

    Args:
        dispatcher_address: "host:port" of its dispatcher, with or without a protocol in front, or what says where it
            is now, as the `service` of `distribute`.
        port: where it listens; 0 lets the system choose one.
        host: the address it listens at: "0.0.0.0" lets other machines reach it, by TLS and with a token.
        worker_address: where consumers reach it; "%port%" is replaced by its port. By default "localhost", or where it
            listens; with a `host` of "0.0.0.0" the address from which it reaches its dispatcher.
        tags: "COLOCATED" leaves it to readers on its own machine, under target_workers="AUTO".
        heartbeat_seconds: the time between its reports; None uses the dispatcher's.
        dispatcher_timeout_seconds: how long it tries to reach the dispatcher.
        token: as in `DispatcherConfig`; the worker shows the same token to its dispatcher.
        token_file: as in `DispatcherConfig`.
        tls_cert: as in `DispatcherConfig`; also shown to a dispatcher that requires one.
        tls_key: as in `DispatcherConfig`.
        tls_client_ca: as in `DispatcherConfig`.
        tls_root: the authority that must have signed the dispatcher's certificate, in PEM; None uses PENSTOCK_TLS_ROOT,
            or else those that the system trusts.
        tls_name: the name that the dispatcher's certificate has; None expects the host of its address.
        insecure: as in `DispatcherConfig`.

    Raises:
        InvalidTypeError: an address that is no string, a number that is none.
        InvalidArgumentError: an address that is empty, a number out of range, or a `host` that lets other machines come
            without a token and TLS.

    Example:
        >>> import penstock as ps
        >>> ps.service.WorkerConfig(dispatcher_address="head:5050", worker_address="node7:%port%").worker_address
        'node7:%port%'
    """

    dispatcher_address: Service
    worker_address: str = LOCAL_ADDRESS
    tags: tuple[str, ...] = ()
    heartbeat_seconds: float | None = None
    dispatcher_timeout_seconds: float = 3600.0
    tls_root: Pem = field(default=None, repr=False)
    tls_name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.worker_address, str):
            raise InvalidTypeError(f"WorkerConfig(worker_address=...) takes a string, got {self.worker_address!r}")
        for name in ("dispatcher_address", "worker_address"):
            if getattr(self, name) == "":
                raise InvalidArgumentError(f"WorkerConfig({name}=...) must not be empty")
        checked_service("WorkerConfig", self.dispatcher_address, "dispatcher_address")
        host, _, port = self.worker_address.rpartition(":")
        if not (is_host(host) if port == PORT_WILDCARD else is_address(self.worker_address)):
            raise InvalidArgumentError(
                f'WorkerConfig(worker_address=...) must be "host:port" or "host:{PORT_WILDCARD}", with a port from 1 '
                f"to 65535, got {self.worker_address!r}"
            )
        super().__post_init__()
        tags: object = self.tags
        if isinstance(tags, str):
            raise InvalidTypeError(f"WorkerConfig(tags=...) takes a list of strings, got {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))
        if "" in self.tags:
            raise InvalidArgumentError(f"WorkerConfig(tags=...) must not hold an empty tag, got {self.tags!r}")
        if self.heartbeat_seconds is not None:
            check_seconds("WorkerConfig", "heartbeat_seconds", self.heartbeat_seconds)
        check_seconds("WorkerConfig", "dispatcher_timeout_seconds", self.dispatcher_timeout_seconds)

    def credentials(self) -> ServerCredentials:
        """Read the files of its credentials for readers, with the token of data workers."""
        found = super().credentials()
        return replace(found, token=worker_token(found.token))

    def credentials_for_dispatcher(self) -> ClientCredentials:
        """Read the files of its credentials for the dispatcher."""
        return client_credentials(
            token=self.token,
            token_file=self.token_file,
            given=self.token is not None,
            roots=self.tls_root,
            certificate=self.tls_cert,
            key=self.tls_key,
            insecure=self.insecure,
            server_name=self.tls_name,
        )


def _check_worker_address(address: object, addresses: tuple[str, ...]) -> None:
    if not isinstance(address, str):
        raise InvalidTypeError(f"DispatcherConfig(worker_addresses=...) takes a list of strings, got {address!r}")
    if not address:
        raise InvalidArgumentError("DispatcherConfig(worker_addresses=...) must not hold an empty address")
    host, _, port = address.rpartition(":")
    any_port = is_host(address) or (is_host(host) and port == PORT_WILDCARD)
    if not any_port and not is_address(address):
        raise InvalidArgumentError(
            f'DispatcherConfig(worker_addresses=...) takes "host", "host:port" and "host:{PORT_WILDCARD}", with ports '
            f"from 1 to 65535, got {address!r}"
        )
    if not any_port and addresses.count(address) > 1:
        raise InvalidArgumentError(f"DispatcherConfig(worker_addresses=...) lists {address!r} twice")
