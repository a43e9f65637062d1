"""A small web server of pages that this process makes: bounded connections, a token from other machines, and probes."""

import base64
import hmac
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from penstock.addresses import WILDCARDS, host_of, is_loopback, joined_address
from penstock.errors import ServiceError

_logger = logging.getLogger(__name__)

_CONNECTION_SECONDS: Final = 5.0
"""A connection is closed after this time, whether or not a request came."""
_MOST_CONNECTIONS: Final = 32
"""For one more, the oldest is closed: each takes a thread."""
_BEGIN_OF_TLS: Final = b"\x16"


class WebAnswer(NamedTuple):
    """Answer of a page."""

    text: str
    kind: str = "text/plain; version=0.0.4; charset=utf-8"
    code: HTTPStatus = HTTPStatus.OK


class ReadersOfPages(Protocol):
    """The secrets by which other machines may read, over TLS if there is a certificate."""

    @property
    def secrets(self) -> Sequence[bytes]: ...
    @property
    def tls(self) -> ssl.SSLContext | None: ...


Page = Callable[[bool], WebAnswer | None]
"""Makes a page, for those that may read it all or for others; None for a page that others may not read."""


class WebServer(ThreadingHTTPServer):
    """Answers `GET` until it is closed. It changes nothing, and bounds the connections in number and time.

    This machine may read all pages, and others that know a secret, as the bearer token or the password of a browser.

    Args:
        host: the address it listens at.
        port: 0 takes any free port.
        pages: by their paths.
        access: returns who may read from other machines; None is nobody.

    Attributes:
        port: the port it listens at.

    Raises:
        ServiceError: it cannot listen there.
    """

    serves = "a page"

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], access: Callable[[], ReadersOfPages] | None = None
    ) -> None:
        self.pages, self.access = pages, access
        self._until: dict[socket.socket, float] = {}
        host = host.strip("[]")
        if host in WILDCARDS and socket.has_dualstack_ipv6():
            host = "::"  # where a dispatcher listens at 0.0.0.0, it does so for IPv6 too
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ServiceError(f"{self.serves} cannot be served at {joined_address(host, port)}: {error}") from error
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, name="penstock-pages", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def meant_by(self, shown: str) -> tuple[str, ...]:
        """Return the secrets that a token stands for."""
        return (shown,)

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
        _logger.debug("a request was not answered", exc_info=True)

    def _shut(self, request: socket.socket) -> None:
        self._until.pop(request, None)
        with suppress(OSError):  # the other side has closed it
            request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_version = "penstock"
    sys_version = ""
    server: WebServer

    def setup(self) -> None:
        access = self.server.access
        tls = None if access is None else access().tls
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
        """Say why this caller may not read all; "" if it may."""
        # A page of another site that has made its name mean this machine shows that name as the host.
        asked = host_of(self.headers.get("Host", "localhost"))
        access = None if self.server.access is None else self.server.access()
        if is_loopback(self.client_address[0].removeprefix("::ffff:")) and is_loopback(asked):
            return ""
        if access is None:
            return "on this machine alone, by the name localhost"
        if b"" in access.secrets:
            return ""
        if access.tls is not None and not isinstance(self.request, ssl.SSLSocket):
            return "from other machines by https://, since this server has a certificate"
        known = [
            hmac.compare_digest(secret, one.encode())
            for secret in access.secrets
            for one in self.server.meant_by(_shown(self.headers.get("Authorization", "")))
        ]
        return "" if any(known) else "from other machines with the token: Authorization: Bearer TOKEN"

    def do_GET(self) -> None:
        path, refused = urlsplit(self.path).path, self._refused()
        page = self.server.pages.get(path)
        if page is None:
            *paths, last = self.server.pages
            self.send_error(HTTPStatus.NOT_FOUND, f"only {', '.join(paths)} and {last} are here")
            return
        answer = page(not refused)
        if answer is None:
            self.send_error(HTTPStatus.UNAUTHORIZED, f"{path} is read {refused}")
            return
        body = answer.text.encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code == HTTPStatus.UNAUTHORIZED and self.server.access is not None:
            self.send_response(code, message)
            self.send_header("WWW-Authenticate", 'Basic realm="the token of penstock, as the password"')
            self.end_headers()
            self.wfile.write(f"{message}\n".encode())
        else:
            super().send_error(code, message, explain)

    def log_message(self, format: str, *args: object) -> None:
        _logger.debug(format, *args)


def _shown(authorization: str) -> str:
    """Return the token that a caller shows: as a bearer, or as a browser's password."""
    kind, _, shown = authorization.partition(" ")
    if kind == "Basic":
        with suppress(ValueError):
            return base64.b64decode(shown).decode().partition(":")[2]
    return shown.strip()
