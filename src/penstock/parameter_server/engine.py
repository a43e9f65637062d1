"""Interface of an engine, which starts servers and workers, possibly on other machines."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidArgumentError, PenstockError
from penstock.extras import load
from penstock.parameter_server.messages import ProcessLine
from penstock.runtime.shared_memory import Arena

_ENGINES: Final = {"local": "penstock.parameter_server.local_engine", "ray": "penstock.ray.parameter_servers"}
"""Modules of the named engines; their `engine` makes one."""


class Process(ABC):
    """A process of an engine's: a server or a worker."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its number on its machine."""

    @abstractmethod
    def status(self) -> str:
        """Return how it has ended, for a message."""

    @abstractmethod
    def write_stacks(self) -> None:
        """Have it write the stacks of its threads to standard error."""

    @abstractmethod
    def end(self) -> None:
        """Kill it."""


@dataclass(frozen=True)
class StartedServer:
    """A server, the line on which closures are committed, and the one for reading."""

    process: Process
    control: ProcessLine
    reader: ProcessLine


TakeLine = Callable[[ProcessLine | PenstockError], None]
"""Gets the line to a worker, in any thread, or says why there is none."""


class StartedProcesses(ABC):
    """The processes that an engine starts for one strategy."""

    @abstractmethod
    def start_servers(self, count: int, arena: Arena) -> list[StartedServer]:
        """Start all servers.

        Raises:
            UnavailableError: one of them could not be started.
        """

    @abstractmethod
    def start_worker(
        self, number: int, index: int, workers: int, arena: Arena, take_line: TakeLine
    ) -> tuple[Process, list[socket.socket]]:
        """Start a worker's process without waiting for it.

        Args:
            number: of the process, by which it is known to servers.
            index: the worker's own.
            take_line: is called once, with the line to it.

        Returns:
            The process, and the end of its line to each server that is that server's; none if it opens these itself.
        """


class Engine(ABC):
    """Engines that run the processes of a `ps.ParameterServerStrategy`."""

    @abstractmethod
    def start(self) -> StartedProcesses:
        """Begin to start processes for a strategy.

        Raises:
            UnavailableError: the engine is not there.
        """


def engine_of(given: object) -> Engine:
    """An engine by its name, or as it was given.

    Raises:
        InvalidArgumentError: neither.
        MissingExtraError: a package is missing that it needs.
    """
    if isinstance(given, Engine):
        return given
    if not isinstance(given, str) or given not in _ENGINES:
        raise InvalidArgumentError(
            f'ps.ParameterServerStrategy: engine is "local", "ray" or a ps.ray.ParameterServers(...), got {given!r}'
        )
    found = load(_ENGINES[given], given, f'engine="{given}"', "engine")()
    assert isinstance(found, Engine)
    return found
