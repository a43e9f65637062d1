"""Accumulators as bytes: MessagePack of plain data, and the memory of arrays behind it. Reading it runs no code."""

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.accumulators.accumulator import TEXT, State

_ARRAY, _TEXT = 1, 2  # codes of MessagePack's extensions
_ALIGNMENT = 16
_LENGTH = 8

Bytes = npt.NDArray[np.uint8]


def to_bytes(state: State) -> Bytes:
    """The state of an accumulator as bytes.

    Example:
        >>> from_bytes(to_bytes({"count": 3, "mean": np.array([0.5])}))
        {'count': 3, 'mean': array([0.5])}
    """
    memory = _Memory()
    plain = msgspec.msgpack.encode(state, enc_hook=memory.noted)
    size = len(plain).to_bytes(_LENGTH, "little")
    return np.frombuffer(b"".join([size, plain, _padding(_LENGTH + len(plain)), *memory.parts]), np.uint8)


def from_bytes(data: Bytes) -> State:
    """The state that `to_bytes` was given. Its arrays own their memory."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH].tobytes(), "little")
    memory = data[end + len(_padding(end)) :]

    def array(code: int, noted: memoryview) -> Any:
        if code == _ARRAY:
            dtype, shape, offset = msgspec.msgpack.decode(noted)
            return np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape).copy()
        count, ends, content, size = msgspec.msgpack.decode(noted)
        buffers = [
            None,
            pa.py_buffer(memory[ends : ends + 8 * (count + 1)].tobytes()),
            pa.py_buffer(memory[content : content + size].tobytes()),
        ]
        return pa.LargeBinaryArray.from_buffers(TEXT, count, buffers)

    return msgspec.msgpack.decode(data[_LENGTH:end].data, ext_hook=array)  # type: ignore[no-any-return]


class _Memory:
    """The memory of the arrays of a state, in parts that are aligned."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._size = 0

    def noted(self, value: Any) -> msgspec.msgpack.Ext:
        """Return the placeholder of an array."""
        if isinstance(value, pa.LargeBinaryArray):
            return msgspec.msgpack.Ext(_TEXT, msgspec.msgpack.encode(self._text(value)))
        offset = self._add(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((value.dtype.str, value.shape, offset)))

    def _text(self, array: pa.LargeBinaryArray) -> tuple[int, int, int, int]:
        """The number of texts, where their ends and their content stand, and the size of the content."""
        _, offsets, content = array.buffers()
        if not len(array):
            return 0, self._add(np.zeros(8, np.uint8)), self._size, 0
        ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        size = int(ends[-1] - ends[0])
        held = b"" if content is None else content.slice(int(ends[0]), size)
        return len(array), self._add((ends - ends[0]).view(np.uint8)), self._add(held), size

    def _add(self, part: Any) -> int:
        """Put these bytes at the end; returns where they begin."""
        offset = self._size
        padding = _padding(len(part))
        self.parts += [part, padding]
        self._size += len(part) + len(padding)
        return offset


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGNMENT)
