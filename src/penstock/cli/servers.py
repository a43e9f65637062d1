"""`penstock dispatcher` and `penstock worker`: servers that run until they are stopped."""

import argparse
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import msgspec

from penstock.cli.arguments import Commands, add_command, named_as_options, say, seconds
from penstock.cli.environment import EXPLAINED
from penstock.runtime.child_process import end_with_parent
from penstock.runtime.wakeups import Wakeups
from penstock.runtime.watchdog import answer_dumps
from penstock.service import DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer
from penstock.service.metrics import MetricsServer, prometheus_text, worker_text
from penstock.service.security.credentials import read_token

_DEFAULT_PORT: Final = 5050


class _Server(Protocol):
    @property
    def target(self) -> str: ...
    def join(self, timeout: float | None = None) -> None: ...
    def stop(self, *, drain: bool = False) -> None: ...


class _Terminated(BaseException):
    """SIGTERM has come, or standard input has ended."""


class _RelayedOutput(FileIO):
    """Output that another program passes on; once that has ended, it is lost, and is no error of who prints."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            return memoryview(content).nbytes


def add_dispatcher(commands: Commands) -> None:
    """Add the command to the parser."""
    example = "Example: penstock dispatcher --port 5050 & penstock worker --dispatcher localhost:5050"
    parser = add_command(commands, "dispatcher", _dispatcher, EXPLAINED + example)
    _add_address(parser, _DEFAULT_PORT)
    _add_security(parser)
    parser.add_argument(
        "--worker-address",
        metavar="HOST[:PORT]",
        action="append",
        default=[],
        help="a worker that may join, in the order of the shards of static sharding policies; once for each worker. "
        "Without any, all workers may join, and static policies are refused",
    )
    parser.add_argument(
        "--work-dir",
        metavar="DIRECTORY",
        help="where it keeps a journal: a dispatcher that is started again with the same directory and port resumes "
        "where it was, and so do data workers and readers. Without it, everything is forgotten",
    )
    defaults = DispatcherConfig()
    for name, meaning in {
        "--heartbeat-seconds": "how often workers report; a worker that misses three reports is lost",
        "--lease-seconds": "how long a reader may be silent before others read its remaining elements",
    }.items():
        default = getattr(defaults, name[2:].replace("-", "_"))
        parser.add_argument(
            name, type=seconds, metavar="SECONDS", default=default, help=f"{meaning} (default: {default:g})"
        )
    _add_operation(
        parser,
        "serve numbers for Prometheus and autoscalers at http://HOST:PORT/metrics, to other machines with the "
        "token as bearer, and probes at /healthz and /readyz: how busy data workers are, for how long readers wait, "
        "how many data workers that needs",
    )
    parser.set_defaults(environment_unless="")


def add_worker(commands: Commands) -> None:
    """Add the command to the parser."""
    example = (
        "Example: penstock worker --dispatcher grpc+tls://host1:5050 --host 0.0.0.0 --worker-address host2:%port% "
        "--token-file token --tls-cert host2.crt --tls-key host2.key --tls-root ca.crt"
    )
    parser = add_command(commands, "worker", _worker, EXPLAINED + example)
    parser.add_argument(
        "--dispatcher", metavar="HOST:PORT", required=True, help="where the dispatcher is; it may be started later"
    )
    _add_address(parser, 0)
    _add_security(parser)
    parser.add_argument(
        "--tls-root",
        metavar="FILE",
        help="the authorities that sign the dispatcher's certificate, in PEM (default: the file that PENSTOCK_TLS_ROOT "
        "names, else those that this machine trusts)",
    )
    parser.add_argument(
        "--worker-address",
        metavar="HOST:PORT",
        default="localhost:%port%",
        help="where readers reach this worker: its name as other machines know it; %%port%% is replaced by its port "
        "(default: localhost:%%port%%, for readers on this machine)",
    )
    parser.add_argument(
        "--tag",
        metavar="TAG",
        action="append",
        default=[],
        help="COLOCATED leaves the worker to readers on its own machine, unless they ask for target_workers='ANY'",
    )
    _add_operation(
        parser,
        "serve numbers for Prometheus at http://HOST:PORT/metrics, to other machines with the token as bearer, and "
        "probes at /healthz and /readyz: how much it has made, and for how long it was busy",
    )
    parser.add_argument(
        "--until-input-ends",
        action="store_true",
        help="end when standard input ends: for programs that start workers, so that workers never outlive them. No "
        "option is taken from the environment then",
    )
    parser.set_defaults(environment_unless="--until-input-ends")


def _add_address(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        default=port,
        help=f"the port it listens at; 0 takes any free port (default: {port})",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the address it listens at (default: 127.0.0.1, for this machine alone; 0.0.0.0 for all, which "
        "needs --token-file, --tls-cert and --tls-key)",
    )


def _add_operation(parser: argparse.ArgumentParser, metrics: str) -> None:
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help=metrics)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what it logs (default: info)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="a line of text or of JSON for each (default: text)",
    )


def _add_security(parser: argparse.ArgumentParser) -> None:
    for name, metavar, meaning in (
        (
            "--token-file",
            "FILE",
            "a file with the token that every client must show (default: the file that PENSTOCK_TOKEN_FILE names, else "
            "one of yours that no other user can read)",
        ),
        ("--tls-cert", "FILE", "this server's certificate, in PEM; others then connect by TLS"),
        ("--tls-key", "FILE", "the certificate's private key, in PEM"),
        (
            "--tls-client-ca",
            "FILE",
            "the authorities that sign the certificates of clients, in PEM; without it clients need no certificate",
        ),
    ):
        parser.add_argument(name, metavar=metavar, help=meaning)
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let other machines connect without --token-file and --tls-cert: anyone who reaches the port can run "
        "programs as you",
    )


def _security(options: argparse.Namespace) -> dict[str, Any]:
    names = ("token_file", "tls_cert", "tls_key", "tls_client_ca", "insecure")
    given = {name: getattr(options, name) for name in names}
    if options.token_file and Path(options.token_file).is_fifo():  # which can be read only once
        given |= {"token_file": None, "token": read_token(options.token_file)}
    return given


def _dispatcher(options: argparse.Namespace) -> int:
    """Run the dispatcher of a data service.

    It assigns work to data workers and readers. Read datasets with ps.service.distribute(..., service='HOST:PORT'). It
    runs until `penstock stop` or Ctrl-C. With --work-dir, SIGTERM ends it immediately: readers and data workers wait
    for the next dispatcher. Without it, SIGTERM lets readers finish their epoch first, and refuses new epochs; a second
    SIGTERM does not wait.
    """
    with named_as_options():
        config = DispatcherConfig(
            port=options.port,
            host=options.host,
            worker_addresses=options.worker_address,
            heartbeat_seconds=options.heartbeat_seconds,
            lease_seconds=options.lease_seconds,
            work_dir=options.work_dir,
            **_security(options),
        )
    _log(options)

    def start() -> _Server:
        server = DispatchServer(config)
        return _with_metrics(options, server, server.status, prometheus_text, config.access())

    return _run(start, "dispatcher at {}")


def _worker(options: argparse.Namespace) -> int:
    """Run a data worker of a data service.

    It computes the elements of datasets for their readers. Start as many as you like, on any machine with the same
    versions of Python, NumPy and penstock. It runs until `penstock stop` or Ctrl-C. SIGTERM lets it finish its requests
    first; a second SIGTERM does not.
    """
    with named_as_options():
        config = WorkerConfig(
            dispatcher_address=options.dispatcher,
            port=options.port,
            host=options.host,
            worker_address=options.worker_address,
            tags=tuple(options.tag),
            tls_root=options.tls_root,
            **_security(options),
        )
    _log(options)
    if options.until_input_ends:
        # Functions of datasets see the end of the input at once, and their output is passed on line by line.
        watched = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = TextIOWrapper(BufferedWriter(_RelayedOutput(1, "w", closefd=False)), line_buffering=True)
        end_with_parent()  # when it is killed, also in the middle of a user's function
        watcher = partial(_terminate_at_end_of_input, watched)
        threading.Thread(target=watcher, name="penstock-input", daemon=True).start()

    def start() -> _Server:
        server = WorkerServer(config)
        return _with_metrics(options, server, server.numbers, worker_text, config.access())

    return _run(start, "data worker at {}, dispatcher at " + options.dispatcher)


def _with_metrics(options: argparse.Namespace, server: _Server, *numbers: Any) -> _Server:
    """Serve the metrics of a server, if they are asked for, as long as this process lives; gives the server."""
    if options.metrics_port is not None:
        try:
            MetricsServer(options.host, options.metrics_port, *numbers)
        except BaseException:
            server.stop()
            raise
    return server


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        line = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        return msgspec.json.encode(line | error).decode()


def _log(options: argparse.Namespace) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_JsonLines() if options.log_format == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("penstock").setLevel(options.log_level.upper())


def _run(start: Callable[[], _Server], greeting: str) -> int:
    """Run a server until it ends by itself or is stopped; returns the exit status."""
    _allow_many_descriptors()
    server: _Server | None = None
    try:
        signal.signal(signal.SIGTERM, _terminate)
        answer_dumps()
        server = start()
        say(f"penstock: {greeting.format(server.target)}")
        try:
            _wait_for(server)
        except _Terminated:
            server.stop(drain=True)
    except _Terminated:
        if server is None:
            return 128 + signal.SIGTERM
        server.stop()
    return 0


def _wait_for(server: _Server) -> None:
    """Wait until a server has ended, or a signal comes, whenever that is."""
    ended, errors = threading.Event(), []

    def join() -> None:
        try:
            server.join()
        except BaseException as error:  # raised again in the main thread
            errors.append(error)
        ended.set()
        wakeups.wake()

    with Wakeups() as wakeups:
        threading.Thread(target=join, name="penstock-join", daemon=True).start()
        while not ended.is_set():
            wakeups.wait()
    if errors:
        raise errors[0]


def _allow_many_descriptors() -> None:
    """Raise the limit of descriptors to the system's: every client takes one, even a silent one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS says that there is no limit, and takes none above its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _terminate(*_: Any) -> NoReturn:
    raise _Terminated


def _terminate_at_end_of_input(descriptor: int) -> None:
    while os.read(descriptor, 1 << 12):
        pass
    # To the main thread, which waits: no other would wake it.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
