"""Accumulators as bytes: MessagePack of plain data, with arrays as their bytes. Reading it runs no code."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.accumulator import TEXT, State

_ARRAY, _TEXT = "array", "text"


def to_bytes(state: State) -> bytes:
    """The state of an accumulator as bytes.

    Example:
        >>> from_bytes(to_bytes({"count": 3, "mean": np.array([0.5])}))
        {'count': 3, 'mean': array([0.5])}
    """
    return msgspec.msgpack.encode(_packed(state))


def from_bytes(data: bytes) -> State:
    """The state that `to_bytes` was given."""
    return _unpacked(msgspec.msgpack.decode(data))  # type: ignore[no-any-return]


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        return {"=": {name: _packed(entry) for name, entry in value.items()}}
    if isinstance(value, list):
        return [_packed(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return {_ARRAY: [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]}
    if isinstance(value, pa.Array):
        lengths = np.asarray(pc.binary_length(value), np.int64)
        return {_TEXT: [lengths.tobytes(), b"".join(value.to_pylist()) if len(value) < 64 else _content(value)]}
    return value


def _content(array: pa.LargeBinaryArray) -> bytes:
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    return b"" if content is None else content.slice(int(ends[0]), int(ends[-1] - ends[0])).to_pybytes()


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "=" in value:
        return {name: _unpacked(entry) for name, entry in value["="].items()}
    if _ARRAY in value:
        dtype, shape, data = value[_ARRAY]
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape)
    lengths, content = value[_TEXT]
    offsets = np.zeros(len(lengths) // 8 + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, np.int64), out=offsets[1:])
    return pa.LargeBinaryArray.from_buffers(
        TEXT, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
