"""Addresses of services, as users write them, checked at the call."""

import re
from typing import Final

from penstock.errors import InvalidArgumentError, InvalidTypeError

PROTOCOL: Final = "grpc"
"""How dispatchers are reached, as in TensorFlow; here it stands for TCP."""
TLS_PROTOCOL: Final = "grpc+tls"
"""The same, encrypted."""

_HOST: Final = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?\]"
)


def parse_service(call: str, service: object, argument: str = "service") -> str:
    """The "host:port" of a dispatcher, given as "host:port", "protocol://host:port" or (protocol, "host:port").

    One that is reached by TLS keeps its protocol: "grpc+tls://host:port".

    Args:
        call: what errors begin with.
        argument: the name of the argument in which it was given.

    Raises:
        InvalidTypeError: neither a string nor a tuple of two.
        InvalidArgumentError: it is empty, malformed, or names a protocol that is not known.

    Example:
        >>> parse_service("distribute", "grpc://localhost:5050")
        'localhost:5050'
    """
    protocol, address = _parts(call, service, argument)
    if protocol not in (PROTOCOL, TLS_PROTOCOL):
        raise InvalidArgumentError(
            f'{call}({argument}=...): there is no protocol {protocol!r}, only "{PROTOCOL}" and "{TLS_PROTOCOL}", got '
            f"{service!r}"
        )
    if not is_address(address):
        raise InvalidArgumentError(
            f'{call}({argument}=...) needs the address of a dispatcher as "host:port", such as "localhost:5050", got '
            f"{service!r}"
        )
    return address if protocol == PROTOCOL else f"{protocol}://{address}"


def is_address(address: str) -> bool:
    """Return whether a text is "host:port" with a name or a number that can be reached."""
    host, _, port = address.rpartition(":")
    return is_host(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16


def is_host(host: str) -> bool:
    """Return whether a text is the name or the number of a host; a number with colons is in brackets."""
    return _HOST.fullmatch(host) is not None


def _parts(call: str, service: object, argument: str) -> tuple[str, str]:
    if isinstance(service, tuple) and len(service) == 2 and all(isinstance(part, str) for part in service):
        protocol, address = service
        if "://" in address or not protocol:
            raise InvalidArgumentError(f'{call}({argument}=...) as a tuple is (protocol, "host:port"), got {service!r}')
        return protocol, address
    if not isinstance(service, str):
        raise InvalidTypeError(
            f'{call}({argument}=...) must be a string, "host:port" or "protocol://host:port", or a tuple of protocol '
            f'and "host:port", got {service!r}'
        )
    if not service:
        raise InvalidArgumentError(f"{call}({argument}=...) must not be empty")
    if service.count("://") > 1:
        raise InvalidArgumentError(f'{call}({argument}=...) has more than one "://", got {service!r}')
    protocol, separator, address = service.rpartition("://")
    return (protocol if separator else PROTOCOL), address
