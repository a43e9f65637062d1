"""Single values as plain JSON data: what an operator must remember and cannot read again."""

import base64
from typing import Any

import numpy as np

from penstock.errors import InvalidTypeError
from penstock.formats.dtypes import dtype_of_data, dtype_to_data
from penstock.structure import flatten


def encode_value(value: Any) -> list[Any]:
    """The leaves of a nested value as JSON-able data.

    Raises:
        InvalidTypeError: a leaf that is neither an array nor a string nor bytes.
    """
    return [_encode_leaf(leaf) for leaf in flatten(value)[0]]


def decode_value(data: list[Any], like: Any) -> Any:
    """The nested value that `encode_value` encoded; `like` has its structure."""
    return flatten(like)[1].unflatten([_decode_leaf(leaf) for leaf in data])


def _encode_leaf(leaf: Any) -> Any:
    if isinstance(leaf, str):
        return leaf
    if isinstance(leaf, bytes):
        return {"bytes": base64.b64encode(leaf).decode()}
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype != object:
        kind, shape = dtype_to_data(leaf.dtype), list(leaf.shape)
        if leaf.dtype.kind == "T":  # whose bytes say where its strings are
            return {"dtype": kind, "shape": shape, "strings": leaf.ravel().tolist()}
        content = base64.b64encode(np.ascontiguousarray(leaf).tobytes()).decode()
        return {"dtype": kind, "shape": shape, "data": content}
    raise InvalidTypeError(f"cannot save {leaf!r} in a state: use numbers, arrays, strings or bytes")


def _decode_leaf(data: Any) -> Any:
    if isinstance(data, str):
        return data
    if "bytes" in data:
        return base64.b64decode(data["bytes"])
    dtype = dtype_of_data(data["dtype"])
    if "strings" in data:
        return np.array(data["strings"], dtype).reshape(data["shape"])
    return np.frombuffer(base64.b64decode(data["data"]), dtype).reshape(data["shape"]).copy()[()]
