"""Python's dictionaries, lists and pairs, as tables have them within lists, as bytes and back as they were.

MessagePack has no tuples and no scalars of NumPy: they are extensions of it, a tuple as the list of its values, a
scalar as the name of its dtype and its bytes.
"""

from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np

from penstock.errors import InvalidTypeError

CONTAINERS: Final = frozenset((dict, list, tuple))
_PLAIN: Final = frozenset((str, int, float, bool, bytes, NoneType))
_SCALARS: Final = "biufcmM"
_TUPLE, _SCALAR = 1, 2


def pack(value: Any) -> bytes:
    """A value as bytes.

    Raises:
        InvalidTypeError: there is something else in it than Python's own plain values and NumPy's numbers and times.
    """
    try:
        return msgspec.msgpack.encode(_tagged(value))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidTypeError(f"cannot store {value!r:.200}: {error}") from error


def unpack(data: bytes) -> Any:
    """The value that `pack` packed.

    Raises:
        ValueError: there is none in these bytes.
    """
    try:
        return msgspec.msgpack.decode(data, ext_hook=_untagged)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no packed value: {error}") from error


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict and set(map(type, value)) <= {str}:
        return {name: _tagged(inner) for name, inner in value.items()}
    if kind is list:
        return list(map(_tagged, value))
    if kind is tuple:
        return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(list(map(_tagged, value))))
    if isinstance(value, np.generic) and value.dtype.kind in _SCALARS:
        return msgspec.msgpack.Ext(_SCALAR, msgspec.msgpack.encode([value.dtype.str, value.tobytes()]))
    raise InvalidTypeError(
        f"cannot store objects with {kind.__name__} in them: convert them by map, for example to text"
    )


def _untagged(code: int, data: memoryview) -> Any:
    found = unpack(bytes(data))
    if code == _TUPLE:
        return tuple(found)
    dtype = np.dtype(found[0])
    if code != _SCALAR or dtype.kind not in _SCALARS:
        raise ValueError(f"no scalar: {dtype}")
    return np.frombuffer(found[1], dtype)[0]
