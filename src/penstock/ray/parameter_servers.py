"""The engine "ray" of `ps.ParameterServerStrategy`: servers and workers are Ray's actors."""

import faulthandler
import secrets
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.util
from ray.exceptions import GetTimeoutError, RayError

from penstock.errors import InvalidArgumentError, PenstockError, UnavailableError
from penstock.parameter_server.engine import Engine, Process, StartedProcesses, StartedServer, TakeLine
from penstock.parameter_server.line import ProcessLine
from penstock.parameter_server.listening import CONTROL, READER, Address, LineListener, dial
from penstock.parameter_server.messages import Ready
from penstock.parameter_server.process import IDLE_BYTES, stay_on_processor
from penstock.parameter_server.server import Server
from penstock.parameter_server.worker import WorkerProgram
from penstock.runtime.shared_memory import Arena


@dataclass(frozen=True)
class _Settings:
    """What all actors of a strategy have in common.

    Attributes:
        alone: whether all of the cluster is one machine, where they listen at its loopback address.
    """

    secret: bytes = field(repr=False)
    alone: bool
    shared_memory: bool

    def listener(self) -> LineListener:
        found = "127.0.0.1" if self.alone else ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        host = "127.0.0.1" if self.alone else "0.0.0.0"
        return LineListener(_machine(), host, found, self.secret, shared_memory=self.shared_memory)


class _Actor:
    def __init__(self, settings: _Settings) -> None:
        self._listener = settings.listener()
        self._arena = Arena(IDLE_BYTES)

    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def write_stacks(self) -> None:
        """Write the stacks of its threads to standard error."""
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)


class ServerActor(_Actor):
    """A server of variables."""

    def run(self) -> None:
        """Answer until the coordinator's line ends."""
        stay_on_processor()
        lines = dict(self._listener.take(self._arena) for _ in range(2))
        Server(lines[CONTROL], lines[READER], self._arena, self._listener).run()


class WorkerActor(_Actor):
    """A worker."""

    def run(self, number: int, index: int, workers: int, servers: list[Address]) -> None:
        """Run functions until the coordinator's line ends."""
        lines = [dial(address, _machine(), number, self._arena) for address in servers]
        if not all(isinstance(line.receive(), Ready) for line in lines):
            return  # the coordinator hears of the lost server too
        _, coordinator = self._listener.take(self._arena)
        self._listener.close()
        WorkerProgram(index, workers, coordinator, lines, self._arena).run()


