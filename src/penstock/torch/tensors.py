"""From NumPy arrays to tensors: without a copy wherever the memory belongs to the step alone."""

from typing import Any, Final

import numpy as np
import torch

from penstock.errors import ElementError
from penstock.structure import flatten

_SHARED: Final = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""Kinds and bytes of the dtypes that torch takes over from NumPy as they are."""

_VIEWED: Final = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
}
"""Dtypes of the package ml_dtypes, with the integers of the same bytes, through which they reach torch."""


def tensor_of(array: Any) -> Any:
    """The array as a tensor; strings, objects and rows that differ in shape as lists.

    The tensor shares the memory of an array that may be written. A read-only array belongs to the dataset, or to its
    cache, and is copied: torch knows no read-only tensors, and `images.div_(255)` would change the data of the next
    epoch.

    Raises:
        ElementError: torch lacks the dtype.
    """
    dtype = array.dtype
    if dtype.kind in "OUST":
        entries = array if dtype.kind == "O" else array.tolist()
        return [tensor_of(entry) if isinstance(entry, np.ndarray) else entry for entry in entries]
    if f"{dtype.kind}{dtype.itemsize}" in _SHARED:
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        return torch.from_numpy(_writable(array))
    if dtype.name in _VIEWED:
        integers, own = _VIEWED[dtype.name]
        return torch.from_numpy(_writable(array).view(integers)).view(own)
    raise unknown_dtype(dtype)


def _writable(array: Any) -> Any:
    """The array itself, or a copy where it is read-only or torch cannot step through it."""
    flags = array.flags
    if flags.writeable and (
        flags.c_contiguous or all(step > 0 and step % array.itemsize == 0 for step in array.strides)
    ):
        return array
    return array.copy(order="C")


def unknown_dtype(dtype: Any, path: str = "") -> ElementError:
    """The error for a dtype that torch lacks."""
    return ElementError(
        f"torch has no dtype {dtype}{', which the elements have at ' + path if path else ''}: map the dataset to one "
        "that it has, as by .map(lambda time: time.astype(np.int64))"
    )


def check_dtypes(spec: Any) -> None:
    """Refuse a specification with a dtype that torch lacks, where the specification is known without reading.

    Raises:
        ElementError: torch lacks the dtype of a leaf.
    """
    if spec is None:
        return
    leaves, structure = flatten(spec)
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        try:
            tensor_of(np.empty(0, leaf.dtype))
        except ElementError:
            raise unknown_dtype(leaf.dtype, path) from None
