"""Accumulators as bytes: MessagePack of plain data, with arrays as extensions. Reading it runs no code."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.accumulators.accumulator import TEXT, State

_ARRAY, _TEXT = 1, 2  # codes of MessagePack's extensions
_TEXTS = pa.schema([("texts", TEXT)])

Bytes = npt.NDArray[np.uint8]


def to_bytes(state: State) -> Bytes:
    """The state of an accumulator as bytes.

    Example:
        >>> from_bytes(to_bytes({"count": 3, "mean": np.array([0.5])}))
        {'count': 3, 'mean': array([0.5])}
    """
    return np.frombuffer(msgspec.msgpack.encode(state, enc_hook=_encoded), np.uint8)


def from_bytes(data: Bytes) -> State:
    """The state that `to_bytes` was given. Its arrays own their memory."""
    return msgspec.msgpack.decode(data.data, ext_hook=_decoded)  # type: ignore[no-any-return]


def _encoded(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, pa.LargeBinaryArray):
        return msgspec.msgpack.Ext(_TEXT, memoryview(pa.record_batch([value], _TEXTS).serialize()))
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((value.dtype.str, value.shape, content)))


def _decoded(code: int, content: memoryview) -> Any:
    if code == _TEXT:
        return pa.ipc.read_record_batch(pa.py_buffer(content.tobytes()), _TEXTS).column(0)
    dtype, shape, numbers = msgspec.msgpack.decode(content)
    return np.frombuffer(numbers, dtype).reshape(shape).copy()
