"""Numbers of a service for Prometheus, and a small web server that gives them and answers probes.

Autoscalers of Kubernetes (KEDA, or its own by an adapter of Prometheus) read `penstock_data_workers_needed` there.
"""

import hmac
import logging
import os
import platform
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.addresses import WILDCARDS, is_loopback, joined_address
from penstock.errors import ServiceError
from penstock.rpc.listener import Access
from penstock.service.scaling import ServiceLoad
from penstock.service.security.credentials import worker_token
from penstock.service.wire.dispatcher_messages import Status
from penstock.service.worker.server import WorkerNumbers
from penstock.version import VERSION

_logger = logging.getLogger(__name__)

_PATH: Final = "/metrics"
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CONNECTION_SECONDS: Final = 5.0
"""A connection is closed after this time, whether or not a request came."""
_MOST_CONNECTIONS: Final = 32
"""For one more, the oldest is closed: each takes a thread."""
_BEGIN_OF_TLS: Final = b"\x16"
_STARTED: Final = time.time()

Number = tuple[str, str, str, float]
"""A metric: its name, its kind, its meaning, and its value."""


def prometheus_text(status: Status) -> str:
    """The numbers of a dispatcher's status in Prometheus's text format."""
    load = ServiceLoad.of(status)
    alive = [worker for worker in status.workers if worker.alive]
    counts = status.counts
    gauges = [
        ("data_workers", "Data workers that take requests.", load.workers),
        ("data_workers_needed", "Data workers that would be busy 80% of the time if no reader waited.", load.needed),
        ("data_workers_busy_ratio", "Share of the time in which a data worker computes, on average.", load.busy),
        ("readers", "Readers.", load.readers),
        ("readers_waiting_ratio", "Share of its time for which the reader waits that waits most.", load.waiting),
        ("rows_per_second", "Rows that all data workers send.", sum(worker.rows_per_second for worker in alive)),
        ("bytes_per_second", "Bytes that all data workers send.", sum(worker.bytes_per_second for worker in alive)),
        ("datasets", "Registered datasets.", status.datasets),
        ("definition_bytes", "Size of the registered datasets' definitions.", status.definition_bytes),
        ("journal_bytes", "Size of the journal's files; -1 without a journal.", counts.journal_bytes),
        ("journal_writable", "1 unless the last write to the journal has failed.", counts.journal_writable),
    ]
    counters = [
        ("lost_data_workers", "Data workers that ended without leaving.", counts.lost_workers),
        ("ended_readers", "Readers that have ended or were lost.", counts.ended_readers),
        ("begun_epochs", "Epochs that were begun.", counts.begun_epochs),
        ("refused_callers", "Connections that did not prove to know the token.", counts.refused_callers),
        ("journal_errors", "Changes that could not be written to the journal.", counts.journal_errors),
    ]
    return _text(gauges, counters)


def worker_text(numbers: WorkerNumbers) -> str:
    """The numbers of a data worker in Prometheus's text format."""
    counters = [
        ("data_worker_rows", "Rows that this data worker has sent.", numbers.rows),
        ("data_worker_bytes", "Bytes that this data worker has sent.", numbers.bytes),
        ("data_worker_busy_seconds", "Time in which it computed for at least one reader.", numbers.busy_seconds),
    ]
    return _text([], counters)


def _text(gauges: Sequence[tuple[str, str, float]], counters: Sequence[tuple[str, str, float]]) -> str:
    build = f'build_info{{version="{VERSION}",python="{platform.python_version()}"}}'
    numbers: list[Number] = [
        *((f"penstock_{name}", "gauge", meaning, value) for name, meaning, value in gauges),
        *((f"penstock_{name}_total", "counter", meaning, value) for name, meaning, value in counters),
        (f"penstock_{build}", "gauge", "The version that runs.", 1),
        *_of_process(),
    ]
    return "".join(
        f"# HELP {(base := name.partition('{')[0])} {meaning}\n# TYPE {base} {kind}\n{name} {value:.15g}\n"
        for name, kind, meaning, value in numbers
    )


