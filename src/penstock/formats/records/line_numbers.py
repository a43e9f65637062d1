"""The numbers of the lines in which bytes of a file are, for errors."""

from contextlib import closing
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.formats.byte_reader import ByteReader
from penstock.formats.opening import open_bytes

_PIECE_BYTES = 1 << 20


def line_of(name: str, compression: str, offset: int, returns: bool = False) -> int:
    """The number of the line, from 1, in which a byte of the file (when decompressed) is.

    Args:
        returns: whether a carriage return without a newline ends a line too.

    Raises:
        StorageError: the file cannot be read.
    """
    with closing(open_bytes(name, compression)) as source:
        before, split = _lines_before(name, compression, source.size, returns)
        piece = min(offset // _PIECE_BYTES, len(before) - 1)
        source.seek(piece * _PIECE_BYTES)
        return 1 + int(before[piece]) + lines_in(_read(source, offset - piece * _PIECE_BYTES), returns, split[piece])


@lru_cache(maxsize=16)
def _lines_before(name: str, compression: str, size: int, returns: bool) -> tuple[npt.NDArray[np.int64], list[bool]]:
    """The number of lines that end before each piece of a file, and the pieces that follow a carriage return.

    A file with many errors is read once more, not once for each.
    """
    with closing(open_bytes(name, compression)) as source:
        counts, split = [0], [False]
        while len(piece := _read(source, _PIECE_BYTES)) == _PIECE_BYTES:
            counts.append(lines_in(piece, returns, split[-1]))
            split.append(returns and piece.endswith(b"\r"))
        return np.cumsum(counts, dtype=np.int64), split


def lines_in(data: bytes, returns: bool, split: bool = False) -> int:
    """The number of lines that end in these bytes; after a carriage return a newline at their beginning ends none.

    Args:
        data: some bytes of a file.
        returns: whether a carriage return without a newline ends a line too.
        split: whether a carriage return comes before these bytes.
    """
    count = data.count(b"\n")
    if not returns:
        return count
    return count + data.count(b"\r") - data.count(b"\r\n") - (split and data.startswith(b"\n"))


def _read(source: ByteReader, count: int) -> bytes:
    """The next `count` bytes, or all that are left."""
    parts, left = [], count
    while left > 0 and (piece := source.read(left)):
        parts.append(piece[:left])
        left -= len(piece)
    return b"".join(parts)
