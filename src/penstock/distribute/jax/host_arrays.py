"""Exchange arrays that devices cannot hold, such as strings, between workers, over the control channel."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import Announced
from penstock.errors import InvalidTypeError

Array = npt.NDArray[Any]

_PIECE_BYTES = 1 << 24
"""The most bytes in one message; a message that is too long for the channel would end the connection."""
_SENT = {str, bytes, bool, int, float, type(None), np.ndarray}
_STRINGS = np.dtypes.StringDType()


class HostArray(msgspec.Struct, array_like=True):
    """An array as plain data.

    Attributes:
        dtype: its name; "O" of objects, "T" of NumPy's strings of any length.
        shape: of the array.
        values: the objects, in order, arrays among them in this form too, or the bytes of all others.
    """

    dtype: str
    shape: list[int]
    values: bytes | list[Any]

    @staticmethod
    def of(array: Array) -> "HostArray":
        """An array as plain data.

        Raises:
            InvalidTypeError: it holds something else than numbers, strings, bytes, None and arrays of these.
        """
        dtype = array.dtype
        if dtype.kind in "OT":
            values: list[Any] = array.reshape(-1).tolist()
            others = {type(value) for value in values} - (_SENT if dtype.kind == "O" else {str})
            if others:
                raise InvalidTypeError(f"objects of type {', '.join(sorted(kind.__name__ for kind in others))}")
            own = [HostArray.of(value) if isinstance(value, np.ndarray) else value for value in values]
            return HostArray(dtype.kind, list(array.shape), own)
        extension = dtype.kind == "V"  # bfloat16 and others, which NumPy knows by their names
        if extension and dtype.isbuiltin != 2:
            raise InvalidTypeError(f"values of dtype {dtype}")
        return HostArray(dtype.name if extension else dtype.str, list(array.shape), array.tobytes())

    def array(self) -> Array:
        """The array that this is of."""
        if isinstance(self.values, bytes):
            return np.frombuffer(bytearray(self.values), np.dtype(self.dtype)).reshape(self.shape)  # to be written to
        own = [msgspec.convert(value, HostArray).array() if isinstance(value, list) else value for value in self.values]
        objects = np.fromiter(own, object, math.prod(self.shape)).reshape(self.shape)
        return objects.astype(_STRINGS) if self.dtype == "T" else objects


_decoded = msgspec.msgpack.Decoder(list[HostArray]).decode


def from_all_workers(control: Control, call: str, values: Sequence[Array]) -> list[Array]:
    """The values of all workers, worker by worker; every worker must call this.

    Raises:
        InvalidTypeError: on every worker alike, where one has objects that are no plain data.
        WorkerError: another worker failed, or has left.
    """
    data, refused = b"", None
    try:
        data = msgspec.msgpack.encode([HostArray.of(value) for value in values])
    except (InvalidTypeError, OverflowError) as error:
        refused = str(error)
    answers = control.gather(call, Announced(len(data), refused), Announced)
    for worker, one in enumerate(answers):
        if one.refused is not None:
            raise InvalidTypeError(
                f"{call} got {one.refused} on worker {worker}: workers can send each other numbers, strings, bytes, "
                "None and arrays of these; convert other values to these, or use strategy.local_results"
            )
    received = [bytearray() for _ in answers]
    for start in range(0, max(one.length for one in answers), _PIECE_BYTES):
        for whole, piece in zip(received, control.gather(call, data[start : start + _PIECE_BYTES], bytes), strict=True):
            whole += piece
    return [one.array() for one in chain.from_iterable(map(_decoded, received))]