def _of_process() -> Iterator[Number]:
    """The metrics of a process, as Prometheus's own libraries give them."""
    yield "process_start_time_seconds", "gauge", "When this process began, in seconds since 1970.", _STARTED
    yield "process_cpu_seconds_total", "counter", "Processor time that this process has used.", time.process_time()
    with suppress(OSError):  # only Linux has these files
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * resource.getpagesize()
        yield "process_resident_memory_bytes", "gauge", "Memory that this process takes.", resident
        yield "process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))


class MetricsServer(ThreadingHTTPServer):
    """Answers `GET` until it is closed. It exposes numbers only, and bounds the connections in number and time.

    `/metrics` has the numbers, for this machine and for those that know a secret of `access`, as
    `Authorization: Bearer SECRET`. The probes are for all: `/healthz` answers while the process does, and `/readyz`
    says 503 while it takes no work, and to those that may read the numbers also why.

    Args:
        host: the address it listens at.
        port: 0 takes any free port.
        status: called at every request; the `trouble` of its result is the reason why it takes no work.
        text: makes the text of the numbers in a status.
        access: returns the secrets by which other machines may read the numbers, over TLS if it has that; None is none.

    Attributes:
        port: the port it listens at.

    Raises:
        ServiceError: it cannot listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        status: Callable[[], Any],
        text: Callable[[Any], str] = prometheus_text,
        access: Callable[[], Access] | None = None,
    ) -> None:
        self.status, self.text = status, text
        self.access = access or partial(Access, ())
        self._until: dict[socket.socket, float] = {}
        host = host.strip("[]")
        if host in WILDCARDS and socket.has_dualstack_ipv6():
            host = "::"  # where a dispatcher listens at 0.0.0.0, it does so for IPv6 too
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ServiceError(f"metrics cannot be served at {joined_address(host, port)}: {error}") from error
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, name="penstock-metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def close(self) -> None:
        """Listen no longer."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._until) >= _MOST_CONNECTIONS:
            self._shut(next(iter(self._until)))
        self._until[request] = time.monotonic() + _CONNECTION_SECONDS
        super().process_request(request, client_address)

    def service_actions(self) -> None:  # called twice a second
        for request, until in list(self._until.items()):
            if until < time.monotonic():
                self._shut(request)

    def shutdown_request(self, request: Any) -> None:
        self._until.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.debug("a request for metrics was not answered", exc_info=True)

    def _shut(self, request: socket.socket) -> None:
        self._until.pop(request, None)
        with suppress(OSError):  # the other side has closed it
            request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_version = "penstock"
    sys_version = ""
    server: MetricsServer

    def setup(self) -> None:
        tls = self.server.access().tls
        # A connection that begins as TLS does: probes and this machine need none.
        if tls is not None and self.request.recv(1, socket.MSG_PEEK) == _BEGIN_OF_TLS:
            # A copy: the server shuts the connection by its own socket when it takes too long.
            self.request = tls.wrap_socket(self.request.dup(), server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()

    def _refused(self) -> str:
        """Say why this caller may not read the numbers; "" if it may."""
        access = self.server.access()
        if is_loopback(self.client_address[0].removeprefix("::ffff:")) or b"" in access.secrets:
            return ""
        if access.tls is not None and not isinstance(self.request, ssl.SSLSocket):
            return "from other machines by https://, since this server has a certificate"
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        known = [
            hmac.compare_digest(secret, one.encode())
            for secret in access.secrets
            for one in (shown, worker_token(shown))
        ]
        return "" if any(known) else "from other machines with the token: Authorization: Bearer TOKEN"

    def do_GET(self) -> None:
        path, status, refused = urlsplit(self.path).path, self.server.status(), self._refused()
        if path == _PATH and refused:
            self.send_error(HTTPStatus.UNAUTHORIZED, f"{_PATH} is read {refused}")
        elif path == _PATH:
            self._answer(HTTPStatus.OK, self.server.text(status))
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, "ok\n")
        elif path == "/readyz":
            trouble = status.trouble and (status.trouble if not refused else "not ready")
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK, f"{trouble or 'ok'}\n")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {_PATH}, /healthz and /readyz are here")

    def _answer(self, code: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _logger.debug(format, *args)
