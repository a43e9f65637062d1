"""`Cluster`: the processes of a training job; and helpers to read one from environment variables."""

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.addresses import is_loopback
from penstock.errors import InvalidArgumentError

Environment = Mapping[str, str]

COORDINATOR_PORT: Final = 62_182
"""Where process 0 listens under launchers that name its host but no port."""

_ELSEWHERE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses that are reserved for documentation: connecting a datagram socket to one sends nothing."""
_ANY_PORT: Final = 9

_ADDRESS: Final = re.compile(r"(\[[^\[\]\s]+\]|[^:\[\]\s]+):(\d{1,5})")


@dataclass(frozen=True)
class Cluster:
    """The processes of one training job, and which of them this one is.

    Args:
        coordinator_address: HOST:PORT at which process 0 listens; None if the launcher does not say that.
        num_workers: how many processes take part.
        worker_index: which of them this one is, from 0.
        source: where this comes from, for messages. If the three others are None, `jax.distributed.initialize()`
            finds them by itself.
        local_index: this process's number among those of its machine, under launchers that start one process for
            each device.
    """

    coordinator_address: str | None
    num_workers: int | None
    worker_index: int | None
    source: str
    local_index: int | None = None


class IncompleteError(InvalidArgumentError):
    """Some of a launcher's variables are set, and others are missing. Another launcher's may be complete."""


def is_address(address: str) -> bool:
    """Return whether this is HOST:PORT."""
    return _ADDRESS.fullmatch(address) is not None


def coordinator_port(environment: Environment, default: int = COORDINATOR_PORT) -> int:
    """The port of process 0 where the launcher names none; JAX_COORDINATOR_PORT chooses it, as in JAX."""
    return whole_number(environment, "JAX_COORDINATOR_PORT") if environment.get("JAX_COORDINATOR_PORT") else default


def whole_number(environment: Environment, name: str) -> int:
    """The value of a variable that is set.

    Raises:
        InvalidArgumentError: it is no whole number.
    """
    try:
        return int(environment[name])
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be a whole number, got {environment[name]!r}") from error


def several(environment: Environment, name: str) -> bool:
    """Return whether a variable says that there are several processes."""
    return bool(environment.get(name)) and whole_number(environment, name) > 1


def checked(cluster: Cluster, names: tuple[str, str, str]) -> Cluster:
    """The cluster itself if it can be; `names` are those under which its three values were given.

    Raises:
        InvalidArgumentError: a value that cannot be.
    """
    address, count, number = cluster.coordinator_address, cluster.num_workers or 0, cluster.worker_index or 0
    if address is not None:
        found = _ADDRESS.fullmatch(address)
        if not found or not 0 < int(found[2]) < 2**16:
            raise InvalidArgumentError(f"{names[0]} must be HOST:PORT, with a port from 1 to 65535, got {address!r}")
    if count < 1:
        raise InvalidArgumentError(f"{names[1]} must be at least 1, got {count}")
    if not 0 <= number < count:
        raise InvalidArgumentError(
            f"{names[2]} must be at least 0 and less than {names[1]}, which is {count}, got {number}"
        )
    return cluster


def own_address(others: str = "") -> str:
    """The IP address from which this machine sends packets: other machines may not be able to resolve its name.

    Args:
        others: the name or address of one of the machines that want to reach this one, which may be this one itself.
            Without it, a machine needs a way to the internet, or it is taken to be alone.
    """
    towards = _address_towards(others) if others else None
    # Where a machine's own name stands for 127.0.1.1, as on Debian, that is not where others find it.
    if towards is not None and (is_loopback(others) or not is_loopback(towards)):
        return towards
    return next(filter(None, map(_address_towards, _ELSEWHERE)), "127.0.0.1")


def _address_towards(host: str) -> str | None:
    """From which address this machine would send packets to that host; None if there is no way."""
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        with suppress(OSError), socket.socket(family, kind) as line:
            line.connect(address)
            return str(line.getsockname()[0])
    return None
