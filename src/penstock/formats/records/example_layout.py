"""Examples of one layout, read together: the first one is walked, and the others are compared with it.

Records of one length that come from one program mostly differ in the bytes of their values alone. Then a feature is
the same columns of a matrix of bytes, and neither names nor lengths have to be read record by record. Unusual and
damaged records are left to `example.py`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FIELD_1: Final = 0x0A
_FIELD_2: Final = 0x12
_EMPTY: Final = b"\n\0"
"""A field 1 without contents."""
BYTES, FLOATS, INTEGERS = 0x0A, 0x12, 0x1A
_CONTINUES: Final = 0x80
_MOST: Final = 16
_FEWEST: Final = 16
"""Walking a record costs more than is gained where there are more lengths than this, and fewer records of each."""

_MOST_COMPARED: Final = 1 << 18
"""Comparing more bytes with those of the first record takes longer than walking all records together."""
_MOST_BYTES: Final = 256
"""Of more bytes of integers of one record NumPy takes less time than a loop."""

Column = npt.NDArray[Any]


@dataclass(frozen=True)
class FeatureKind:
    """The form of a feature.

    Attributes:
        tag: of its list.
        count: the number of values of a record; None for any.
        shape: of the result; with any number of values, of a row of it.
        dtype: of the result.
    """

    tag: int
    count: int | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class OtherwiseError(Exception):
    """The records are not laid out as this file expects."""


def columns_of_one_layout(records: Sequence[bytes], features: Mapping[str, FeatureKind]) -> dict[str, Column] | None:
    """The features of records of few lengths, each of which has one layout; None if they are not such records."""
    if not features or any(feature.count is None for feature in features.values()):
        return None
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    different = np.unique(lengths)
    if len(different) > max(_MOST, len(records) // _FEWEST) or lengths.sum() > _MOST_COMPARED:
        return None
    try:
        if len(different) == 1:
            return _columns(records, features)
        columns = {name: np.empty((len(records), *feature.shape), feature.dtype) for name, feature in features.items()}
        for length in different:
            rows = np.flatnonzero(lengths == length)
            for name, column in _columns([records[row] for row in rows.tolist()], features).items():
                columns[name][rows] = column
    except OtherwiseError:
        return None
    return columns


def _columns(records: Sequence[bytes], features: Mapping[str, FeatureKind]) -> dict[str, Column]:
    """The features of records of one length."""
    first = records[0]
    places, compared = _layout_of(first, features)
    content = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), len(first))
    if ((content ^ content[0]) & compared).any():
        raise OtherwiseError
    return {
        name: _values(content[:, begin:end], features[name]).reshape(len(records), *features[name].shape)
        for name, (begin, end) in places.items()
    }


def _layout_of(
    record: bytes, features: Mapping[str, FeatureKind]
) -> tuple[dict[str, tuple[int, int]], npt.NDArray[np.uint8]]:
    """The layout of a record that has each of these features once.

    Returns:
        The bounds of the values of each feature, and of each byte the bits in which all records of this layout agree.
    """
    wanted = {name.encode(): name for name in features}
    compared = np.full(len(record), 0xFF, np.uint8)
    places: dict[str, tuple[int, int]] = {}
    for encoded, begin, stop in entries_of(record):
        name = wanted.get(encoded)
        if name is None:
            compared[begin:stop] = 0
            continue
        if name in places:  # the last one would count
            raise OtherwiseError
        feature = features[name]
        begin, stop = message_at(record, begin, stop, feature.tag)
        begin, stop = places[name] = message_at(record, begin, stop, FIELD_1)
        compared[begin:stop] = _CONTINUES if feature.tag == INTEGERS else 0
    if len(places) < len(features):
        raise OtherwiseError
    return places, compared


def entries_of(record: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name of each feature of a record, and where its contents begin and end."""
    at, end = message_at(record, 0, len(record), FIELD_1)
    while at < end:
        entry, at = message_at(record, at, end, FIELD_1, whole=False)
        begin, stop = message_at(record, entry, at, FIELD_1, whole=False)
        name = record[begin:stop]
        yield name, *(message_at(record, stop, at, _FIELD_2) if stop < at else (at, at))


def message_at(record: bytes, at: int, limit: int, tag: int, whole: bool = True) -> tuple[int, int]:
    """The bounds of the contents of a field, which fills a message up to its limit if it is the `whole` of it."""
    if at + 2 > limit or record[at] != tag:
        raise OtherwiseError
    at += 2
    length = record[at - 1]
    if length >= _CONTINUES:
        length, at = _number(record, at - 1, limit)
    end = at + length
    if end != limit if whole else end > limit:
        raise OtherwiseError
    return at, end


