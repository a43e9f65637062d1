"""Finds a dispatcher: its address is given, or a resolver returns it and is asked again after a loss."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from penstock.errors import InvalidTypeError
from penstock.service.security.credentials import ClientCredentials, client_credentials, credentials_for
from penstock.service.wire.address import parse_service

_SCHEMES: Final = {"ray": "penstock.ray.resolving"}
"""Modules by the protocol of the names that their function `resolve` resolves; they are imported when needed."""


@dataclass(frozen=True)
class ServiceAddress:
    """The address of a dispatcher, and the credentials to show to it.

    Args:
        target: "host:port", or with a protocol: "grpc+tls://host:port".
        token: the token that it asks for; None takes that of this process.
        tls_root: the authority of its certificate, in PEM: the path of a file, or the bytes themselves.
        insecure: send the token to other machines without TLS.
        tls_name: the name that the certificates of the dispatcher and its data workers have, where they do not name
            the machines; None expects the host of each address.

    Example:
        >>> import penstock as ps
        >>> ps.service.ServiceAddress("grpc://10.0.0.7:5050", token="0123456789abcdef")
        ServiceAddress(target='grpc://10.0.0.7:5050', tls_root=None, insecure=False, tls_name=None)
    """

    target: str
    token: str | None = field(default=None, repr=False)
    tls_root: str | bytes | None = None
    insecure: bool = field(default=False, kw_only=True)
    tls_name: str | None = field(default=None, kw_only=True)


Resolver = Callable[[], str | ServiceAddress]


class HasTarget(Protocol):
    """A service that was started or connected to, such as that of `ps.service.local`."""

    @property
    def target(self) -> Any:
        """The address of its dispatcher."""


Service = str | tuple[str, str] | ServiceAddress | Resolver | HasTarget
"""The `service` of `distribute`: an address, or an object that gives the present one."""


@dataclass(frozen=True)
class Place:
    """A dispatcher's address as `parse_service` gives it, and the credentials for it."""

    address: str
    credentials: ClientCredentials


def checked_service(call: str, service: Any, argument: str = "service") -> Any:
    """A service as it is kept: addresses are parsed, resolvers are kept as such, objects give their `target`.

    Raises:
        InvalidTypeError: something else.
        InvalidArgumentError: a malformed address.
    """
    if isinstance(service, (str, tuple)):
        return service if is_resolved(service) else parse_service(call, service, argument)
    if isinstance(service, ServiceAddress):
        parse_service(call, service.target, argument)
        return service
    target = getattr(service, "target", None)
    if target is not None:
        return checked_service(call, target, argument)
    if callable(service):
        return service
    return parse_service(call, service, argument)  # raises


def is_resolved(service: Any) -> bool:
    """Return whether a resolver gives the address of the service, and has to be asked again after a loss."""
    if isinstance(service, str):
        return service.partition("://")[0] in _SCHEMES and "://" in service
    return callable(service)


def place_of(service: Any, credentials: ClientCredentials | None = None) -> Place:
    """The place of the dispatcher now, with these credentials if any, or else with those for its address.

    Raises:
        InvalidTypeError: a resolver gives something else than an address.
        Exception: whatever a resolver raises.
    """
    found = service
    if is_resolved(service):
        if isinstance(service, str):
            scheme, _, name = service.partition("://")
            found = importlib.import_module(_SCHEMES[scheme]).resolve(name)
        else:
            found = service()
    if not isinstance(found, (str, tuple, ServiceAddress)):
        raise InvalidTypeError(
            f"a resolver must return where a dispatcher is, a string or a ps.service.ServiceAddress, got {found!r}"
        )
    address = parse_service("service", found.target if isinstance(found, ServiceAddress) else found)
    if credentials is not None:
        return Place(address, credentials)
    if not isinstance(found, ServiceAddress) or found.token is found.tls_root is found.tls_name is None:
        return Place(address, credentials_for(address))
    shown = client_credentials(
        token=found.token,
        given=found.token is not None,
        roots=found.tls_root,
        insecure=found.insecure,
        server_name=found.tls_name,
    )
    return Place(address, shown)


def described(service: Any) -> str:
    """A service as log lines and errors name it before it was found."""
    if isinstance(service, ServiceAddress):
        return service.target
    return service if isinstance(service, str) else getattr(service, "__qualname__", repr(service))
