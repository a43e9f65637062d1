"""Credentials of a service: the tokens, certificates and keys that servers require and clients show.

A token is a secret that clients must know. By default it is in a file of the user's that no other user can read, so
that only processes of this user on this machine have it. `SECURITY.md` says what that protects against.
"""

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.addresses import is_loopback, split_address
from penstock.errors import InvalidArgumentError, InvalidTypeError, ServiceError
from penstock.paths import local_path, private_directory
from penstock.rpc.listener import Access
from penstock.rpc.tls import TlsNames, server_context
from penstock.service.security.certificates import check_pair
from penstock.service.security.private_files import create_private, read_private
from penstock.service.security.renewed import Renewed

TOKEN_FILE: Final = "PENSTOCK_TOKEN_FILE"
TLS_ROOT: Final = "PENSTOCK_TLS_ROOT"
TLS_CERT: Final = "PENSTOCK_TLS_CERT"
TLS_KEY: Final = "PENSTOCK_TLS_KEY"
INSECURE: Final = "PENSTOCK_INSECURE"

_logger = logging.getLogger(__name__)

_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 1024
_TOKEN: Final = re.compile(rb"[!-~]{%d,}" % _SHORTEST_TOKEN)
_OF_WORKERS: Final = "worker-"
"""How the token of data workers begins."""
_LARGEST_PEM: Final = 1 << 20

Pem = str | bytes | None
"""Certificates or a key, in PEM: the path of a file, or the bytes themselves."""


def worker_token(token: str) -> str:
    """The token of a service's data workers, which follows from that of its trainers; not the other way round.

    Data workers run the functions of all trainers. Who takes a worker's token from it can register and read nothing:
    a dispatcher lets it do what data workers do.

    Example:
        >>> worker_token("0123456789abcdef")[:15], worker_token(worker_token("0123456789abcdef"))[:15]
        ('worker-626dc648', 'worker-626dc648')
    """
    if not token or token.startswith(_OF_WORKERS):
        return token
    return _OF_WORKERS + hashlib.sha256(f"penstock data worker {token}".encode()).hexdigest()


