"""The certificate with which servers and workers on several machines encrypt what they say to each other."""

import socket
import ssl
from dataclasses import dataclass, field

from penstock.parameter_server.connection import TlsConnection
from penstock.service.security.certificates import server_context
from penstock.service.security.credentials import Pem, read_pair, read_pem


@dataclass(frozen=True)
class LineTls:
    """One certificate for all processes of a strategy: what listens shows it, and what dials expects it.

    Attributes:
        certificate: in PEM, with `key`.
        root: the authority that has signed it, in PEM; b"" for those that the system trusts.
        name: the name in it; "" expects the address of each machine.
    """

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    root: bytes = field(repr=False)
    name: str

    def listening(self) -> ssl.SSLContext:
        """What a process that listens shows."""
        context = server_context(self.certificate, self.key)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    def dialling(self, connection: socket.socket, host: str) -> TlsConnection:
        """A connection to a process that listens at that host."""
        context = ssl.create_default_context(cadata=self.root.decode() or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST  # newer Pythons check more than gRPC does
        return TlsConnection(connection, context, self.name or host)


def line_tls(certificate: Pem, key: Pem, root: Pem, name: str | None) -> LineTls:
    """TLS by a certificate, its key and its authority: paths of files, or their bytes.

    Raises:
        ServiceError: a file that cannot be read, or a certificate that is not valid now.
    """
    shown, secret, _ = read_pair(certificate, key)
    return LineTls(shown, secret, read_pem(root), name or "")
