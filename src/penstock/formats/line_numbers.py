"""On which line of a file a byte is, for errors."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.formats.files import ByteReader, open_bytes

_PIECE_BYTES = 1 << 20


def line_of(name: str, compression: str, offset: int) -> int:
    """The number of the line, from 1, in which a byte of the file (when decompressed) is.

    Raises:
        StorageError: the file cannot be read.
    """
    source = open_bytes(name, compression)
    try:
        before = _lines_before(name, compression, source.size)
        piece = min(offset // _PIECE_BYTES, len(before) - 1)
        source.seek(piece * _PIECE_BYTES)
        return 1 + int(before[piece]) + _read(source, offset - piece * _PIECE_BYTES).count(b"\n")
    finally:
        source.close()


@lru_cache(maxsize=16)
def _lines_before(name: str, compression: str, size: int) -> npt.NDArray[np.int64]:
    """How many lines end before each piece of a file: a file with many errors is read once more, not once for each."""
    source = open_bytes(name, compression)
    try:
        counts = [0]
        while len(piece := _read(source, _PIECE_BYTES)) == _PIECE_BYTES:
            counts.append(piece.count(b"\n"))
        return np.cumsum(counts, dtype=np.int64)
    finally:
        source.close()


def _read(source: ByteReader, count: int) -> bytes:
    """So many bytes, or all that are left."""
    parts, left = [], count
    while left > 0 and (piece := source.read(left)):
        parts.append(piece[:left])
        left -= len(piece)
    return b"".join(parts)
