"""Arrow Flight with tokens: servers that check them, and clients that show them.

Every call has the token in a header. It is checked before the call's body, which is not decoded without a token.
"""

import os
import socket
import weakref
from contextlib import suppress
from typing import Any, Final

from pyarrow import flight

from penstock.addresses import joined_address, split_address
from penstock.errors import ServiceError
from penstock.service.security.credentials import ClientCredentials, ServerCredentials
from penstock.service.security.handshake import tls_trouble
from penstock.service.security.listeners import users_listening
from penstock.service.security.unauthenticated import MOST_BYTES, UnauthenticatedConnections

HEADER: Final = "authorization"
ALIVE: Final = "alive"
"""The action with an empty answer: it shows the token, and tests whether the server is alive."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_used_in: set[int] = set()
"""The processes that have used Flight: this one, and those that it was forked from."""


def _check_not_forked() -> None:
    """Refuse to use gRPC in a process that was forked from one that has used it: calls there never end.

    Raises:
        ServiceError: this process is one.
    """
    _used_in.add(os.getpid())
    if len(_used_in) > 1:
        raise ServiceError(
            "this process was forked from one that has used the data service, so it cannot use it. Start processes by "
            'multiprocessing\'s "spawn" or "forkserver"'
        )


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses calls without the token."""

    def __init__(self, credentials: ServerCredentials) -> None:
        self._credentials = credentials

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Flight's call for every call, before its body."""
        shown = headers.get(HEADER, [])
        if not self._credentials.admits(shown[0] if len(shown) == 1 else ""):
            raise flight.FlightUnauthenticatedError(
                "it asks for a token, and none came with this call" if not shown else "the token is another one"
            )


class TokenCheckedServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A Flight server that accepts only clients that its credentials admit.

    Args:
        host: the address to listen at.
        port: 0 for one that the system chooses; the attribute `port` says which.
    """

    def __init__(self, host: str, port: int, credentials: ServerCredentials) -> None:
        _check_not_forked()
        host = host.strip("[]")
        if port:
            _try_to_listen(host, port)
        tls = credentials.tls
        super().__init__(
            f"grpc+{'tls' if tls else 'tcp'}://{joined_address(host, port)}",
            tls_certificates=[(credentials.certificate, credentials.key)] if tls else None,
            verify_client=bool(credentials.client_roots),
            root_certificates=credentials.client_roots or None,
            middleware={"token": _TokenCheck(credentials)},
        )
        self._unauthenticated = UnauthenticatedConnections(self.port)
        weakref.finalize(self, self._unauthenticated.stop)

    def let_in(self, context: flight.ServerCallContext) -> None:
        """Admit the connection of a call that has shown the token. Call this first in every call."""
        self._unauthenticated.admit(context.peer())

    def shutdown(self) -> None:
        """Stop listening, and wait for the calls that run."""
        self._unauthenticated.stop()
        super().shutdown()

    def end_connections(self) -> None:
        """End the calls that run as if the network were down. `shutdown` would wait for a client that does not read."""
        self._unauthenticated.end_all()


def _try_to_listen(host: str, port: int) -> None:
    """Raise the system's error if nothing can listen there: Flight would print, and not say why."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


class Line:
    """A Flight client for the server at "host:port", with credentials. Nothing is sent yet.

    It closes when neither an owner nor a call refers to it any more: Flight's own `close` during a call crashes.

    Attributes:
        client: the Flight client; each call needs `options`.

    Raises:
        ServiceError: the token would go over the network in the clear, or to another user of this machine; or this
            process was forked from one that has used Flight.
    """

    def __init__(self, address: str, credentials: ClientCredentials, *, tls: bool) -> None:
        _check_not_forked()
        self._address, self._credentials, self._tls = address, credentials, tls
        authorization = credentials.authorization(address, tls=tls)
        if authorization and not tls:
            address = _address_of_this_user(address)
        self._shown = False
        self._headers = [(HEADER.encode(), authorization.encode())] if authorization else []
        trusted = {
            "tls_root_certs": credentials.roots or None,
            "cert_chain": credentials.certificate or None,
            "private_key": credentials.key or None,
            "override_hostname": credentials.server_name or None,
        }
        self.client = flight.FlightClient(f"grpc+{'tls' if tls else 'tcp'}://{address}", **(trusted if tls else {}))

    def options(self, seconds: float | None = None) -> flight.FlightCallOptions:
        """The options of a call with this timeout."""
        _check_not_forked()
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    def show_token(self, size: int, seconds: float) -> None:
        """Show the token before a large message: servers accept little from connections that have not shown it."""
        if not self._shown and size > MOST_BYTES // 2:
            list(self.client.do_action(ALIVE, self.options(seconds)))
        self._shown = True

    def tls_trouble(self, error: Exception) -> str:
        """Why TLS made a call fail, as text; "" if TLS is not the reason."""
        if not isinstance(error, flight.FlightUnavailableError):
            return ""
        return tls_trouble(self._address, self._credentials, tls=self._tls)


def _address_of_this_user(address: str) -> str:
    """The address to connect to, so that no other user of this machine gets the token.

    A name can stand for several addresses of this machine, as localhost does. The one is taken at which this user
    listens, so that another user cannot block the service by listening at another one.

    Raises:
        ServiceError: other users listen at all of them.
    """
    host, port = split_address(address)
    of_ours: list[str] = []
    of_nobody: list[str] = []
    strangers: set[int] = set()
    for where in _of_this_machine(host):
        users = users_listening(where, int(port))
        others = users - {os.getuid(), 0}
        strangers |= others
        if not others:
            (of_ours if users else of_nobody).append(joined_address(where, port))
    if of_ours:
        return of_ours[0]
    if not strangers:
        return address
    if of_nobody:
        return of_nobody[0]
    raise ServiceError(
        f"user {min(strangers)} listens at port {port} of this machine, not the one of this process "
        f"({os.getuid()}): the token is not sent there. Start the service at another port, or use TLS"
    )


def _of_this_machine(host: str) -> list[str]:
    """The addresses of this machine that a host name stands for; none if it is another machine's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:  # the connection will report that
        return []
    ours = []
    for family, kind, _, _, address in found:
        with suppress(OSError), socket.socket(family, kind) as trial:
            trial.bind(address)  # which fails for addresses of other machines
            # Connecting to "any address" is connecting to this machine.
            ours.append(_LOOPBACK.get(str(address[0]), str(address[0])))
    return ours


def refused_at_the_door(what: str, address: str, error: Exception) -> str:
    """The text of the error if a server refuses the token."""
    reason = str(error).partition(". Detail:")[0].partition(". gRPC client")[0]
    return (
        f"the {what} at {address} does not let this process in: {reason}. It must be of the same user on the same "
        "machine, or know the file that the service has as --token-file by the environment's PENSTOCK_TOKEN_FILE"
    )
