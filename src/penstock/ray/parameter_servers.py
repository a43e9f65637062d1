"""The engine "ray" of `ps.ParameterServerStrategy`: servers and workers are Ray's actors."""

import faulthandler
import os
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ray
import ray.util
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from penstock.errors import InvalidArgumentError, PenstockError, UnavailableError, WorkerError
from penstock.parameter_server.engine import Engine, Process, StartedProcesses, StartedServer, TakeLine
from penstock.parameter_server.messages import CONTROL, READER, ProcessLine, Ready, process_line
from penstock.parameter_server.process import IDLE_BYTES, stay_on_processor
from penstock.parameter_server.server import Server
from penstock.parameter_server.worker import WorkerProgram
from penstock.rpc.line import SECONDS
from penstock.rpc.listener import Access, Address, Listener, dial
from penstock.rpc.tls import TlsNames, server_context
from penstock.runtime.shared_memory import Arena
from penstock.service.security.credentials import read_pair, read_pem

_LOOPBACK: Final = "127.0.0.1"
_REASON_SECONDS: Final = 0.5
_LONGEST_REASON: Final = 300
_ENCRYPT: Final = (
    "give ps.ray.ParameterServers tls_cert, tls_key, tls_root and tls_name, or insecure=True where no one else can "
    "reach their network"
)


@dataclass(frozen=True)
class _Place:
    """Location of an actor: its machine, its process there, and its address."""

    machine: str
    process: int
    address: Address


@dataclass(frozen=True)
class _Settings:
    """Base of all actors of a strategy.

    Attributes:
        alone: whether all of them are on one machine, where they listen at its loopback address.
        tls: encrypts their messages between machines, if given.
    """

    secret: bytes = field(repr=False)
    alone: bool
    shared_memory: bool
    tls: TlsNames | None = field(repr=False)

    def listener(self) -> Listener:
        """One of an actor."""
        tls = None if self.tls is None else server_context(self.tls.certificate, self.tls.key)
        access = Access((self.secret,), tls)
        return Listener(lambda: access, _LOOPBACK if self.alone else "", local=self.shared_memory)

    def place(self, listener: Listener) -> "_Place":
        """Return where this actor listens, at the address by which Ray's machines know its own."""
        host = _LOOPBACK if self.alone else ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return _Place(_machine(), os.getpid(), Address(host, listener.port, listener.local))

    def dial(self, place: "_Place", caller: int, arena: Arena) -> ProcessLine:
        """The line to another actor.

        Raises:
            UnavailableError: it cannot be reached, or is another process.
        """
        here, address = place.machine == _machine(), place.address
        if self.alone and not here:
            raise UnavailableError(
                f"an actor runs on another machine than this process, which the cluster did not have before: {_ENCRYPT}"
            )
        try:
            reached = address if here else replace(address, local=b"")
            return process_line(dial(reached, self.secret, caller, self.tls), arena)
        except ssl.SSLCertVerificationError as error:
            raise UnavailableError(
                f"the certificate of an actor at {address.host} is not trusted, {error.verify_message}: tls_root is "
                "the authority that has signed tls_cert, and tls_name a name in it"
            ) from error
        except OSError as error:
            raise UnavailableError(
                f"an actor at {address.host}, port {address.port}, cannot be reached: {error}"
            ) from error


class _Actor:
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._listener = settings.listener()
        self._arena = Arena(IDLE_BYTES)

    def place(self) -> _Place:
        """Return where it listens."""
        return self._settings.place(self._listener)

    def _take(self) -> tuple[int, ProcessLine]:
        """The next line to this actor, by the number of who has dialled."""
        caller, connection = self._listener.take(SECONDS)
        return caller, process_line(connection, self._arena)

    def write_stacks(self) -> None:
        """Write the stacks of its threads to standard error."""
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)


class ServerActor(_Actor):
    """A server of variables."""

    def run(self) -> None:
        """Answer until the coordinator's line ends."""
        stay_on_processor()
        lines = dict(self._take() for _ in range(2))
        Server(lines[CONTROL], lines[READER], self._arena, self._listener).run()


