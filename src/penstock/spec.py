"""Specifications of leaves, `TensorSpec` and `RaggedTensorSpec`, and the conversion of values to leaves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import index
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.extras import load
from penstock.structure import flatten, map_structure

Array = npt.NDArray[Any]
_PYTHON_NUMBERS: Final = (int, float, bool, list)
_INTEGERS: Final = {int, bool}

_FLOAT32: Final = np.dtype(np.float32)
_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True, init=False, repr=False)
class LeafSpec:
    """Base of `TensorSpec` and `RaggedTensorSpec`.

    Attributes:
        shape: the length of each axis; None where it differs from element to element.
        dtype: of the numbers.
        ragged_rank: how many leading axes are held in object arrays, whose entries are arrays; 0 for one array.
        assumed_axes: the axes whose length was seen in one call of a user's function, and may differ in other elements.
        assumed_dtype: whether the dtype, and how many axes there are, was seen so. Neither takes part in comparisons.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    ragged_rank: int = 0
    assumed_axes: frozenset[int] = field(default=frozenset(), compare=False)
    assumed_dtype: bool = field(default=False, compare=False)

    # A specification stands where a leaf stands: `structure.flatten` must not look inside it.
    __penstock_leaf__ = True

    def __init__(self, shape: Any, dtype: Any, ragged_rank: int) -> None:
        name = type(self).__name__
        try:
            lengths = tuple(None if length is None else index(length) for length in shape)
        except TypeError:
            raise InvalidTypeError(f"{name}(shape=...) takes a tuple of integers and None, got {shape!r}") from None
        if any(length is not None and length < 0 for length in lengths):
            raise InvalidArgumentError(f"{name}(shape=...) takes lengths of at least 0, or None, got {shape!r}")
        try:
            self._set(shape=lengths, dtype=np.dtype(dtype), ragged_rank=ragged_rank)
        except TypeError as error:
            raise InvalidTypeError(f"{name}(dtype=...) takes what numpy.dtype takes, got {dtype!r}") from error
        self._set(assumed_axes=frozenset(), assumed_dtype=False)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _shown(self) -> str:
        lengths = [f"~{length}" if axis in self.assumed_axes else f"{length}" for axis, length in enumerate(self.shape)]
        shape = f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
        return f"shape={shape}, dtype={'~' if self.assumed_dtype else ''}{self.dtype}"

    @property
    def assumed(self) -> bool:
        """Return whether any of it was only seen in one call of a user's function."""
        return self.assumed_dtype or bool(self.assumed_axes)

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Return whether a value fits, or some value can fit both specifications: where one is None, any length does.

        A value is taken as an element's leaf is: Python integers are int64, Python floats float32. Assumed lengths
        count as they are.

        Example:
            >>> import penstock as ps
            >>> rows = ps.TensorSpec((None, 2), "int64")
            >>> rows.is_compatible_with([[1, 2], [3, 4]]), rows.is_compatible_with([[1.5, 2.5]])
            (True, False)
            >>> rows.is_compatible_with(ps.TensorSpec((3, None), "int64"))
            True
        """
        other = spec_or_value if isinstance(spec_or_value, LeafSpec) else spec_of_leaf(spec_or_value)
        return self._takes(other, lambda a, b: a is None or b is None or a == b)

    def _takes(self, other: "LeafSpec", fits: Callable[[int | None, int | None], bool]) -> bool:
        fitting = list(map(fits, self.shape, other.shape))  # as far as both go
        if self.dtype == object and self.ragged_rank == 0 and other.ragged_rank:
            return len(self.shape) == other.ragged_rank and all(fitting)  # as an array of any objects
        if other.dtype == object and 0 in other.shape and self.ragged_rank >= len(other.shape):
            return all(fitting)  # without rows their dtype is unknown
        same_axes = len(self.shape) == len(other.shape) and other.ragged_rank <= self.ragged_rank
        return same_axes and all(fitting) and _holds(self.dtype, other.dtype)


@dataclass(frozen=True, init=False, repr=False)
class TensorSpec(LeafSpec):
    """The shape and the dtype of one leaf of an element.

    What was only seen in one call of a user's function, as `dataset.element_spec` has it for a `map` without
    `output_signature`, is marked by `~` and may differ in other elements: `assumed` says whether anything is. In
    comparisons an assumed specification is equal to the one without marks.

    Args:
        shape: the length of each axis; None where it differs from element to element.
        dtype: anything that `numpy.dtype` takes. Strings and bytes have dtype `object`.

    Raises:
        InvalidTypeError: a shape that is no tuple of lengths, or what is no dtype.
        InvalidArgumentError: a negative length.

    Example:
        >>> import penstock as ps
        >>> ps.TensorSpec((None, 28, 28), "float32")
        TensorSpec(shape=(None, 28, 28), dtype=float32)
        >>> spec = ps.Dataset.range(8).map(lambda x: [x, x]).batch(4).element_spec
        >>> spec, spec.assumed, spec == ps.TensorSpec((4, 2), "int64")
        (TensorSpec(shape=(4, ~2), dtype=~int64), True, True)
    """

    def __init__(self, shape: Any, dtype: Any = np.float32) -> None:
        super().__init__(shape, dtype, 0)

    def __repr__(self) -> str:
        return f"TensorSpec({self._shown()})"

    @classmethod
    def from_tensor(cls, tensor: Any) -> "TensorSpec":
        """The specification of one value: an array, or what becomes one in an element.

        Raises:
            InvalidTypeError: a tuple, a dictionary or another structure, or None.

        Example:
            >>> import penstock as ps
            >>> ps.TensorSpec.from_tensor([[1.5, 2.5]])
            TensorSpec(shape=(1, 2), dtype=float32)
        """
        if flatten(tensor)[1].kind != "leaf":
            raise InvalidTypeError(f"TensorSpec.from_tensor(tensor) takes one array or value, got {tensor!r:.200}")
        leaf = as_leaf(tensor)
        return cls(leaf.shape, leaf.dtype) if isinstance(leaf, (np.ndarray, np.generic)) else cls((), object)


@dataclass(frozen=True, init=False, repr=False)
class RaggedTensorSpec(LeafSpec):
    """The shape and the dtype of a leaf whose rows differ in shape: an object array with one array per row.

    `ragged_batch` makes such leaves, and `rebatch` of rows of unequal length. One array of that dtype fits too: its
    rows happen to agree.

    Args:
        shape: the length of each axis, that of the rows first; None where it differs.
        dtype: of the rows; anything that `numpy.dtype` takes.
        ragged_rank: how many leading axes are those of object arrays; the arrays in them have the rest. TensorFlow's
            default is all axes but the last. Its `row_splits_dtype` has no meaning here.

    Raises:
        InvalidTypeError: a shape that is no tuple of lengths, or what is no dtype.
        InvalidArgumentError: a negative length, or a `ragged_rank` that is not from 1 to the number of axes.

    Example:
        >>> import penstock as ps
        >>> words = ps.Dataset.from_generator(lambda: iter([[1], [2, 3]]), ps.TensorSpec((None,), "int64"))
        >>> words.ragged_batch(2).element_spec
        RaggedTensorSpec(shape=(None, None), dtype=int64, ragged_rank=1)
    """

    def __init__(self, shape: Any, dtype: Any = np.float32, ragged_rank: int = 1) -> None:
        super().__init__(shape, dtype, ragged_rank)
        if not 1 <= ragged_rank <= len(self.shape):
            raise InvalidArgumentError(
                f"RaggedTensorSpec(ragged_rank=...) takes 1 to the number of axes, {len(self.shape)}, got {ragged_rank}"
            )

    def __repr__(self) -> str:
        return f"RaggedTensorSpec({self._shown()}, ragged_rank={self.ragged_rank})"


def leaf_spec(shape: Any, dtype: Any, ragged_rank: int = 0) -> LeafSpec:
    """A `RaggedTensorSpec`, or for `ragged_rank` 0 a `TensorSpec`."""
    return RaggedTensorSpec(shape, dtype, ragged_rank) if ragged_rank else TensorSpec(shape, dtype)


def assuming(spec: LeafSpec, axes: Iterable[int], *, dtype: bool = True) -> LeafSpec:
    """The same, of which the lengths of these axes and the dtype are assumed."""
    same = leaf_spec(spec.shape, spec.dtype, spec.ragged_rank)
    same._set(assumed_axes=frozenset(a for a in axes if spec.shape[a] is not None), assumed_dtype=dtype)
    return same


def all_assumed(spec: LeafSpec) -> LeafSpec:
    """The same, of which all that it says is assumed."""
    return assuming(spec, range(len(spec.shape)))


def with_open_axes(spec: LeafSpec, axes: Iterable[int]) -> LeafSpec:
    """The same with None as the length of these axes."""
    shape = [None if axis in axes else length for axis, length in enumerate(spec.shape)]
    return assuming(leaf_spec(shape, spec.dtype, spec.ragged_rank), spec.assumed_axes, dtype=spec.assumed_dtype)


def with_rows(spec: LeafSpec, size: int | None, *, assumed: bool) -> LeafSpec:
    """This leaf with `size` rows along its leading axis, which may be assumed."""
    axes = (spec.assumed_axes - {0}) | ({0} if assumed else set())
    return assuming(leaf_spec((size, *spec.shape[1:]), spec.dtype, spec.ragged_rank), axes, dtype=spec.assumed_dtype)


def batched(spec: LeafSpec, size: int | None) -> LeafSpec:
    """This leaf with a further leading axis of `size` rows."""
    rank = spec.ragged_rank + 1 if spec.ragged_rank else 0
    axes = {axis + 1 for axis in spec.assumed_axes}
    return assuming(leaf_spec((size, *spec.shape), spec.dtype, rank), axes, dtype=spec.assumed_dtype)


def ragged_rows(spec: LeafSpec, size: int | None) -> LeafSpec:
    """An object array of `size` such leaves."""
    axes = {axis + 1 for axis in spec.assumed_axes}
    return assuming(leaf_spec((size, *spec.shape), spec.dtype, spec.ragged_rank + 1), axes, dtype=spec.assumed_dtype)


def row_of(spec: LeafSpec) -> LeafSpec:
    """This leaf without its leading axis."""
    axes = {axis - 1 for axis in spec.assumed_axes if axis}
    return assuming(leaf_spec(spec.shape[1:], spec.dtype, max(spec.ragged_rank - 1, 0)), axes, dtype=spec.assumed_dtype)


def leading_rows_of(spec: Any) -> int | None:
    """Return the length of the leading axis that all leaves have; None where they differ, or it is unknown."""
    lengths = {leaf.shape[0] if leaf.shape else None for leaf in flatten(spec)[0]} if spec is not None else {None}
    return lengths.pop() if len(lengths) == 1 else None


def merged(spec: LeafSpec, other: LeafSpec) -> LeafSpec:
    """The narrowest specification that covers both.

    Raises:
        ElementError: the dtypes or the numbers of axes differ.
    """
    if not alike(spec.dtype, other.dtype) or len(spec.shape) != len(other.shape):
        raise ElementError(f"{spec} and {other} have nothing in common")
    lengths = [a if a == b else None for a, b in zip(spec.shape, other.shape, strict=True)]
    # Of strings the wider dtype.
    dtype = spec.dtype if _holds(spec.dtype, other.dtype) else other.dtype
    both = leaf_spec(lengths, dtype, max(spec.ragged_rank, other.ragged_rank))
    return assuming(both, spec.assumed_axes | other.assumed_axes, dtype=spec.assumed_dtype or other.assumed_dtype)


def covers(spec: LeafSpec, other: LeafSpec) -> bool:
    """Return whether every value that fits `other` fits `spec` too; assumed lengths count as they are."""
    return spec._takes(other, lambda a, b: a is None or a == b)


def _holds(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether `other` is the same dtype, or one of strings no wider; "U" and "S", without a width, hold any."""
    return alike(dtype, other) and (dtype.itemsize == 0 or dtype.itemsize >= other.itemsize)


