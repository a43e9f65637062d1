"""Explains why a TLS connection failed, by another handshake: gRPC reports only that there is no connection."""

import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.addresses import split_address
from penstock.service.security.credentials import TLS_CERT, TLS_KEY, TLS_ROOT, ClientCredentials

T = TypeVar("T")

_SECONDS: Final = 2.0
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_SIGNED_ITSELF: Final = 18
_UNKNOWN_SIGNERS: Final = (2, 19, 20, 21)
_OTHER_NAMES: Final = (62, 64)
_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def tls_trouble(address: str, credentials: ClientCredentials, *, tls: bool) -> str:
    """What is wrong with TLS, and what to do, as text; "" if TLS is not the problem.

    Args:
        address: "host:port" of a server that could not be reached.
        tls: whether TLS was used.
    """
    # Try twice, because a server that is just ending hangs up too.
    return _try_handshake(address, credentials, tls) and _try_handshake(address, credentials, tls)


def _try_handshake(address: str, credentials: ClientCredentials, tls: bool) -> str:
    host, port = split_address(address)
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as line:
            return _of_line(line, credentials.server_name or host, address, credentials, tls)
    except OSError:  # no process listens there, which gRPC reports itself
        return ""


def _of_line(line: socket.socket, host: str, address: str, credentials: ClientCredentials, tls: bool) -> str:
    context = ssl.create_default_context(cadata=credentials.roots.decode() or None)
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST  # newer Pythons check more than gRPC does
    context.set_alpn_protocols(["h2"])
    if not tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        secured = _Secured(line, context, host)
        if not tls:
            return f"it is reached by TLS: say grpc+tls://{address}"
        return "" if secured.peer_stays() else _client_refused(credentials)
    except ssl.SSLCertVerificationError as error:
        return _server_not_trusted(error, host, credentials)
    except ssl.SSLError as error:
        if not tls or isinstance(error, ssl.SSLEOFError):  # it has ended
            return ""
        if error.reason in _PLAIN:
            return f"it is reached without TLS: say grpc://{address}"
        return f"the TLS handshake fails: {error.reason or error}"


class _Secured:
    """Make the TLS handshake on a socket. Python's own leaks a socket that is reset before its handshake."""

    def __init__(self, line: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._line = line
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._complete(self._tls.do_handshake)

    def _complete(self, step: Callable[[], T]) -> T:
        """Complete a step of TLS, exchanging all bytes that it needs; returns its result."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._line.sendall(self._outgoing.read())
                received = self._line.recv(1 << 14)
                self._incoming.write(received) if received else self._incoming.write_eof()
                continue
            self._line.sendall(self._outgoing.read())
            return result

    def peer_stays(self) -> bool:
        """Whether the server sends anything: one that does not accept the client's certificate hangs up."""
        try:
            return bool(self._complete(lambda: self._tls.read(1)))
        except TimeoutError:
            return True
        except OSError:  # TLS's alerts too
            return False


def _client_refused(credentials: ClientCredentials) -> str:
    if not credentials.certificate:
        return (
            f"it asks for a certificate, and none is shown: name one that its authorities have signed in {TLS_CERT}, "
            f"and its key in {TLS_KEY} (of a worker: --tls-cert and --tls-key)"
        )
    return (
        f"it does not take the certificate of {credentials.holder}: none of its authorities (--tls-client-ca) is "
        f"behind it. Name another one in {TLS_CERT} and {TLS_KEY} (of a worker: --tls-cert and --tls-key)"
    )


def _server_not_trusted(error: ssl.SSLCertVerificationError, host: str, credentials: ClientCredentials) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate (--tls-cert) has expired: it needs a new one"
    if code == _NOT_YET_VALID:
        return "its certificate (--tls-cert) is not valid yet, or this machine's clock is wrong"
    if code in _OTHER_NAMES:
        return f"its certificate (--tls-cert) is not for the name {host!r}: use one of its names, or add this one to it"
    trusted = f"those of {TLS_ROOT}" if credentials.roots else "those that this machine trusts"
    remedy = f"name the file with the authority that signed it in {TLS_ROOT} (of a worker: --tls-root)"
    if code == _SIGNED_ITSELF:
        return f"its certificate signed itself, and is none of {trusted}: name a file with it in {TLS_ROOT}"
    if code in _UNKNOWN_SIGNERS:
        return f"its certificate was signed by none of the authorities that are trusted, {trusted}: {remedy}"
    return f"its certificate is not trusted ({error.verify_message}): {remedy}"
