"""Checks certificates and their keys before they are used.

A server with a certificate that no client can accept would seem to work. So each certificate is first tried in a
handshake with itself.
"""

import logging
import ssl
import time
from contextlib import suppress
from typing import Any, Final

from penstock.errors import ServiceError
from penstock.rpc.tls import server_context

_logger = logging.getLogger(__name__)

_WARN_SECONDS: Final = 14 * 86_400.0
"""Before a certificate expires, as often as it is read."""
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
_MOST_TURNS: Final = 8


def check_pair(certificate: bytes, key: bytes, path: str, key_path: str) -> str:
    """The subject and the issuer of a certificate, as text.

    Args:
        certificate: in PEM, followed by intermediate certificates, if there are any.
        path: the file of the certificate, for errors.
        key_path: the file of the key, for errors.

    Raises:
        ServiceError: the key is another certificate's, or the certificate is not valid now.
    """
    try:
        server = server_context(certificate, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ServiceError(f"the key {key_path} is not that of the certificate {path}") from None
        raise ServiceError(f"the certificate {path} cannot be used with the key {key_path}: {error}") from error
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its issuer is not known here
    client.load_verify_locations(cadata=certificate.decode())
    try:
        shown = _shown(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (EXPIRED, NOT_YET_VALID):
            when = "has expired" if error.verify_code == EXPIRED else "is not valid yet"
            raise ServiceError(
                f"the certificate {path} {when}: have a new one signed, and name it in PENSTOCK_TLS_CERT (of a server: "
                "--tls-cert)"
            ) from None
        return path  # such as one for clients only
    left = ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()
    if left < _WARN_SECONDS:
        _logger.warning(
            "the certificate %s expires in %.1f days, at %s: replace it by a newly signed one",
            path,
            left / 86_400,
            shown["notAfter"],
        )
    subject, issuer = shown.get("subject"), shown.get("issuer")
    if subject == issuer:
        return f"{_name(subject)}, which signed itself"
    return f"{_name(subject)}, signed by {_name(issuer)}"


def _shown(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """The certificate of a server as a client sees it, by a handshake without a network."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MOST_TURNS):
        for side in (near, far):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return near.getpeercert() or {}


def _name(parts: Any) -> str:
    """The common name of a distinguished name, or all of it."""
    pairs = [pair for part in parts or () for pair in part]
    common = [value for name, value in pairs if name == "commonName"]
    return repr(common[-1] if common else ", ".join(f"{name}={value}" for name, value in pairs))