def alike(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Return whether two dtypes are one, but for the width of NumPy's fixed-width strings."""
    return a == b or (a.kind == b.kind and a.kind in "US")


def as_leaf(value: Any) -> Any:
    """A value as penstock holds it: an array or a NumPy scalar; strings, bytes and other objects as they are.

    Python integers become int64, Python floats float32 (also in lists); everything else keeps NumPy's dtype. Python
    strings and bytes stay objects, because NumPy's fixed-width strings drop trailing zero bytes.

    Raises:
        ElementError: a list of unequal rows, a Python number that int64 or float32 cannot hold, a table, a column with
            nulls, or a masked array that masks something.
    """
    kind = type(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return value
    if kind is int:
        try:
            return np.int64(value)
        except OverflowError:
            raise _too_large(value) from None
    if kind is float:
        return np.float32(value) if abs(value) <= _LARGEST else _as_float32(value)[()]
    if kind is bool:
        return np.bool_(value)
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, list):
        return _array_of_list(value)
    if isinstance(value, np.ndarray):
        return _without_its_class(value)
    if hasattr(value, "__array__"):
        _check_array(value)
        return _array_of_other(value)
    check_dense(value)
    return value


def is_untold(leaf: Any) -> bool:
    """Return whether this is NumPy's array of an empty list: float64 without an entry that shows it."""
    return isinstance(leaf, np.ndarray) and leaf.shape == (0,) and leaf.dtype == np.float64


def of_rows_like(leaf: Any, dtype: np.dtype[Any], shape: Sequence[int | None]) -> Any:
    """A leaf among rows of this dtype and shape: an empty list becomes an array of theirs without entries."""
    return np.empty((0, *[length or 0 for length in shape[1:]]), dtype) if shape and is_untold(leaf) else leaf


def check_dense(value: Any) -> None:
    """Raise an ElementError if this is a sparse matrix: it is unknown which of its zeros are wanted."""
    if hasattr(value, "toarray") and hasattr(value, "shape"):
        raise ElementError(
            f"a sparse matrix is no array, got a {type(value).__name__} of shape {value.shape}: make it dense by "
            ".toarray(), or each row when it is read, by ps.Dataset.range(rows.shape[0]).map(lambda i: "
            "rows[[i]].toarray()[0]) of the rows in CSR form"
        )


def _check_array(value: Any) -> None:
    """Refuse what NumPy would take for an array at a loss: tables, and columns of Arrow or polars with nulls."""
    if hasattr(value, "columns") or hasattr(value, "column_names"):
        raise ElementError(
            f"a table is no array, got {type(value).__name__}: from_tensor_slices takes it for a dictionary of columns"
        )
    if not hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__arrow_c_array__"):
        return
    nulls = getattr(value, "null_count", 0)
    if nulls() if callable(nulls) else nulls:
        raise ElementError(
            f"arrays have no nulls, got {type(value).__name__} with some: fill them (fill_null(0)), and give a mask "
            "next to it where they matter"
        )


def _array_of_other(value: Any) -> Array:
    """A tensor, or an array of another library, as NumPy's; of bfloat16 and float8 by the dtypes of ml_dtypes."""
    try:
        name = str(getattr(value, "dtype", "")).removeprefix("torch.")
        if name.startswith(("bfloat16", "float8")) and hasattr(value, "float"):
            exact = np.asarray(value.float())
            return exact.astype(getattr(load("ml_dtypes", "jax", f"NumPy's dtype {name}"), name))
        return np.asarray(value)
    except (TypeError, RuntimeError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ElementError(f"NumPy takes no {kind} of dtype {getattr(value, 'dtype', None)}: {error}") from error


def _without_its_class(array: Array) -> Array:
    """An array of a class derived from NumPy's, such as a matrix, as one of NumPy's own that shares its memory."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.flatten_mask(np.ma.getmaskarray(array)).any():
        raise ElementError(
            "arrays have no masks, got a masked array that masks some values: fill them (array.filled(0)), and give "
            "the mask next to it where it matters"
        )
    return array.view(np.ndarray)


def _array_of_list(value: list[Any]) -> Array:
    sample: Any = value
    while isinstance(sample, (list, tuple)) and sample:
        sample = sample[0]
    if isinstance(sample, (str, bytes)):
        return np.array(value, dtype=object)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ElementError(
            f"a list stands for an array, and must hold rows of equal shape, got {value!r:.200}"
        ) from error
    kind = array.dtype.kind
    if kind == "f" and type(sample) in (int, float, bool) and array.dtype == np.float64:
        return _array_of_floats(value, sample, array)
    if kind in "US" and not isinstance(sample, np.ndarray):
        return np.array(value, dtype=object)  # NumPy would turn numbers into strings
    return array


def _array_of_floats(value: list[Any], sample: Any, array: Array) -> Array:
    """A list as an array, where NumPy has made one of float64 and the first entry is a Python number."""
    if type(sample) is float:
        return _as_float32(array)
    kinds = _types_within(value)
    if kinds <= _INTEGERS:  # too large for int64: NumPy has rounded them
        raise _too_large(value)
    return _as_float32(array) if kinds <= _INTEGERS | {float} else array


def _types_within(value: Any) -> set[type]:
    """The types of the entries of nested lists and tuples."""
    return set().union(*map(_types_within, value)) if isinstance(value, (list, tuple)) else {type(value)}


def _too_large(value: Any) -> ElementError:
    return ElementError(
        f"Python integers become int64, which cannot hold {value!r:.200}: use numpy.uint64 up to 2**64 - 1, floats, or "
        "strings"
    )


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


def spec_of_leaf(leaf: Any) -> LeafSpec:
    """The specification of one leaf."""
    leaf = as_leaf(leaf)
    if not isinstance(leaf, (np.ndarray, np.generic)):
        return TensorSpec((), object)
    if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.size and isinstance(leaf.flat[0], np.ndarray):
        return _spec_of_arrays(leaf)
    return TensorSpec(leaf.shape, leaf.dtype)


def _spec_of_arrays(leaf: Array) -> LeafSpec:
    """The specification of an object array of arrays; of objects, if they are not arrays of one kind."""
    try:
        entry = merged_specs(spec_of_leaf(entry) for entry in leaf.flat)
    except ElementError:
        return TensorSpec(leaf.shape, object)
    return leaf_spec((*leaf.shape, *entry.shape), entry.dtype, leaf.ndim + entry.ragged_rank)


def merged_specs(specs: Iterable[LeafSpec]) -> LeafSpec:
    """The narrowest specification that covers all of these (at least one).

    Raises:
        ElementError: the dtypes or the numbers of axes differ.
    """
    return reduce(merged, dict.fromkeys(specs))


def spec_of(element: Any) -> Any:
    """The specification of an element: its structure with a `TensorSpec` or `RaggedTensorSpec` instead of each leaf.

    Example:
        >>> spec_of({"id": 3, "score": 0.5})
        {'id': TensorSpec(shape=(), dtype=int64), 'score': TensorSpec(shape=(), dtype=float32)}
    """
    return map_structure(spec_of_leaf, element)


def fitted(spec: LeafSpec, value: Any) -> Any:
    """A value in the declared dtype, if that loses nothing; anything else as it is.

    Python numbers, strings and lists get the declared dtype. NumPy strings, whose dtype has a width, also fit a
    wider one, and `object`, the dtype of all strings. For a ragged specification a list is taken for the rows.

    Raises:
        ElementError: a finite number would become infinite.
    """
    if isinstance(value, (np.ndarray, np.generic)) and spec.dtype.kind != "O":
        return value
    if type(value) is list and not value and not spec.ragged_rank:
        return of_rows_like(as_leaf(value), spec.dtype, spec.shape)
    if type(value) in _PYTHON_NUMBERS:
        if spec.ragged_rank and isinstance(value, list):
            rows = np.empty(len(value), object)
            for number, row in enumerate(value):
                rows[number] = fitted(row_of(spec), row)
            return rows
        if spec.dtype.kind not in "US":
            return _number_fitted(spec.dtype, value)
    if spec.dtype.kind in "US":
        return _string_fitted(spec, value)
    leaf = as_leaf(value)
    if spec.dtype.kind == "O" and getattr(leaf, "dtype", spec.dtype).kind in "US":
        return leaf.item() if leaf.ndim == 0 else leaf.astype(object)
    return leaf


def _number_fitted(dtype: np.dtype[Any], value: Any) -> Any:
    try:
        exact = np.asarray(value)
    except ValueError:  # rows of unequal length: as_leaf raises the error
        return as_leaf(value)
    if exact.dtype.kind not in "biufc":
        return as_leaf(value)
    try:
        if dtype.kind in "iu" and exact.dtype.kind == "f" and _types_within(value) <= _INTEGERS:
            return np.asarray(value, dtype)  # integers that NumPy has rounded, since int64 does not hold all of them
        number = cast(exact, dtype)
    except OverflowError as error:
        raise ElementError(f"output_signature cannot hold what the function gave: {error}") from error
    if (dtype.kind in "fc" and exact.dtype.kind in "biuf") or np.array_equal(number, exact):
        return number[()]
    return as_leaf(value)


def _string_fitted(spec: LeafSpec, value: Any) -> Any:
    """Python strings as NumPy's, which cannot hold zero bytes at their ends."""
    try:
        strings = np.asarray(value)
    except ValueError:  # rows of unequal length: as_leaf raises the error
        return as_leaf(value)
    if strings.dtype.kind != spec.dtype.kind:
        return as_leaf(value)
    if strings.tolist() != value:
        raise ElementError(
            f"expected {spec}, got {value!r:.200}: NumPy's strings drop zero bytes (\\x00) at their ends; use object "
            "as the dtype, which keeps Python's"
        )
    return strings[()]


def describe_mismatch(declared: Any, found: Any) -> str | None:
    """Return the mismatch of an element of specification `found` where `declared` was promised; None if it fits."""
    want, want_structure = flatten(declared)
    have, have_structure = flatten(found)
    if want_structure != have_structure:
        return f"expected structure {want_structure}, got {have_structure}"
    for path, a, b in zip(want_structure.paths(), want, have, strict=True):
        if not covers(a, b):
            return f"expected {a}{' at ' + path if path else ''}, got {b}"
    return None