class WorkerActor(_Actor):
    """A worker."""

    def run(self, number: int, index: int, workers: int, servers: list[_Place]) -> None:
        """Run functions until the coordinator's line ends."""
        try:
            lines = [self._settings.dial(place, number, self._arena) for place in servers]
            if not all(isinstance(line.receive(), Ready) for line in lines):
                return  # the coordinator hears of the lost server too
            _, coordinator = self._take()
        finally:
            self._listener.close()  # and the coordinator hears that this actor is of no use
        WorkerProgram(index, workers, coordinator, lines, self._arena).run()


class _ActorProcess(Process):
    """An actor.

    Attributes:
        place: where it is, once it runs.
    """

    def __init__(self, actor: Any, run: Any) -> None:
        self._actor = actor
        self._run = run
        self.place: Future[_Place] = Future()

    @property
    def pid(self) -> int:
        return self.place.result().process

    def status(self) -> str:
        return self.reason() or "the line to its actor: Ray's logs say more, or its machine cannot be reached"

    def reason(self) -> str:
        """Why its program has ended, as Ray says it; "" as long as Ray does not know."""
        try:
            ray.get(self._run, timeout=_REASON_SECONDS)
        except GetTimeoutError:
            return ""
        except RayTaskError as error:
            return f"{type(error.cause).__name__}: {error.cause}"
        except RayError as error:
            return _shortened(error)
        return ""

    def write_stacks(self) -> None:
        self._actor.write_stacks.remote()

    def end(self) -> None:
        if ray.is_initialized():
            ray.kill(self._actor)


