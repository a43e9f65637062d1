"""FarmHash Fingerprint64 and SipHash-2-4 of many byte strings at once.

TensorFlow uses the same hashes for buckets of tokens, so the buckets are the same. The strings are spans of
one array of bytes: `spans` of an Arrow array, or the lines of a file that is mapped into memory. All arithmetic is on
uint64 arrays, which wrap around as C's do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_K0 = np.uint64(0xC3A5C85C97CB3127)
_K1 = np.uint64(0xB492B66FBE98F273)
_K2 = np.uint64(0x9AE16A3B2F90404F)
_JOIN = np.uint64(0xC6A4A7935BD1E995)


def spans(array: pa.LargeBinaryArray) -> tuple[Bytes, Positions, Positions]:
    """The values of an Arrow array: its bytes, and the start and the length of each value."""
    _, offsets, content = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    data = np.empty(0, np.uint8) if content is None or content.size == 0 else np.frombuffer(content, np.uint8)
    return data, ends[:-1], np.diff(ends)


def gathered(data: Bytes, starts: Positions, lengths: Positions) -> pa.LargeBinaryArray:
    """These spans of bytes as an Arrow array."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    content = data[np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)


def fingerprint64(data: Bytes, starts: Positions, lengths: Positions) -> Words:
    """FarmHash's Fingerprint64 of each span.

    Example:
        >>> import pyarrow as pa
        >>> [int(x) % 3 for x in fingerprint64(*spans(pa.array([b"A", b"B", b"C", b"D", b"E"], pa.large_binary())))]
        [1, 0, 1, 1, 2]
    """
    result = np.full(len(starts), _K2)
    for least, most, function in _BY_LENGTH:
        where = np.flatnonzero((lengths >= least) & (lengths <= most))
        if len(where):
            result[where] = function(data, starts[where], lengths[where].astype(np.uint64))
    return result


def _fetch(data: Bytes, positions: Positions, size: int = 8) -> Words:
    """The little-endian numbers that begin at these positions."""
    windows: npt.NDArray[Any] = np.ndarray((len(data) - size + 1,), f"<u{size}", data.data, 0, (1,))
    return windows[positions].astype(np.uint64)


def _rotated(words: Words, bits: int) -> Words:
    """The 64-bit words, rotated to the right."""
    return (words >> np.uint64(bits)) | (words << np.uint64(64 - bits))


def _mixed(words: Words) -> Words:
    return words ^ (words >> np.uint64(47))


def _hash16(u: Words, v: Words, factor: Words) -> Words:
    a = _mixed((u ^ v) * factor)
    return _mixed((v ^ a) * factor) * factor


def _up_to_3(data: Bytes, starts: Positions, lengths: Words) -> Words:
    size = lengths.astype(np.int64)
    first, middle, last = (data[starts + offset].astype(np.uint64) for offset in (0, size >> 1, size - 1))
    y = first + (middle << np.uint64(8))
    z = lengths + (last << np.uint64(2))
    return _mixed(y * _K2 ^ z * _K0) * _K2


def _up_to_7(data: Bytes, starts: Positions, lengths: Words) -> Words:
    factor = _K2 + lengths * np.uint64(2)
    first, last = _fetch(data, starts, 4), _fetch(data, starts + lengths.astype(np.int64) - 4, 4)
    return _hash16(lengths + (first << np.uint64(3)), last, factor)


def _up_to_16(data: Bytes, starts: Positions, lengths: Words) -> Words:
    factor = _K2 + lengths * np.uint64(2)
    a = _fetch(data, starts) + _K2
    b = _fetch(data, starts + lengths.astype(np.int64) - 8)
    c = _rotated(b, 37) * factor + a
    d = (_rotated(a, 25) + b) * factor
    return _hash16(c, d, factor)


def _ends(data: Bytes, starts: Positions, lengths: Words, first: np.uint64) -> tuple[Words, ...]:
    """The first step for strings of 17 to 64 bytes: the words at both ends, and their sums."""
    factor = _K2 + lengths * np.uint64(2)
    stops = starts + lengths.astype(np.int64)
    a = _fetch(data, starts) * first
    b = _fetch(data, starts + 8)
    c = _fetch(data, stops - 8) * factor
    d = _fetch(data, stops - 16) * _K2
    return factor, a, _rotated(a + b, 43) + _rotated(c, 30) + d, a + _rotated(b + _K2, 18) + c


def _up_to_32(data: Bytes, starts: Positions, lengths: Words) -> Words:
    factor, _, u, v = _ends(data, starts, lengths, _K1)
    return _hash16(u, v, factor)


def _up_to_64(data: Bytes, starts: Positions, lengths: Words) -> Words:
    factor, a, y, v = _ends(data, starts, lengths, _K2)
    z = _hash16(y, v, factor)
    stops = starts + lengths.astype(np.int64)
    e = _fetch(data, starts + 16) * factor
    f = _fetch(data, starts + 24)
    g = (y + _fetch(data, stops - 32)) * factor
    h = (z + _fetch(data, stops - 24)) * factor
    return _hash16(_rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g, factor)


