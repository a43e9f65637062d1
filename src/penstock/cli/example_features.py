"""Features of the `tf.train.Example` records of a file, as far as the records show."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock.formats.records.example_layout import (
    BYTES,
    FIELD_1,
    FLOATS,
    INTEGERS,
    OtherwiseError,
    entries_of,
    message_at,
)

_LISTS: Final[dict[int, Any]] = {BYTES: object, FLOATS: np.float32, INTEGERS: np.int64}
_NOTHING: Final = (0, 0)
_TAGS_OF_NUMBERS: Final = (0x08, 0x0D)
"""Older writers have one before every number."""


def features_of(records: Sequence[bytes]) -> dict[str, ps.TensorSpec] | None:
    """The features of some records, as `ps.parse_example` takes them; None where they are no Examples.

    A feature with the same number of values in each of them has this length, any other one varies.
    """
    try:
        found = [
            {name.decode(): _feature(record, at, stop) for name, at, stop in entries_of(record)} for record in records
        ]
    except (OtherwiseError, UnicodeDecodeError):
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


def _feature(record: bytes, at: int, stop: int) -> tuple[int, int]:
    """The tag of the list of a feature, and how many values that has."""
    if at == stop:  # it is there, and empty, as some programs write missing values
        return _NOTHING
    kind = record[at]
    if kind not in _LISTS:
        raise OtherwiseError
    at, stop = message_at(record, at, stop, kind)
    if kind == BYTES:
        count = 0
        while at < stop:
            _, at = message_at(record, at, stop, FIELD_1, whole=False)
            count += 1
        return kind, count
    alone = at < stop and record[at] in _TAGS_OF_NUMBERS
    if at < stop and not alone:
        at, stop = message_at(record, at, stop, FIELD_1)
    if kind == FLOATS:
        return kind, (stop - at) // (5 if alone else 4)
    return kind, sum(byte < 0x80 for byte in record[at:stop]) // (2 if alone else 1)
