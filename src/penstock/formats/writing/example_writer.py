"""`tf.train.Example` records made without TensorFlow, many at a time: the counterpart of `formats/records/example.py`.

Arrow joins the bytes of the values with the tags and lengths before them, which are the same for all records whose
values have the same length.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidTypeError
from penstock.formats.columns import not_unicode
from penstock.formats.writing.leaves import Column, is_ragged, kind_of
from penstock.spec import as_leaf

_LISTS: Final = {"bytes": 0x0A, "floats": 0x12, "numbers": 0x1A}
_FIRST, _SECOND = b"\x0a", b"\x12"


def serialize_example(features: Mapping[str, Any]) -> bytes:
    r"""Make a `tf.train.Example` record of one row without TensorFlow; `ps.parse_example` and TensorFlow parse it.

    `dataset.save(path, format="tfrecord")` makes many at once, at a fraction of the cost.

    Args:
        features: numbers, arrays, strings, bytes, or lists of them, by name. Integers and booleans become int64, floats
            of at most 32 bits become floats, strings become UTF-8. Arrays are flattened.

    Raises:
        InvalidTypeError: values that an Example cannot hold without loss, such as float64.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> record = ps.serialize_example({"label": 3, "weights": np.float32([0.5, 2.0]), "name": "rose"})
        >>> ps.parse_example(record, {"label": ps.TensorSpec((), np.int64), "weights": ps.TensorSpec((2,))})
        {'label': np.int64(3), 'weights': array([0.5, 2. ], dtype=float32)}
    """
    columns = {}
    for name, value in features.items():
        leaf = as_leaf(value)
        column = np.empty(1, object)
        column[0] = leaf if not isinstance(leaf, np.generic) else np.asarray(leaf)
        columns[name] = column
    record: bytes = serialize_examples(columns)[0].as_py()
    return record


def serialize_examples(columns: Mapping[str, Column]) -> pa.LargeBinaryArray:
    """The records of rows whose features are these columns.

    Raises:
        InvalidTypeError: as `check_feature`.
    """
    pieces = [piece for name, column in columns.items() for piece in _feature(name, column)]
    if not pieces:
        raise InvalidTypeError("a tf.train.Example needs at least one feature")
    return _with_length(_FIRST, _joined(pieces))


def check_feature(name: str, column: Column) -> str:
    """Return the name of the list of an Example that holds a feature.

    Raises:
        InvalidTypeError: none of them can hold it without loss.
    """
    if kind_of(column) != "numbers":
        return "bytes"
    dtype = column[0].dtype if is_ragged(column) else column.dtype
    if dtype.kind in "iub":
        return "numbers"
    if dtype.kind == "f" and dtype.itemsize <= 4:
        return "floats"
    raise InvalidTypeError(
        f"a tf.train.Example holds integers, floats of 32 bits and bytes, got {dtype} in {name!r}: convert it by map, "
        "or save in another format"
    )


def _feature(name: str, column: Column) -> list[Any]:
    """For each row, the bytes before the values of a feature, and those of the values."""
    kind = check_feature(name, column)
    if is_ragged(column):
        counts = np.fromiter((row.size for row in column), np.int64, len(column))
        flat = np.concatenate([row.reshape(-1) for row in column])
    else:
        flat = column.reshape(-1)
        counts = np.full(len(column), flat.size // max(1, len(column)), np.int64)
    values = {"bytes": _strings, "floats": _floats, "numbers": _integers}[kind](flat, counts)
    encoded = name.encode()
    named = _FIRST + _varint(len(encoded)) + encoded

    def head(length: int) -> bytes:
        packed = b"" if kind == "bytes" or not length else _FIRST + _varint(length)
        listed = bytes([_LISTS[kind]]) + _varint(len(packed) + length) + packed
        feature = named + _SECOND + _varint(len(listed) + length) + listed
        return _FIRST + _varint(len(feature) + length) + feature

    return [_heads(values, head), values]


def _floats(flat: Column, counts: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    data = np.ascontiguousarray(flat.astype("<f4", copy=False))
    return _binary(np.concatenate(([0], np.cumsum(counts * 4))), pa.py_buffer(data))


def _integers(flat: Column, counts: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    values = flat.astype(np.int64 if flat.dtype.kind != "u" else np.uint64).view(np.uint64)
    if not len(values) or values.max() < 0x80:
        data, ends = values.astype(np.uint8), np.arange(len(values) + 1)
    else:
        shifted = values[:, None] >> np.arange(0, 70, 7, dtype=np.uint64).clip(max=63)
        shifted[:, 9] = values >> np.uint64(63)
        sizes = np.maximum(1, 10 - np.argmax((shifted != 0)[:, ::-1], axis=1))
        sizes[values == 0] = 1
        septets = (shifted & np.uint64(0x7F)).astype(np.uint8)
        numbers = np.arange(10)
        septets[numbers < sizes[:, None] - 1] |= 0x80
        data, ends = septets[numbers < sizes[:, None]], np.concatenate(([0], np.cumsum(sizes)))
    return _binary(ends[np.concatenate(([0], np.cumsum(counts)))], pa.py_buffer(np.ascontiguousarray(data)))


def _strings(flat: Column, counts: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    entries = flat.tolist()
    if entries and isinstance(entries[0], str):
        try:
            entries = [entry.encode() for entry in entries]
        except UnicodeEncodeError as error:
            raise not_unicode(error) from error
    each = _with_length(_FIRST, pa.array(entries, pa.large_binary()))
    ends = _offsets(each)[np.concatenate(([0], np.cumsum(counts)))]
    return _binary(ends, each.buffers()[2])


def _with_length(tag: bytes, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Each value after the tag of its field and its length."""
    return _joined([_heads(values, lambda length: tag + _varint(length)), values])


def _heads(values: pa.LargeBinaryArray, head: Callable[[int], bytes]) -> Any:
    """The bytes before each value, which depend on the value's length alone."""
    lengths, which = np.unique(np.diff(_offsets(values)), return_inverse=True)
    if len(lengths) == 1:
        return pa.scalar(head(int(lengths[0])), pa.large_binary())
    heads = pa.array([head(length) for length in lengths.tolist()], pa.large_binary())
    return heads.take(pa.array(which))


def _joined(pieces: list[Any]) -> pa.LargeBinaryArray:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _offsets(values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    buffer = values.buffers()[1]
    found: npt.NDArray[np.int64] = np.frombuffer(buffer, np.int64, len(values) + 1, values.offset * 8)
    return found


def _binary(offsets: npt.NDArray[np.int64], data: pa.Buffer) -> pa.LargeBinaryArray:
    edges = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, [None, edges, data])


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