def _pair(data: Bytes, at: Positions, a: Words, b: Words) -> tuple[Words, Words]:
    w, x, y, z = (_fetch(data, at + offset) for offset in (0, 8, 16, 24))
    a = a + w
    c = a
    a = a + x + y
    return a + z, _rotated(b + c + z, 21) + _rotated(a, 44) + c


def _chunk(data: Bytes, at: Positions, state: Words, factor: Words, scale: int) -> Words:
    """The state after another 64 bytes. The last chunk has a separate factor, and scales two words by 9."""
    x, y, z, v1, v2, w1, w2 = state
    x = _rotated(x + y + v1 + _fetch(data, at + 8), 37) * factor
    y = _rotated(y + v2 + _fetch(data, at + 48), 42) * factor
    x = x ^ w2 * np.uint64(scale)
    y = y + v1 * np.uint64(scale) + _fetch(data, at + 40)
    z = _rotated(z + w1, 33) * factor
    v1, v2 = _pair(data, at, v2 * factor, x + w1)
    w1, w2 = _pair(data, at + 32, z + w2, y + _fetch(data, at + 16))
    return np.stack([z, y, x, v1, v2, w1, w2])


def _longer(data: Bytes, starts: Positions, lengths: Words) -> Words:
    size = lengths.astype(np.int64)
    state = np.zeros((7, len(starts)), np.uint64)
    state[0] = 81 * int(_K2) & 0xFFFFFFFFFFFFFFFF
    state[1] = 81 * int(_K1) + 113 & 0xFFFFFFFFFFFFFFFF
    state[2] = _mixed(state[1] * _K2 + np.uint64(113)) * _K2
    state[0] += _fetch(data, starts)
    chunks = (size - 1) // 64
    for number in range(int(chunks.max())):
        where = np.flatnonzero(chunks > number)
        state[:, where] = _chunk(data, starts[where] + 64 * number, state[:, where], np.full(len(where), _K1), 1)
    factor = _K1 + ((state[2] & np.uint64(0xFF)) << np.uint64(1))
    state[5] += (lengths - np.uint64(1)) & np.uint64(63)
    state[3] += state[5]
    state[5] += state[3]
    z, y, x, v1, v2, w1, w2 = _chunk(data, starts + size - 64, state, factor, 9)
    # `_chunk` returns x and z swapped, as the next chunk needs them.
    u = _hash16(v1, w1, factor) + _mixed(y) * _K0 + x
    return _hash16(u, _hash16(v2, w2, factor) + z, factor)


_BY_LENGTH: tuple[tuple[int, int, Callable[[Bytes, Positions, Words], Words]], ...] = (
    (1, 3, _up_to_3),
    (4, 7, _up_to_7),
    (8, 16, _up_to_16),
    (17, 32, _up_to_32),
    (33, 64, _up_to_64),
    (65, 1 << 62, _longer),
)


def hash_buckets(texts: pa.LargeBinaryArray, count: int, key: Sequence[int] | None = None) -> Positions:
    """One of `count` buckets for each text, by FarmHash; by SipHash with a key of two integers."""
    words = fingerprint64(*spans(texts)) if key is None else siphash(*spans(texts), (key[0], key[1]))
    return (words % np.uint64(count)).astype(np.int64)


def joined_fingerprints(first: Words, second: Words) -> Words:
    """TensorFlow's FingerprintCat64: one fingerprint of each pair of fingerprints."""
    result = (first ^ _JOIN) ^ _mixed(second * _JOIN) * _JOIN
    return _mixed(_mixed(result * _JOIN) * _JOIN)


def siphash(data: Bytes, starts: Positions, lengths: Positions, key: tuple[int, int]) -> Words:
    """SipHash-2-4 of each span, by a key of two integers of 64 bits."""
    low, high = key
    words = (low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573)
    state = np.repeat(np.array(words, np.uint64)[:, None], len(starts), axis=1)
    whole = lengths >> 3
    for number in range(int(whole.max(initial=0))):
        where = np.flatnonzero(whole > number)
        state[:, where] = _absorbed(state[:, where], _fetch(data, starts[where] + 8 * number))
    last = lengths.astype(np.uint64) << np.uint64(56)
    for number in range(7):
        where = np.flatnonzero((lengths & 7) > number)
        last[where] |= data[starts[where] + 8 * whole[where] + number].astype(np.uint64) << np.uint64(8 * number)
    state = _absorbed(state, last)
    state[2] ^= np.uint64(0xFF)
    state = _sip_round(_sip_round(_sip_round(_sip_round(state))))
    return np.asarray(state[0] ^ state[1] ^ state[2] ^ state[3])


def _absorbed(state: Words, words: Words) -> Words:
    state[3] ^= words
    state = _sip_round(_sip_round(state))
    state[0] ^= words
    return state


def _sip_round(state: Words) -> Words:
    a, b, c, d = state
    a = a + b
    b = _rotated(b, 64 - 13) ^ a
    a = _rotated(a, 32)
    c = c + d
    d = _rotated(d, 64 - 16) ^ c
    a = a + d
    d = _rotated(d, 64 - 21) ^ a
    c = c + b
    b = _rotated(b, 64 - 17) ^ c
    return np.stack([a, b, _rotated(c, 32), d])
