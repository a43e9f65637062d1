"""The envelope of every message between a dispatcher and its peers: the sender's version, and the last journal entry.

The protocol has a number, which both sides compare first; so the first value of an envelope never moves. A dispatcher's
answer brings the number of its journal's last entry, and its peers send it back: a dispatcher whose journal ends before
that has lost entries.
"""

from typing import Any, Final

import msgspec

from penstock.errors import ServiceError
from penstock.service.wire.subjects import UNDECODABLE
from penstock.version import VERSION

PROTOCOL: Final = 15
"""Raised by one whenever a message or its meaning changes: `tests/service/test_protocol.py` checks that."""


class ProtocolError(ServiceError):
    """The peer uses another protocol, or sent something that is no message: asking again is of no use."""


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a dispatcher's journal.

    Attributes:
        journal: its name; "" where there is none.
        number: of the entry.
    """

    journal: str = ""
    number: int = 0


NO_ENTRY: Final = JournalEntry()


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """`version`: the sender's version of penstock."""

    protocol: int
    version: str
    entry: JournalEntry
    message: msgspec.Raw


class _Speaker(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of every protocol's envelope."""

    protocol: int
    version: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Envelope).decode
_speaker_of = msgspec.msgpack.Decoder(_Speaker).decode


def sealed(message: msgspec.Struct, entry: JournalEntry) -> bytes:
    """A message in its envelope."""
    return _encode((PROTOCOL, VERSION, entry, message))


def unsealed(body: bytes, decoder: "msgspec.msgpack.Decoder[Any]", ours: str, theirs: str) -> tuple[JournalEntry, Any]:
    """The content of an envelope: the journal entry and the message.

    Args:
        ours: who this process is, for errors.
        theirs: who has sent it.

    Raises:
        ProtocolError: it is of another protocol, or no message of this one.
    """
    try:
        speaker = _speaker_of(body)
    except UNDECODABLE as error:
        raise ProtocolError(f"a message from {theirs} is none of penstock's: {error}") from error
    if (speaker.protocol, speaker.version) != (PROTOCOL, VERSION):
        raise ProtocolError(
            f"{theirs} has penstock {speaker.version:.40}, which speaks protocol {speaker.protocol} of the data "
            f"service, and {ours} has penstock {VERSION} with protocol {PROTOCOL}: install the same version on both"
        )
    try:
        envelope = _decode(body)
        return envelope.entry, decoder.decode(envelope.message)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"a message from {theirs} (penstock {speaker.version:.40}) cannot be read by {ours} "
            f"(penstock {VERSION}): {error}"
        ) from error