class _Actors(StartedProcesses):
    def __init__(self, engine: "ParameterServers", settings: _Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._servers: list[_Place] = []

    def start_servers(self, count: int, arena: Arena) -> list[StartedServer]:
        options = {"num_cpus": 1, **self._engine.server_options}
        actors = [_made(ServerActor, options, self._settings) for _ in range(count)]
        try:
            self._servers = self._places(actors, "parameter servers", options)
            processes = [_ActorProcess(actor, actor.run.remote()) for actor in actors]
            return [
                self._server(process, place, arena) for process, place in zip(processes, self._servers, strict=True)
            ]
        except BaseException as error:
            for actor in actors:
                ray.kill(actor)
            if isinstance(error, WorkerError):  # no other server has taken its place
                raise UnavailableError(str(error)) from error
            raise

    def _server(self, process: _ActorProcess, place: _Place, arena: Arena) -> StartedServer:
        process.place.set_result(place)
        control, reader = (self._settings.dial(place, who, arena) for who in (CONTROL, READER))
        return StartedServer(process, control, reader)

    def start_worker(
        self, number: int, index: int, workers: int, arena: Arena, take_line: TakeLine
    ) -> tuple[Process, list[socket.socket]]:
        if not ray.is_initialized():
            raise UnavailableError("ray.shutdown() was called, which has ended the parameter servers: stop them first")
        options = {"num_cpus": 1, **self._engine.worker_options}
        actor = _made(WorkerActor, options, self._settings)
        process = _ActorProcess(actor, actor.run.remote(number, index, workers, self._servers))

        def reach() -> None:
            try:
                (place,) = self._places([actor], f"worker {index}", options)
                process.place.set_result(place)
            except PenstockError as error:
                process.place.set_exception(error)
                take_line(error)
                return
            try:
                take_line(self._settings.dial(place, CONTROL, arena))
            except UnavailableError as error:  # its program has ended, or the network between us has
                take_line(WorkerError(process.reason() or str(error)))

        threading.Thread(target=reach, name="penstock-ray-worker", daemon=True).start()
        return process, []

    def _places(self, actors: list[Any], what: str, options: Mapping[str, Any]) -> list[_Place]:
        """Return where actors are.

        Raises:
            UnavailableError: Ray has no place for one of them, or it cannot start.
            WorkerError: one of them had started, and is lost.
        """
        seconds = self._engine.start_timeout_seconds
        try:
            found: list[_Place] = ray.get([actor.place.remote() for actor in actors], timeout=seconds)
        except GetTimeoutError as error:
            left: Any = {}
            with suppress(RayError):
                left = ray.available_resources()  # type: ignore[no-untyped-call]
            raise UnavailableError(
                f"Ray has not started {what} within {seconds:.0f} s: an actor needs {options}, and the cluster has "
                f"{left} left"
            ) from error
        except RayError as error:
            cannot_start = not isinstance(error, RayActorError) or error.actor_init_failed
            if cannot_start and not isinstance(error, OutOfMemoryError):
                raise UnavailableError(f"{what} could not start: {error}") from error
            raise WorkerError(f"{what} was lost: {_shortened(error)}") from error
        except Exception as error:  # such as of ray.shutdown() meanwhile
            raise UnavailableError(f"{what} could not start: {type(error).__name__}: {error}") from error
        return found


@dataclass(frozen=True)
class ParameterServers(Engine):
    """The engine of a `ps.ParameterServerStrategy` whose processes are Ray's actors; "ray" is short for the defaults.

    Processes on one machine exchange arrays through shared memory, and those on different ones through TCP. Both prove
    to each other that they belong to the same strategy. With a certificate, what travels between machines is encrypted.

    Args:
        worker_options: options of the workers' actors, such as `{"num_gpus": 1}` or a `scheduling_strategy`; one CPU
            each otherwise.
        server_options: the same of the servers' actors.
        tls_cert: the certificate of all actors, in PEM: the path of a file here, or the bytes. A cluster of several
            machines needs it, with `tls_key`.
        tls_key: its private key, which Ray carries to the actors: encrypt what Ray sends too.
        tls_root: the authority that has signed it; None is one of those that the system trusts.
        tls_name: a name in the certificate that all actors are expected to have, since machines come and go; without
            it the certificate must name the address of each machine.
        insecure: on several machines without TLS, where no one else can reach their network.
        shared_memory: whether processes on one machine share memory; containers may not.
        start_timeout_seconds: how long to wait until Ray has placed an actor.

    Raises:
        InvalidArgumentError: a certificate without its key.

    Example:
        >>> import penstock as ps
        >>> engine = ps.ray.ParameterServers(worker_options={"num_cpus": 4}, server_options={"num_cpus": 2})
    """

    worker_options: Mapping[str, Any] = field(default_factory=dict)
    server_options: Mapping[str, Any] = field(default_factory=dict)
    insecure: bool = False
    shared_memory: bool = sys.platform == "linux"
    start_timeout_seconds: float = 60.0
    tls_cert: str | bytes | None = field(default=None, repr=False, kw_only=True)
    tls_key: str | bytes | None = field(default=None, repr=False, kw_only=True)
    tls_root: str | bytes | None = field(default=None, repr=False, kw_only=True)
    tls_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgumentError(
                "ps.ray.ParameterServers: tls_cert and tls_key belong together, got only one of them"
            )

    def start(self) -> StartedProcesses:
        """Begin to start actors for a strategy.

        Raises:
            UnavailableError: this process is not connected to Ray.
            InvalidArgumentError: the cluster has several machines, and there is neither a certificate nor `insecure`.
            ServiceError: a file that cannot be read, or a certificate that is not valid now.
        """
        if not ray.is_initialized():
            raise UnavailableError('engine="ray" needs a Ray cluster, and this process is in none: call ray.init()')
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        machines = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
        alone = self.tls_cert is None and not self.insecure
        if alone and len(machines) > 1:
            raise InvalidArgumentError(
                f"the Ray cluster has {len(machines)} machines, between which variables and functions travel without "
                f"encryption: {_ENCRYPT}"
            )
        tls = None
        if self.tls_cert is not None:
            certificate, key, _ = read_pair(self.tls_cert, self.tls_key)
            tls = TlsNames(read_pem(self.tls_root), self.tls_name or "", certificate, key)
        return _Actors(self, _Settings(secrets.token_bytes(32), alone, self.shared_memory, tls))


def engine() -> Engine:
    """Ray's actors with one CPU each."""
    return ParameterServers()


def _machine() -> str:
    found: str = ray.get_runtime_context().get_node_id()
    return found


def _made(kind: type, options: Mapping[str, Any], settings: _Settings) -> Any:
    # One thread runs its program, and the other one says what becomes of it.
    return ray.remote(kind).options(max_concurrency=2, **options).remote(settings)


def _shortened(error: RayError) -> str:
    """The first line of what Ray says of an actor, after its class and numbers, which mean nothing to the reader."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line for line in lines if not line.startswith(("class_name", "actor_id", "pid", "namespace", "ip:", "name:"))
    ]
    return f"{type(error).__name__}: {' '.join(told)[:_LONGEST_REASON]}"
