"""Records of TFRecord files byte by byte, as their format is described, by nothing of penstock's."""

import google_crc32c


def record(data: bytes) -> bytes:
    """One record: its length and its data, each with a checksum."""
    length = len(data).to_bytes(8, "little")
    return length + _masked(length) + data + _masked(data)


def _masked(piece: bytes) -> bytes:
    value = google_crc32c.value(piece)
    return (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