def _number(record: bytes, at: int, limit: int) -> tuple[int, int]:
    """The number of variable length at a place before a limit, and where it ends."""
    number = shift = 0
    while at < limit:
        byte = record[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            return number, at
        shift += 7
    raise OtherwiseError


def features_of_one(
    record: bytes, features: Mapping[str, FeatureKind], defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The features of a record by itself; None where it is unusual: NumPy's calls cost more than a loop over them."""
    wanted = {name.encode(): name for name in features}
    found: dict[str, Any] = {}
    try:
        for encoded, begin, stop in entries_of(record):
            name = wanted.get(encoded)
            if name in found:  # the last one would count
                raise OtherwiseError
            if name is not None:
                found[name] = None if begin == stop else _values_of_one(record, begin, stop, features[name])
        return {name: _or_default(found.get(name), name, features[name], defaults) for name in features}
    except OtherwiseError:
        return None


def sequence_of_one(
    record: bytes, context: Mapping[str, FeatureKind], defaults: Mapping[str, Any], steps: Mapping[str, FeatureKind]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The features and lists of a SequenceExample by itself; None where it is unusual."""
    try:
        end = message_at(record, 0, len(record), FIELD_1, whole=False)[1] if record[:1] == _EMPTY[:1] else 0
        features = features_of_one(record[:end] or _EMPTY, context, defaults)
        if features is None or record[end : end + 1] not in (b"", bytes([_FIELD_2])):
            return None
        lists = _EMPTY[:1] + record[end + 1 :] if end < len(record) else _EMPTY  # as if its lists were features
        bounds: dict[bytes, tuple[int, int]] = {}
        for encoded, begin, stop in entries_of(lists):
            if encoded in bounds:  # the last one would count
                return None
            bounds[encoded] = begin, stop
        return features, {name: _steps(lists, *bounds.get(name.encode(), (0, 0)), steps[name]) for name in steps}
    except OtherwiseError:
        return None


def _steps(record: bytes, at: int, stop: int, feature: FeatureKind) -> Column:
    """The values of a feature at each step of a list."""
    values = []
    while at < stop:
        begin, at = message_at(record, at, stop, FIELD_1, whole=False)
        values.append(_values_of_one(record, begin, at, feature))
    varies = feature.count is None
    column = np.empty(len(values) if varies else (len(values), *feature.shape), object if varies else feature.dtype)
    for step, value in enumerate(values):
        column[step] = value
    return column


def _or_default(found: Any, name: str, feature: FeatureKind, defaults: Mapping[str, Any]) -> Any:
    """The values of a feature, or its default where the record has none."""
    if found is not None:
        return found
    if feature.count is None:
        return np.empty((0, *feature.shape), feature.dtype)
    if name not in defaults:
        raise OtherwiseError
    column = np.empty((1, *feature.shape), feature.dtype)
    column[:] = defaults[name]
    return column[0]


def _values_of_one(record: bytes, at: int, stop: int, feature: FeatureKind) -> Any:
    """The values of the feature between these offsets."""
    at, stop = message_at(record, at, stop, feature.tag)
    if feature.tag == BYTES:
        texts = []
        while at < stop:
            begin, at = message_at(record, at, stop, FIELD_1, whole=False)
            texts.append(record[begin:at])
        if feature.count == len(texts) and not feature.shape:
            return texts[0]
        values: Column = np.fromiter(texts, object, len(texts))
    else:
        at, stop = message_at(record, at, stop, FIELD_1)
        if feature.tag == INTEGERS:
            values = _integers_of_one(record, at, stop, feature.dtype)
        elif (stop - at) % 4 == 0:
            values = np.frombuffer(record, "<f4", (stop - at) // 4, at).astype(feature.dtype)
        else:
            raise OtherwiseError
    if len(values) != feature.count if feature.count is not None else len(values) % (math.prod(feature.shape) or 1):
        raise OtherwiseError
    if feature.count is None:
        return values.reshape(-1, *feature.shape)
    return values.reshape(feature.shape) if feature.shape else values[0]


def _integers_of_one(record: bytes, at: int, stop: int, dtype: np.dtype[Any]) -> Column:
    """Numbers of variable length, one after the other."""
    if stop - at > _MOST_BYTES:
        raise OtherwiseError
    values = []
    while at < stop:
        value, at = _number(record, at, stop)
        values.append(value)
    if max(values, default=0) >= 1 << 64:
        raise OtherwiseError
    whole = np.array(values, np.uint64).view(np.int64)
    cast = whole.astype(dtype, copy=False)
    if cast is not whole and (cast != whole).any():
        raise OtherwiseError
    return cast


def _values(content: Column, feature: FeatureKind) -> Column:
    """The values that are these bytes of each record."""
    count = feature.count or 0
    if feature.tag == BYTES:
        if count != 1:
            raise OtherwiseError
        data, size = content.tobytes(), content.shape[1]
        starts = range(0, size * len(content), size) if size else [0] * len(content)
        return np.fromiter([data[start : start + size] for start in starts], object, len(content))
    if feature.tag == FLOATS:
        if content.shape[1] != 4 * count:
            raise OtherwiseError
        return np.array(content).view("<f4").astype(feature.dtype, copy=False)
    values = _integers(content, count)
    cast = values.astype(feature.dtype, copy=False)
    if cast is not values and (cast != values).any():
        raise OtherwiseError
    return cast


def _integers(content: Column, count: int) -> Column:
    """The numbers of records, `count` of each, which all have the same number of bytes."""
    size = content.shape[1] // count if count else 0
    if not 0 < size <= 10 or size * count != content.shape[1]:
        raise OtherwiseError
    by_number = content.reshape(len(content), count, size)
    continues = by_number[0] >= _CONTINUES  # the others' bits are those of the first
    if not continues[:, :-1].all() or continues[:, -1].any():
        raise OtherwiseError
    values = (by_number[:, :, 0] & 0x7F).astype(np.uint64)
    for byte in range(1, size):
        values |= (by_number[:, :, byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
    return values.view(np.int64)