class _ActorProcess(Process):
    """An actor.

    Attributes:
        address: where it listens, once it runs.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.address: Future[Address] = Future()

    @property
    def pid(self) -> int:
        return self.address.result().process

    def status(self) -> str:
        return "its actor, of which Ray's logs say more"

    def write_stacks(self) -> None:
        self._actor.write_stacks.remote()

    def end(self) -> None:
        if ray.is_initialized():
            ray.kill(self._actor)


class _Actors(StartedProcesses):
    def __init__(self, engine: "ParameterServers", settings: _Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._servers: list[Address] = []

    def start_servers(self, count: int, arena: Arena) -> list[StartedServer]:
        options = {"num_cpus": 1, **self._engine.server_options}
        actors = [_made(ServerActor, options, self._settings) for _ in range(count)]
        try:
            self._servers = self._addresses(actors, "parameter servers", options)
            for actor in actors:
                actor.run.remote()
            return [_server(actor, address, arena) for actor, address in zip(actors, self._servers, strict=True)]
        except BaseException:
            for actor in actors:
                ray.kill(actor)
            raise

    def start_worker(
        self, number: int, index: int, workers: int, arena: Arena, take_line: TakeLine
    ) -> tuple[Process, list[socket.socket]]:
        if not ray.is_initialized():
            raise UnavailableError("ray.shutdown() was called, which has ended the parameter servers: stop them first")
        options = {"num_cpus": 1, **self._engine.worker_options}
        actor = _made(WorkerActor, options, self._settings)
        actor.run.remote(number, index, workers, self._servers)
        process = _ActorProcess(actor)

        def reach() -> None:
            try:
                (address,) = self._addresses([actor], f"worker {index}", options)
                line = _dialled(address, CONTROL, arena)
                process.address.set_result(address)
                take_line(line)
            except PenstockError as error:
                process.address.set_exception(error)
                take_line(error)

        threading.Thread(target=reach, name="penstock-ray-worker", daemon=True).start()
        return process, []

    def _addresses(self, actors: list[Any], what: str, options: Mapping[str, Any]) -> list[Address]:
        seconds = self._engine.start_timeout_seconds
        try:
            found: list[Address] = ray.get([actor.address.remote() for actor in actors], timeout=seconds)
        except GetTimeoutError as error:
            left: Any = {}
            with suppress(RayError):
                left = ray.available_resources()  # type: ignore[no-untyped-call]
            raise UnavailableError(
                f"Ray has not started {what} within {seconds:.0f} s: an actor needs {options}, and the cluster has "
                f"{left} left"
            ) from error
        except RayError as error:
            raise UnavailableError(f"{what} could not start: {error}") from error
        return found


@dataclass(frozen=True)
class ParameterServers(Engine):
    """The engine of a `ps.ParameterServerStrategy` whose processes are Ray's actors; "ray" is short for the defaults.

    Processes on one machine exchange arrays through shared memory, and those on different ones through TCP. Both prove
    to each other that they belong to the same strategy. What travels is not encrypted.

    Args:
        worker_options: options of the workers' actors, such as `{"num_gpus": 1}` or a `scheduling_strategy`; one CPU
            each otherwise.
        server_options: the same of the servers' actors.
        insecure: let lines pass between several machines, whose network nobody else can reach.
        shared_memory: whether processes on one machine share memory; containers may not.
        start_timeout_seconds: how long to wait until Ray has placed an actor.

    Example:
        >>> import penstock as ps
        >>> engine = ps.ray.ParameterServers(worker_options={"num_cpus": 4}, server_options={"num_cpus": 2})
    """

    worker_options: Mapping[str, Any] = field(default_factory=dict)
    server_options: Mapping[str, Any] = field(default_factory=dict)
    insecure: bool = False
    shared_memory: bool = sys.platform == "linux"
    start_timeout_seconds: float = 60.0

    def start(self) -> StartedProcesses:
        """Begin to start actors for a strategy.

        Raises:
            UnavailableError: this process is not connected to Ray.
            InvalidArgumentError: the cluster has several machines, and `insecure` is not given.
        """
        if not ray.is_initialized():
            raise UnavailableError('engine="ray" needs a Ray cluster, and this process is in none: call ray.init()')
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        machines = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
        if len(machines) > 1 and not self.insecure:
            raise InvalidArgumentError(
                f"the Ray cluster has {len(machines)} machines, between which variables and functions travel without "
                "encryption: give engine=ps.ray.ParameterServers(insecure=True) where nobody else can reach their "
                "network"
            )
        return _Actors(self, _Settings(secrets.token_bytes(32), len(machines) == 1, self.shared_memory))


def engine() -> Engine:
    """Ray's actors with one CPU each."""
    return ParameterServers()


def _machine() -> str:
    found: str = ray.get_runtime_context().get_node_id()
    return found


def _made(kind: type, options: Mapping[str, Any], settings: _Settings) -> Any:
    # One thread runs its program, and the other one says what becomes of it.
    return ray.remote(kind).options(max_concurrency=2, **options).remote(settings)


def _server(actor: Any, address: Address, arena: Arena) -> StartedServer:
    process = _ActorProcess(actor)
    process.address.set_result(address)
    control, reader = (_dialled(address, who, arena) for who in (CONTROL, READER))
    return StartedServer(process, control, reader)


def _dialled(address: Address, who: int, arena: Arena) -> ProcessLine:
    try:
        return dial(address, _machine(), who, arena)
    except OSError as error:
        raise UnavailableError(
            f"an actor at {address.host}, port {address.port}, cannot be reached: {error}"
        ) from error