@dataclass(frozen=True)
class ServerCredentials:
    """Credentials that a server requires of its clients, and shows to them.

    Attributes:
        token: the token that clients must know; "" admits those that know none.
        certificate: the certificate for TLS, with `key`; b"" serves without TLS.
        client_roots: the issuers of clients' certificates; b"" requires no certificates.
    """

    token: str = field(repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    client_roots: bytes = field(default=b"", repr=False)

    def access(self) -> Access:
        """The secrets that open a connection: the token, and, as `connection.secret` 1, that of the workers."""
        context = server_context(self.certificate, self.key, self.client_roots) if self.certificate else None
        return Access((self.token.encode(), worker_token(self.token).encode()), context)


@dataclass(frozen=True)
class ClientCredentials:
    """Credentials that a client shows, and the issuers of servers that it trusts.

    Attributes:
        token: the token of every call; "" for none.
        own: whether the token is the user's default one, which never leaves this machine.
        roots: the issuers of servers' certificates; b"" for those that the system trusts.
        certificate: the certificate for servers that require one, with `key`.
        holder: its subject, as text.
        insecure: whether the token may be sent over the network without encryption.
        server_name: the name that servers' certificates must have; "" for the host in the server's address.
        renewed: reads them again if their files have changed; None for those that were given as values.
    """

    token: str = field(repr=False)
    own: bool = False
    roots: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    holder: str = ""
    insecure: bool = False
    server_name: str = ""
    renewed: "Callable[[], ClientCredentials] | None" = field(default=None, compare=False, repr=False)

    def now(self) -> "ClientCredentials":
        """The present credentials: these, or those read again from changed files."""
        return self if self.renewed is None else self.renewed()

    def for_worker(self) -> "ClientCredentials":
        """The credentials that are shown to data workers, and by them."""
        renewed = self.renewed
        later = None if renewed is None else lambda: renewed().for_worker()
        return replace(self, token=worker_token(self.token), renewed=later)

    def secret_for(self, address: str, *, tls: bool) -> bytes:
        """The secret that this process proves to know to a server at "host:port"; b"" for none.

        Raises:
            ServiceError: the data would go over the network without encryption.
        """
        if is_loopback(split_address(address)[0]):
            return self.token.encode()
        if self.own or not self.token:
            return b""
        if not tls and not self.insecure:
            raise ServiceError(
                f"nothing is sent to {address} without TLS, because others on the way could read and change it: "
                f"use grpc+tls://{address}, or set {INSECURE}=1 if no others can reach this network"
            )
        return self.token.encode()

    def names(self) -> TlsNames:
        """The issuers of servers that the client trusts by TLS, and the certificate that it shows to them."""
        return TlsNames(self.roots, self.server_name, self.certificate, self.key)


def client_credentials(
    *,
    token: str | None = None,
    token_file: str | None = None,
    given: bool = False,
    roots: Pem = None,
    certificate: Pem = None,
    key: Pem = None,
    insecure: bool = False,
    server_name: str | None = None,
) -> ClientCredentials:
    """The credentials that this process shows to servers. Arguments that are not given are taken from the environment.

    Files among them are read again when they have changed, by `ClientCredentials.now`.

    Args:
        token: the token, if it was read already; "" and None read the file.
        given: whether the token was given as a value.

    Raises:
        ServiceError: a file that cannot be read, or that other users can read, or a certificate without its key.
    """
    certificate, key = certificate or os.environ.get(TLS_CERT), key or os.environ.get(TLS_KEY)
    roots = roots or os.environ.get(TLS_ROOT)
    if bool(certificate) != bool(key):
        raise ServiceError(
            f"{TLS_CERT} and {TLS_KEY} name a certificate and its key: set {TLS_KEY if certificate else TLS_CERT} too"
        )

    def read() -> ClientCredentials:
        shown, secret, holder = read_pair(certificate, key)
        return ClientCredentials(
            token=token or _token(token_file),
            own=not given and given_token_file(token_file) is None,
            roots=read_pem(roots),
            certificate=shown,
            key=secret,
            holder=holder,
            insecure=insecure or os.environ.get(INSECURE, "") not in ("", "0"),
            server_name=server_name or "",
            renewed=renewed,
        )

    renewed = Renewed(read, credential_files(token, token_file, certificate, key, roots))
    return renewed()


def credential_files(token: str | None, token_file: str | None, *pems: Pem) -> list[str]:
    """The files that credentials are read from, among which those that are not there may come to be."""
    tokens = [] if token else [given] if (given := given_token_file(token_file)) else [str(path) for path in _places()]
    return [local_path(path) for path in (*tokens, *pems) if isinstance(path, str)]


def given_token_file(token_file: str | None) -> str | None:
    """The token file that was named as an argument or in the environment."""
    return token_file or os.environ.get(TOKEN_FILE) or None


_of_services: dict[str, ClientCredentials] = {}
"""The credentials of services that this process itself has started, by address."""


_ended: set[str] = set()
"""The addresses of services that this process had started."""


def note_begin(address: str, credentials: ClientCredentials | None = None) -> None:
    """Note that this process has started a service, perhaps where another one was, and its own credentials, if any."""
    _ended.discard(address)
    if credentials is not None:
        _of_services[address] = credentials


def note_end(address: str) -> None:
    """Note that a service of this process has ended, and does not come back."""
    _ended.add(address)
    _of_services.pop(address, None)


def check_not_ended(address: str) -> None:
    """Refuse to wait for a service of this process that has ended.

    Raises:
        ServiceError: it has ended.
    """
    if address in _ended:
        raise ServiceError(
            f"the data service at {address} has ended, because this program has stopped it, left its `with` block, or "
            "forgotten it: read while it runs"
        )


def credentials_for(address: str) -> ClientCredentials:
    """The credentials for the service whose dispatcher has that address.

    Raises:
        ServiceError: a file that cannot be read, or that other users can read.
    """
    return _of_services.get(address) or client_credentials()


def _token(token_file: str | None) -> str:
    given = given_token_file(token_file)
    return read_token(given) if given else token_of_user()


def read_token(path: str) -> str:
    """The token in a file: its only line.

    Raises:
        ServiceError: it cannot be read, other users can read it, or it contains no token.
    """
    try:
        content = read_private(Path(local_path(path)), most=_LONGEST_TOKEN, group=True)
    except OSError as error:
        raise ServiceError(f"the token file {path} cannot be read: {error.strerror}") from error
    return _checked(content, path)


def check_token(call: str, token: object) -> None:
    """Refuse an invalid token that was given as a value.

    Raises:
        InvalidTypeError: it is no string.
        InvalidArgumentError: it is too short, or contains characters that cannot be printed.
    """
    if not isinstance(token, str):
        raise InvalidTypeError(f"{call}(token=...) takes a string, got an object of type {type(token).__name__}")
    if not _TOKEN.fullmatch(token.encode()):
        raise InvalidArgumentError(
            f"{call}(token=...) must have at least {_SHORTEST_TOKEN} letters, digits and signs, and nothing else, such "
            "as secrets.token_hex(32)"
        )


def _checked(content: bytes, path: object) -> str:
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise ServiceError(
            f"{path} holds no token, one line of at least {_SHORTEST_TOKEN} letters, digits and signs: "
            f"`(umask 077; openssl rand -hex 32 > {path})` makes one"
        )
    return token.decode()


def token_of_user() -> str:
    """The token of this user on this machine, which is created if there is none.

    Raises:
        ServiceError: other users can read or write the file, or there is no place to write it.
    """
    tried = []
    for path in _places():
        try:
            if not path.exists():
                create_private(path, secrets.token_hex(32).encode() + b"\n")
            return _checked(read_private(path, most=_LONGEST_TOKEN), path)
        except OSError as error:
            tried.append(f"{path}: {error.strerror}")
    raise ServiceError(
        f"the token that keeps others out of the data service can be kept nowhere ({'; '.join(tried)}): name a file "
        f"with a token in {TOKEN_FILE}"
    )


def _places() -> list[Path]:
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / ".local" / "state"
    paths = [state / "penstock" / "token"]
    directory = private_directory()  # users without a home directory, as in containers
    if directory is not None:
        paths.append(directory / ".token")
    return paths


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of all servers of a service: where they listen, and who may connect.

    The arguments are described in `DispatcherConfig`.

    Raises:
        InvalidTypeError: a port that is no integer, or a token that is no string.
        InvalidArgumentError: a port out of range, an invalid token, settings that do not belong together, or a `host`
            that lets other machines come without a token and TLS.
    """

    port: int = 0
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls_cert: Pem = field(default=None, repr=False)
    tls_key: Pem = field(default=None, repr=False)
    tls_client_ca: Pem = field(default=None, repr=False)
    insecure: bool = False

    def __post_init__(self) -> None:
        call, port = type(self).__name__, self.port
        if not isinstance(port, int):
            raise InvalidTypeError(f"{call}(port=...) takes an integer, got {port!r}")
        if not 0 <= port < 1 << 16:
            raise InvalidArgumentError(f"{call}(port=...) must be from 0 to 65535, got {port!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgumentError(f"{call}: tls_cert and tls_key belong together, got only one of them")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidArgumentError(f"{call}(tls_client_ca=...) needs TLS: give tls_cert and tls_key too")
        if self.token is not None:
            check_token(call, self.token)
            if self.token_file is not None:
                raise InvalidArgumentError(f"{call}: give the token itself or token_file, not both")
        self._known_token()

    def _known_token(self) -> str | None:
        """The token, or the file with one; None without either. Nobody serves other machines without it and TLS."""
        token = self.token or given_token_file(self.token_file)
        if not (self.insecure or is_loopback(self.host) or (token and self.tls_cert)):
            needed = {"token_file": token, "tls_cert and tls_key": self.tls_cert}
            missing = " and ".join(name for name, given in needed.items() if not given)
            raise InvalidArgumentError(
                f"{type(self).__name__}(host={self.host!r}) lets other machines in, who could run their programs here: "
                f"give {missing} too, or insecure=True if no others can reach this network"
            )
        return token

    def credentials(self) -> ServerCredentials:
        """Read the files of its credentials: the token of the file, else of the user; none if it is insecure.

        Raises:
            ServiceError: a file that cannot be read, or that other users can read, or a certificate that is not valid.
            InvalidArgumentError: other machines could reach it, and there is no token any more.
        """
        everybody = self._known_token() is None and not is_loopback(self.host)
        if not is_loopback(self.host) and (everybody or not self.tls_cert):
            how = (
                "and asks for no token" if everybody else "without TLS, so messages can be read and changed on the way"
            )
            _logger.warning(
                "INSECURE: %s listens at %s %s: anyone who reaches it can run programs as this user",
                type(self).__name__.removesuffix("Config").lower(),
                self.host,
                how,
            )
        shown, secret, _ = read_pair(self.tls_cert, self.tls_key)
        return ServerCredentials(
            token="" if everybody else self.token or _token(self.token_file),
            certificate=shown,
            key=secret,
            client_roots=read_pem(self.tls_client_ca),
        )

    def access(self) -> Renewed[Access]:
        """Return who may connect, read again when its files have changed."""
        files = credential_files(self.token, self.token_file, self.tls_cert, self.tls_key, self.tls_client_ca)
        return Renewed(lambda: self.credentials().access(), files)


def read_pair(certificate: Pem, key: Pem) -> tuple[bytes, bytes, str]:
    """A certificate, its key, and its subject; empty values if none is given.

    Raises:
        ServiceError: one of them cannot be read, or they do not belong together, or the certificate is not valid now.
    """
    shown, secret = read_pem(certificate), read_key(key)
    return shown, secret, check_pair(shown, secret, _name(certificate), _name(key)) if shown else ""


def _name(pem: Pem) -> str:
    """The path of a file; given bytes are not shown."""
    return "the given bytes" if isinstance(pem, bytes) else str(pem)


def read_pem(path: Pem) -> bytes:
    """Certificates; b"" without any.

    Raises:
        ServiceError: they cannot be read, or are no certificates.
    """
    if not path:
        return b""
    content = path if isinstance(path, bytes) else _content(path)
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise ServiceError(f"{_name(path)} holds no certificate in PEM: a file with -----BEGIN CERTIFICATE-----")
    return content


def _content(path: str) -> bytes:
    try:
        with open(local_path(path), "rb") as file:
            return file.read(_LARGEST_PEM)
    except OSError as error:
        raise ServiceError(f"the certificate {path} cannot be read: {error.strerror}") from error


def read_key(path: Pem) -> bytes:
    """A private key; b"" without any.

    Raises:
        ServiceError: it cannot be read, other users can read it, or it is no key.
    """
    if not path:
        return b""
    try:
        private = (
            path if isinstance(path, bytes) else read_private(Path(local_path(path)), most=_LARGEST_PEM, group=True)
        )
    except OSError as error:
        raise ServiceError(f"the key {_name(path)} cannot be read: {error.strerror}") from error
    if b"PRIVATE KEY-----" not in private or b"ENCRYPTED" in private:
        raise ServiceError(f"{_name(path)} holds no private key in PEM without a password")
    return private
