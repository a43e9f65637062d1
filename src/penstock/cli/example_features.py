"""Features of the `tf.train.Example` records of a file, as far as the records show."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

import penstock as ps

_LISTS: Final[dict[int, Any]] = {1: object, 2: np.float32, 3: np.int64}
_WITH_LENGTH: Final = 2


def features_of(records: Sequence[bytes]) -> dict[str, ps.TensorSpec] | None:
    """The features of some records, as `ps.parse_example` takes them; None where they are no Examples.

    A feature with the same number of values in each of them has this length, any other one varies.
    """
    try:
        found = [dict(map(_feature, _messages(_whole(record)))) for record in records]
    except (ValueError, IndexError, KeyError):
        return None
    names = sorted({name for features in found for name in features})
    kinds = {name: {one[name][0] for one in found if name in one} - {0} for name in names}
    if not names or any(len(some) > 1 for some in kinds.values()):
        return None
    return {name: _spec(kinds[name].pop(), [one.get(name) for one in found]) for name in names if kinds[name]}


def _spec(kind: int, found: list[tuple[int, int] | None]) -> ps.TensorSpec:
    counts = {None if one is None or one[0] == 0 else one[1] for one in found}
    if counts == {1}:
        return ps.TensorSpec((), _LISTS[kind])
    (length,) = counts if len(counts) == 1 else (None,)
    return ps.TensorSpec((length or None,), _LISTS[kind])


def _whole(record: bytes) -> bytes:
    """The features of an Example, which has nothing else."""
    ((number, content),) = _fields(record)
    if number != 1 or not isinstance(content, bytes):
        raise ValueError(number)
    return content


def _messages(features: bytes) -> Iterator[bytes]:
    for number, content in _fields(features):
        if number != 1 or not isinstance(content, bytes):
            raise ValueError(number)
        yield content


def _feature(entry: bytes) -> tuple[str, tuple[int, int]]:
    """The name of a feature, the number of its list, and how many values that has."""
    parts: dict[int, Any] = dict(_fields(entry))
    if not parts.get(2, b""):  # it is there, and empty, as some programs write missing values
        return parts[1].decode(), (0, 0)
    ((kind, content),) = _fields(parts[2])
    if kind not in _LISTS or not isinstance(content, bytes):
        raise ValueError(kind)
    count = 0
    for _, values in _fields(content):
        packed = kind != 1 and isinstance(values, bytes)
        count += (len(values) // 4 if kind == 2 else sum(byte < 0x80 for byte in values)) if packed else 1
    return parts[1].decode(), (kind, count)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and contents of the fields of a message of protocol buffers."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == _WITH_LENGTH:
            length, at = _varint(message, at)
        elif tag & 7 == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        else:
            length = {1: 8, 5: 4}[tag & 7]
        if at + length > len(message):
            raise ValueError(length)
        content = message[at : at + length]
        yield tag >> 3, content if tag & 7 == _WITH_LENGTH else length
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
