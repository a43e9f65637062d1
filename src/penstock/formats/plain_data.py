"""Structures, dtypes, specifications and values as plain data, which fits into JSON and MessagePack.

A structure is [kind, names, [children …]]. That of a named tuple or dataclass also names its class:
["class", names, [children …], module, class]; that of a dictionary names its keys in their order, and
["dict", names, [children …], "ordered"] is an OrderedDict.
"""

import base64
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError, PenstockError, StorageError
from penstock.spec import LeafSpec, assuming, leaf_spec
from penstock.structure import LEAF, Structure, dictionary_of, flatten

_INNER_KINDS = ("none", "tuple", "dict", "class")
_KEY_TYPES = (str, int, float, bool)


def structure_to_data(structure: Structure) -> Any:
    """A structure as plain data.

    Raises:
        InvalidTypeError: a class that cannot be found by its name, or a dictionary with other keys than strings
            and numbers.
    """
    children = [structure_to_data(child) for child in structure.children]
    if structure.kind != "class":
        if unfit := [name for name in structure.names if type(name) not in _KEY_TYPES]:
            raise InvalidTypeError(f"a dictionary that is stored or sent must have strings as keys, got {unfit[0]!r}")
        names, children = map(list, (structure.shown_names, structure.in_order(children)))
        return [structure.kind, names, children, *(["ordered"] if structure.ordered else [])]
    assert structure.python_class is not None
    module, name = structure.python_class.__module__, structure.python_class.__qualname__
    if "<locals>" in name:
        raise InvalidTypeError(
            f"{module}.{name} values cannot be stored or sent: define the class at the top of a module"
        )
    return ["class", list(structure.names), children, module, name]


def structure_of_data(data: Sequence[Any], error: type[PenstockError] = StorageError) -> Structure:
    """The structure that `structure_to_data` wrote.

    Raises:
        StorageError, or the given error: it names a class that this process does not know.
        InvalidArgumentError: the data is no structure. Of data of another form ValueError, TypeError or IndexError.
    """
    kind, names, below = data[:3]
    if kind == "leaf":
        return LEAF
    if kind not in _INNER_KINDS or len(names) != len(below) or any(type(name) not in _KEY_TYPES for name in names):
        raise InvalidArgumentError(f"there is no structure of kind {kind!r} with the names {names!r}")
    children = tuple(structure_of_data(child, error) for child in below)
    if kind == "dict":
        return dictionary_of(names, children, ordered="ordered" in data[3:])
    python_class = _known_class(data[3], data[4], error) if kind == "class" else None
    return Structure(kind, children, tuple(names), python_class, sum(child.leaf_count for child in children))


def _known_class(module: str, name: str, error: type[PenstockError]) -> type:
    """A class by its name, if this process has imported it: reading data imports and calls nothing else."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # an attribute that is looked up could import something
    if found is None:
        raise error(f"elements are {module}.{name} values, which this process does not know: import {module}")
    is_named_tuple = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    if not is_named_tuple and not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise error(f"elements claim to be {module}.{name} values, which is no dataclass and no named tuple")
    return found  # type: ignore[no-any-return]  # narrowed by the lines above


def spec_to_data(spec: LeafSpec) -> list[Any]:
    """A specification of a leaf as plain data: [shape, dtype, ragged rank, assumed axes, whether the dtype is]."""
    assumed = [sorted(spec.assumed_axes), spec.assumed_dtype]
    return [list(spec.shape), dtype_to_data(spec.dtype), spec.ragged_rank, *assumed]


def dtype_to_data(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data."""
    if dtype.kind == "T":
        return "T"
    # Extension dtypes such as bfloat16 have a name that NumPy knows, and a `str` without meaning.
    return dtype.name if dtype.isbuiltin == 2 else np.lib.format.dtype_to_descr(dtype)


def dtype_of_data(data: Any) -> np.dtype[Any]:
    """The dtype that `dtype_to_data` wrote, also where JSON has made lists of its tuples.

    Raises:
        TypeError, ValueError: this process does not know it.
    """
    if data == "T":
        return np.dtypes.StringDType()
    return np.dtype(data) if isinstance(data, str) else np.lib.format.descr_to_dtype(_fields(data))


def spec_of_data(data: Sequence[Any], dtype_of: Callable[[Any], np.dtype[Any]] = dtype_of_data) -> LeafSpec:
    """The specification that `spec_to_data` wrote; errors of `dtype_of` are passed on.

    Raises:
        TypeError, ValueError: the data is no specification.
    """
    shape, dtype, ragged_rank, axes, assumed_dtype = data
    return assuming(leaf_spec(shape, dtype_of(dtype), ragged_rank), axes, dtype=assumed_dtype)


def _fields(data: Any) -> Any:
    """A structured dtype's fields with the tuples that lists have become on the way."""
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], (list, tuple)):
        return [tuple(_fields(part) if isinstance(part, list) else part for part in field) for field in data]
    return tuple(data) if isinstance(data, list) else data


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
