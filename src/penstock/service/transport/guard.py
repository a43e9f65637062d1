"""Arrow Flight with its door: who may come in, and how others are reached.

Every call brings the token in a header. It is looked at before the call's body, of which a stranger's is never decoded.
"""

import os
import socket
import weakref
from contextlib import suppress
from typing import Any, Final

from pyarrow import flight

from penstock.errors import ServiceError
from penstock.service.security.credentials import ClientCredentials, ServerCredentials
from penstock.service.security.doorkeeper import MOST_BYTES, Doorkeeper
from penstock.service.security.handshake import tls_trouble
from penstock.service.security.listeners import users_listening

HEADER: Final = "authorization"
ALIVE: Final = "alive"
"""The action that is answered with nothing: it shows the token, and that somebody is there."""
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses calls that do not bring the token."""

    def __init__(self, credentials: ServerCredentials) -> None:
        self._credentials = credentials

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Flight's call for every call, before its body."""
        shown = headers.get(HEADER, [])
        if not self._credentials.admits(shown[0] if len(shown) == 1 else ""):
            raise flight.FlightUnauthenticatedError(
                "it asks for a token, and none came with this call" if not shown else "the token is another one"
            )


class GuardedServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A Flight server that lets in whom its credentials admit.

    Args:
        host: the address to listen at.
        port: 0 for one that the system chooses; the attribute `port` says which.
    """

    def __init__(self, host: str, port: int, credentials: ServerCredentials) -> None:
        if port:
            _try_to_listen(host, port)
        tls = credentials.tls
        place = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc+{'tls' if tls else 'tcp'}://{place}:{port}",
            tls_certificates=[(credentials.certificate, credentials.key)] if tls else None,
            verify_client=bool(credentials.client_roots),
            root_certificates=credentials.client_roots or None,
            middleware={"token": _TokenCheck(credentials)},
        )
        self._doorkeeper = Doorkeeper(self.port)
        weakref.finalize(self, self._doorkeeper.stop)

    def let_in(self, context: flight.ServerCallContext) -> None:
        """A call has come in by the token: its connection may last, and bring more. To be said first in every call."""
        self._doorkeeper.admit(context.peer())

    def shutdown(self) -> None:
        """Stop listening."""
        self._doorkeeper.stop()
        super().shutdown()


def _try_to_listen(host: str, port: int) -> None:
    """Raise what the system says where nothing can listen there: Flight would print, and not say why."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


class Line:
    """A way to the Flight server at "host:port", with what has to be shown there. Nothing is sent yet.

    It closes when nobody holds it any more, and no call does: Flight's own `close` during a call ends the process.

    Attributes:
        client: carries the calls; each of them needs `options`.

    Raises:
        ServiceError: the token would go over the network in the clear, or to another user of this machine.
    """

    def __init__(self, address: str, credentials: ClientCredentials, *, tls: bool) -> None:
        self._address, self._credentials, self._tls = address, credentials, tls
        authorization = credentials.authorization(address, tls=tls)
        if authorization and not tls:
            address = _away_from_strangers(address)
        self._shown = False
        self._headers = [(HEADER.encode(), authorization.encode())] if authorization else []
        trusted = {
            "tls_root_certs": credentials.roots or None,
            "cert_chain": credentials.certificate or None,
            "private_key": credentials.key or None,
        }
        self.client = flight.FlightClient(f"grpc+{'tls' if tls else 'tcp'}://{address}", **(trusted if tls else {}))

    def options(self, seconds: float | None = None) -> flight.FlightCallOptions:
        """For a call that may take so long."""
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    def show_token(self, size: int, seconds: float) -> None:
        """Before a message of so many bytes: servers take little from those who have not shown the token."""
        if not self._shown and size > MOST_BYTES // 2:
            list(self.client.do_action(ALIVE, self.options(seconds)))
        self._shown = True

    def tls_trouble(self, error: Exception) -> str:
        """What is wrong with TLS where a call could not be made, in words; "" where TLS is not the reason."""
        if not isinstance(error, flight.FlightUnavailableError):
            return ""
        return tls_trouble(self._address, self._credentials, tls=self._tls)


def _away_from_strangers(address: str) -> str:
    """Where to connect so that no other user of this machine gets the token.

    A name can stand for several addresses of this machine, as localhost does. Of these the one is taken at which this
    user listens, so that nobody can keep this user from its service by listening at another one.

    Raises:
        ServiceError: other users listen at all of them.
    """
    host, _, port = address.rpartition(":")
    of_ours: list[str] = []
    of_nobody: list[str] = []
    strangers: set[int] = set()
    for where in _of_this_machine(host.strip("[]")):
        users = users_listening(where, int(port))
        others = users - {os.getuid(), 0}
        strangers |= others
        if not others:
            (of_ours if users else of_nobody).append(f"[{where}]:{port}" if ":" in where else f"{where}:{port}")
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
    """The addresses of this machine that a name or an address stands for; none for another machine's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:  # the connection will say so
        return []
    ours = []
    for family, kind, _, _, address in found:
        with suppress(OSError), socket.socket(family, kind) as trial:
            trial.bind(address)  # which is refused for addresses of others
            # Connecting to "any address" is connecting to this machine.
            ours.append(_LOOPBACK.get(str(address[0]), str(address[0])))
    return ours


def refused_at_the_door(what: str, address: str, error: Exception) -> str:
    """What a user is told whose token a server did not take."""
    reason = str(error).partition(". Detail:")[0].partition(". gRPC client")[0]
    return (
        f"the {what} at {address} does not let this process in: {reason}. It must be of the same user on the same "
        "machine, or know the file that the service has as --token-file by the environment's PENSTOCK_TOKEN_FILE"
    )
