"""What a service does as numbers for Prometheus, and a small web server that gives them.

Autoscalers of Kubernetes (KEDA, or its own by an adapter of Prometheus) read `penstock_data_workers_needed` there.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit

from penstock.addresses import WILDCARDS, joined_address
from penstock.errors import ServiceError
from penstock.service.scaling import ServiceLoad
from penstock.service.wire.dispatcher_messages import Status

_logger = logging.getLogger(__name__)

_PATH: Final = "/metrics"
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CONNECTION_SECONDS: Final = 5.0
"""A connection is closed after so long, whatever came by it."""
_MOST_CONNECTIONS: Final = 32
"""Where one more comes, the oldest is closed: each takes a thread."""


def prometheus_text(status: Status) -> str:
    """The numbers of a status in Prometheus's text format."""
    load = ServiceLoad.of(status)
    alive = [worker for worker in status.workers if worker.alive]
    gauges: list[tuple[str, str, float]] = [
        ("data_workers", "Data workers that take requests.", load.workers),
        ("data_workers_needed", "Data workers that would be busy 80% of the time if no reader waited.", load.needed),
        ("data_workers_busy_ratio", "Share of the time in which a data worker computes, on average.", load.busy),
        ("readers", "Readers.", load.readers),
        ("readers_waiting_ratio", "Share of its time for which the reader waits that waits most.", load.waiting),
        ("rows_per_second", "Rows that all data workers send.", sum(worker.rows_per_second for worker in alive)),
        ("bytes_per_second", "Bytes that all data workers send.", sum(worker.bytes_per_second for worker in alive)),
    ]
    return "".join(
        f"# HELP penstock_{name} {meaning}\n# TYPE penstock_{name} gauge\npenstock_{name} {value:g}\n"
        for name, meaning, value in gauges
    )


class MetricsServer:
    """Answers `GET /metrics`, to anyone who can connect, until it is closed. It tells numbers only.

    Args:
        host: the address it listens at.
        port: 0 takes any free port.
        status: asked at every request.

    Attributes:
        port: the port it listens at.

    Raises:
        ServiceError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, status: Callable[[], Status]) -> None:
        handler = type("_Handler", (_Handler,), {"status": staticmethod(status)})
        try:
            host = host.strip("[]")
            if host in WILDCARDS and socket.has_dualstack_ipv6():
                host = "::"  # where a dispatcher listens at 0.0.0.0, it does so for IPv6 too
            self._server = (_BothServer if ":" in host else _BoundedServer)((host, port), handler)
        except (OSError, OverflowError) as error:
            raise ServiceError(f"metrics cannot be served at {joined_address(host, port)}: {error}") from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BoundedServer(ThreadingHTTPServer):
    """Bounds the connections, which anyone may open, in number and time."""

    def __init__(self, *arguments: Any) -> None:
        self._until: dict[socket.socket, float] = {}
        super().__init__(*arguments)

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


class _BothServer(_BoundedServer):
    """Listens at an address of IPv6, and at "::" for IPv4 too."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    server_version = "penstock"
    sys_version = ""
    status: Callable[[], Status]

    def do_GET(self) -> None:
        if urlsplit(self.path).path != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"only {_PATH} is here")
            return
        body = prometheus_text(self.status()).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _logger.debug(format, *args)
