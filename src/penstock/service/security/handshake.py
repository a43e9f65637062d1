"""Reasons why a connection could not be made: a wrong token, or problems with certificates."""

import ssl
from typing import Final

from penstock.addresses import split_address
from penstock.rpc.proof import OtherProtocolError
from penstock.service.security.certificates import EXPIRED, NOT_YET_VALID
from penstock.service.security.credentials import TLS_CERT, TLS_KEY, TLS_ROOT, ClientCredentials

_SIGNED_ITSELF: Final = 18
_UNKNOWN_SIGNERS: Final = (2, 19, 20, 21)
_OTHER_NAMES: Final = (62, 64)
_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def not_admitted(what: str, address: str, secret: bytes) -> str:
    """The text of the error if a server does not take the secret of this process."""
    reason = "the token is another one" if secret else "it asks for a token, and none came with this call"
    return (
        f"the {what} at {address} does not let this process in: {reason}. It must be of the same user on the same "
        "machine, or know the file that the service has as --token-file by the environment's PENSTOCK_TOKEN_FILE. "
        "A service of ps.service.local lets in the program that has started it alone: call service.status() there"
    )


def tls_trouble(error: OSError, address: str, credentials: ClientCredentials, *, tls: bool) -> str:
    """The problem with TLS and its remedy, as text; "" if TLS is not the problem.

    Args:
        error: of the connection to the server at "host:port".
        tls: whether TLS was used.
    """
    if isinstance(error, OtherProtocolError) and error.tls and not tls:
        return f"it is reached by TLS: use grpc+tls://{address}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _server_not_trusted(error, credentials.server_name or split_address(address)[0], credentials)
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):  # it has ended
        return ""
    if error.reason in _PLAIN:
        return f"it is reached without TLS: use grpc://{address}"
    if "ALERT" in (error.reason or ""):
        return _client_refused(credentials)
    return f"the TLS handshake fails: {error.reason or error}"


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
    if code == EXPIRED:
        return "its certificate (--tls-cert) has expired: it needs a new one"
    if code == NOT_YET_VALID:
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
