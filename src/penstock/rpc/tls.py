"""TLS between machines: certificates that listening processes show, and authorities that dialling ones trust."""

import socket
import ssl
import tempfile
from dataclasses import dataclass, field

from penstock.rpc.connection import TlsConnection


def server_context(certificate: bytes, key: bytes, client_roots: bytes = b"") -> ssl.SSLContext:
    """The TLS context of a process that listens; certificates, keys and authorities are in PEM.

    Raises:
        ssl.SSLError: certificate and key do not belong together, or one of them is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, certificate, key)
    if client_roots:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_roots.decode())
    return context


def client_context(roots: bytes, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    """The TLS context of a process that dials.

    Args:
        roots: the authorities, in PEM; b"" for those that the system trusts.
    """
    context = ssl.create_default_context(cadata=roots.decode() or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST  # newer Pythons also refuse authorities that OpenSSL accepts
    if certificate:
        _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with tempfile.TemporaryFile() as file:  # it has no name, so that no copy of the key remains
        file.write(certificate + b"\n" + key)
        file.flush()
        file.seek(0)
        context.load_cert_chain(f"/dev/fd/{file.fileno()}")


@dataclass(frozen=True)
class TlsNames:
    """The TLS settings of a process that dials.

    Attributes:
        roots: the authorities that sign certificates, in PEM; b"" for those that the system trusts.
        name: the name that a certificate must have; "" expects the host that was dialled.
        certificate: shown if the server requests one, with `key`; b"" for none.
    """

    roots: bytes = field(default=b"", repr=False)
    name: str = ""
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)

    def connection(self, connection: socket.socket, host: str) -> TlsConnection:
        """A connection to a process that listens at that host."""
        return TlsConnection(connection, client_context(self.roots, self.certificate, self.key), self.name or host)
