"""Codecs for blocks that are sent between hosts."""

import functools
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgumentError
from penstock.runtime.memory import Memory
from penstock.service.wire.blocks import Buffer
from penstock.service.wire.interfaces import WrongAnswerError

CODECS: Final = {"LZ4": "lz4_raw", "ZSTD": "zstd", "SNAPPY": "snappy"}
"""The codecs that a user can name, and pyarrow's names for them."""
AUTO: Final = "AUTO"

_MOST_RATIO = {"LZ4": 255, "SNAPPY": 64, "ZSTD": 1 << 15}
"""How many bytes a byte of each codec's can become: LZ4 adds 255 with each byte of a length, Snappy copies 64 bytes in
three, ZSTD's shortest block is four bytes that stand for 128 KiB."""
_SMALLEST = 256
"""Buffers of fewer bytes are sent as they are."""
_LINK_BYTES = 16 << 20
"""How much is sent before the link's speed is measured: what the system buffers must not count."""
_SAMPLE_BYTES = 1 << 20
_WORTH = 0.9
"""The part of the time without compression that one with it may take at most."""


def as_codec(compression: object) -> str:
    """The `codec` of a `Fetch` for a user's argument: a name of `CODECS`, "AUTO", or "" for None.

    Raises:
        InvalidArgumentError: no codec, or one that this pyarrow was built without.
    """
    if compression is None:
        return ""
    name = compression.upper() if isinstance(compression, str) else ""
    if name == AUTO:
        return AUTO
    if name not in CODECS:
        names = ", ".join(f'"{codec}"' for codec in CODECS)
        raise InvalidArgumentError(f'compression must be "AUTO", None or one of {names}, got {compression!r}')
    if not pa.Codec.is_available(CODECS[name]):
        raise InvalidArgumentError(f'compression="{name}" is not available: this pyarrow was built without it')
    return name


def compress(codec: str, buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers, compressed where that makes them smaller; as they are for codec ""."""
    return [_compressed(codec, buffer) for buffer in buffers] if codec else list(buffers)


def decompress(codec: str, buffer: Buffer, size: int) -> Buffer:
    """The buffer of `size` bytes that was given to `compress`.

    Raises:
        WrongAnswerError: no buffer of this length can become as large, it is damaged, or there is no such codec.
    """
    if buffer.size == size:
        return buffer
    if codec not in CODECS or size > buffer.size * _MOST_RATIO[codec]:  # this memory is allocated first
        raise WrongAnswerError(f"{buffer.size} bytes of codec {codec!r} came that claim to become {size} bytes")
    try:
        content = _codec(codec).decompress(pa.py_buffer(buffer), size)
    except (pa.ArrowException, OSError) as error:
        raise WrongAnswerError(f"{buffer.size} bytes of codec {codec} came that are damaged: {error}") from error
    return Memory(content.address, size, owner=content).array()


def _compressed(codec: str, buffer: Buffer) -> Buffer:
    if buffer.size < _SMALLEST:
        return buffer
    content = np.frombuffer(_codec(codec).compress(pa.py_buffer(buffer)), np.uint8)
    return content if content.size < buffer.size else buffer


@functools.cache
def _codec(name: str) -> pa.Codec:
    return pa.Codec(CODECS[name])


class AutomaticCodec:
    """Measures whether compression pays between one worker and one consumer's host, and which.

    Blocks go as they are until enough were sent to know the speed of the link. Then a sample of one is compressed with
    each codec. Compressing and sending take turns in a worker's thread, so a byte costs 1 / speed of the codec + 1 /
    (ratio · speed of the link); the cheapest codec is taken if it is clearly cheaper than 1 / speed of the link.
    """

    def __init__(self) -> None:
        self.codec = ""
        self._bytes = 0
        self._seconds = 0.0
        self._decided = False

    def sent(self, buffers: Sequence[Buffer], seconds: float) -> None:
        """Record that a block was sent uncompressed, in this time."""
        if self._decided or not buffers:
            return
        self._bytes += sum(buffer.size for buffer in buffers)
        self._seconds += seconds
        if self._bytes >= _LINK_BYTES:
            self._decided = True
            largest = max(buffers, key=lambda buffer: buffer.size)
            self.codec = cheapest_codec(largest[:_SAMPLE_BYTES], self._bytes / max(self._seconds, 1e-9))


def cheapest_codec(sample: Buffer, link: float) -> str:
    """The codec that sends a byte fastest over a link of this speed, in bytes per second; "" for none."""
    costs = {"": _WORTH / link}
    for codec in ("LZ4", "ZSTD"):
        start = time.perf_counter()
        compressed = _compressed(codec, sample)
        seconds = time.perf_counter() - start
        costs[codec] = seconds / sample.size + compressed.size / sample.size / link
    return min(costs, key=lambda codec: costs[codec])
