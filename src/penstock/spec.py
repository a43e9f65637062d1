"""What the leaves of an element are: `TensorSpec`, a shape and a dtype, and how values become leaves."""

import math
from dataclasses import dataclass
from operator import index
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.structure import flatten, map_structure

Array = npt.NDArray[Any]

_FLOAT32: Final = np.dtype(np.float32)
_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, init=False)
class TensorSpec:
    """The shape and the dtype of one leaf of an element.

    Args:
        shape: the length of each axis; None where it differs from element to element.
        dtype: anything that `numpy.dtype` takes. Strings, bytes and rows of unequal length have dtype `object`.

    Raises:
        InvalidTypeError: a shape that is no tuple of lengths, or what is no dtype.
        InvalidArgumentError: a negative length.

    Example:
        >>> TensorSpec((None, 28, 28), "float32")
        TensorSpec(shape=(None, 28, 28), dtype=float32)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    # A specification stands where a leaf stands: `structure.flatten` must not look inside it.
    __penstock_leaf__ = True

    def __init__(self, shape: Any, dtype: Any = np.float32) -> None:
        try:
            lengths = tuple(None if length is None else index(length) for length in shape)
        except TypeError:
            raise InvalidTypeError(f"TensorSpec(shape=...) takes a tuple of integers and None, got {shape!r}") from None
        if any(length is not None and length < 0 for length in lengths):
            raise InvalidArgumentError(f"TensorSpec(shape=...) takes lengths of at least 0, or None, got {shape!r}")
        object.__setattr__(self, "shape", lengths)
        try:
            object.__setattr__(self, "dtype", np.dtype(dtype))
        except TypeError as error:
            raise InvalidTypeError(f"TensorSpec(dtype=...) takes what numpy.dtype takes, got {dtype!r}") from error

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype})"

    def batched(self, size: int | None) -> "TensorSpec":
        """This leaf with a further leading axis of `size` rows."""
        return TensorSpec((size, *self.shape), self.dtype)

    def row(self) -> "TensorSpec":
        """This leaf without its leading axis."""
        return TensorSpec(self.shape[1:], self.dtype)

    def merged(self, other: "TensorSpec") -> "TensorSpec":
        """The narrowest specification that covers both.

        Raises:
            ElementError: the dtypes or the numbers of axes differ.
        """
        if not alike(self.dtype, other.dtype) or len(self.shape) != len(other.shape):
            raise ElementError(f"{self} and {other} have nothing in common")
        lengths = [a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)]
        # Of strings the wider dtype; one without a width takes any.
        return TensorSpec(lengths, max(self.dtype, other.dtype, key=lambda dtype: dtype.itemsize or math.inf))

    def covers(self, other: "TensorSpec") -> bool:
        """Whether every value that fits `other` fits this specification too.

        Strings fit where they are no wider; the dtype "U" or "S", without a width, takes strings of any.
        """
        return (
            alike(self.dtype, other.dtype)
            and (self.dtype.itemsize == 0 or other.dtype.itemsize <= self.dtype.itemsize)
            and len(self.shape) == len(other.shape)
            and all(a is None or a == b for a, b in zip(self.shape, other.shape, strict=True))
        )


def alike(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether two dtypes are one, but for the width of NumPy's fixed-width strings."""
    return a == b or (a.kind == b.kind and a.kind in "US")


def as_leaf(value: Any) -> Any:
    """A value as penstock holds it: an array or a NumPy scalar; strings, bytes and other objects as they are.

    Python integers become int64, Python floats float32 (also in lists); everything else keeps NumPy's dtype. Python
    strings and bytes stay objects, because NumPy's fixed-width strings drop trailing zero bytes.

    Raises:
        ElementError: a list of unequal rows, or a Python float that float32 would make infinite.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    kind = type(value)
    if kind is int:
        return np.int64(value)
    if kind is float:
        return np.float32(value) if abs(value) <= _LARGEST else _as_float32(value)[()]
    if kind is bool:
        return np.bool_(value)
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, list):
        return _array_of_list(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return value


def _array_of_list(value: list[Any]) -> Array:
    sample: Any = value
    while isinstance(sample, list) and sample:
        sample = sample[0]
    if isinstance(sample, (str, bytes)):
        return np.array(value, dtype=object)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ElementError(
            f"a list stands for an array, and must hold rows of equal shape, got {value!r:.200}"
        ) from error
    return _as_float32(array) if type(sample) is float and array.dtype == np.float64 else array


def _as_float32(values: Any) -> Array:
    try:
        return cast(values, _FLOAT32)
    except OverflowError:
        raise ElementError(
            f"Python floats become float32, and {values!r:.200} would become infinite: use numpy.float64"
        ) from None


def cast(values: Any, dtype: np.dtype[Any]) -> Array:
    """Numbers as an array of another dtype; what that dtype cannot hold exactly changes as NumPy changes it.

    Raises:
        OverflowError: a finite number would become infinite.
    """
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return np.asarray(values).astype(dtype)
    except FloatingPointError:
        raise OverflowError(f"{values!r:.200} does not fit into {dtype}") from None


def spec_of_leaf(leaf: Any) -> TensorSpec:
    """The specification of one leaf."""
    leaf = as_leaf(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return TensorSpec(leaf.shape, leaf.dtype)
    return TensorSpec((), object)


def spec_of(element: Any) -> Any:
    """The specification of an element: its structure with a `TensorSpec` in place of each leaf.

    Example:
        >>> spec_of({"id": 3, "score": 0.5})
        {'id': TensorSpec(shape=(), dtype=int64), 'score': TensorSpec(shape=(), dtype=float32)}
    """
    return map_structure(spec_of_leaf, element)


def describe_mismatch(declared: Any, found: Any) -> str | None:
    """What is wrong with an element of specification `found` where `declared` was promised; None where it fits."""
    want, want_structure = flatten(declared)
    have, have_structure = flatten(found)
    if want_structure != have_structure:
        return f"expected structure {want_structure}, got {have_structure}"
    for path, a, b in zip(want_structure.paths(), want, have, strict=True):
        if not a.covers(b):
            return f"expected {a}{' at ' + path if path else ''}, got {b}"
    return None
