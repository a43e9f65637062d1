"""The values that operations work on: arrays, texts in Arrow, and ragged columns of either.

Users give NumPy arrays, lists and Arrow arrays, and get NumPy arrays: object arrays where rows are strings, or differ
in length.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.data.block import column_of, object_column
from penstock.errors import ElementError, InvalidTypeError
from penstock.preprocessing.text import Tokens
from penstock.preprocessing.tokens import TEXT, decoded, text_array

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged(Tokens):
    """Rows of unequal length, one after the other: tft's ragged tensors, and its sparse ones, aligned to the left.

    Attributes:
        shape: that of texts which all rows of all blocks have; None where rows differ. Numbers are an array then.
    """

    shape: tuple[int, ...] | None = None


def is_text(value: Any) -> bool:
    """Return whether this is a column of strings, one for each row."""
    return isinstance(value, pa.Array)


def in_rows_of(column: Any, values: Any) -> Any:
    """Values for those of a column, as a column of the same rows."""
    if not isinstance(column, Ragged):
        return values if is_text(column) or is_text(values) else np.asarray(values).reshape(column.shape)
    if column.shape is None or is_text(values):
        return Ragged(values, column.lengths, column.shape)
    return np.asarray(values).reshape(len(column.lengths), *column.shape)


def flat(value: Any) -> Any:
    """The values of all rows, one after the other: an array of one axis, or texts."""
    if isinstance(value, Ragged):
        return value.values
    return value if is_text(value) else np.asarray(value).reshape(-1)


def as_ragged(column: Any) -> Ragged:
    """A column as rows of values, one after the other."""
    if isinstance(column, Ragged):
        return column
    shape = () if is_text(column) else column.shape[1:]
    return Ragged(flat(column), np.full(len(column), int(np.prod(shape)), np.int64), shape)


def to_column(name: str, given: Any, shape: tuple[int | None, ...] | None = None) -> Any:
    """Return the values that a user gave for all rows of a feature, as operations take them.

    Args:
        name: that of the feature, for errors.
        given: an array, a list or an Arrow array.
        shape: that of each row, with None where rows differ; None if it is unknown.

    Raises:
        InvalidTypeError: they are neither numbers nor strings, nor lists of them.
        ElementError: missing integers or strings, or rows of another shape. A row of lists that is None is empty.

    Example:
        >>> to_column("words", [["a"], ["b", "c"]]).lengths.tolist()
        [1, 2]
    """
    if shape and isinstance(given, (list, tuple)):
        given = [[] if row is None else row for row in given]
    column = _converted(name, given)
    return column if shape is None else _in_shape(name, column, shape)


def _in_shape(name: str, column: Any, shape: tuple[int | None, ...]) -> Any:
    """Rows that may differ as ragged ones, though these happen to agree; rows that must agree as an array."""
    if is_text(column):
        if shape:
            raise _other_shape(name, shape, "a string for each row")
        return column
    if isinstance(column, Ragged):
        if column.shape is not None and len(column.shape) > 1:
            if column.shape != shape:
                raise _other_shape(name, shape, str(column.shape))
            return column
        if None in shape:
            return Ragged(column.values, column.lengths)
        if len(shape) != (1 if is_text(column.values) else column.values.ndim) or (column.lengths != shape[0]).any():
            found = sorted({int(length) for length in column.lengths})
            raise _other_shape(name, shape, f"rows of lengths {str(found)[:100]}")
        if is_text(column.values):
            return Ragged(column.values, column.lengths, (shape[0] or 0,))
        return column.values.reshape(len(column.lengths), *shape)
    if None in shape and column.ndim == len(shape) + 1 > 1:
        return Ragged(column.reshape(-1, *column.shape[2:]), np.full(len(column), column.shape[1], np.int64))
    if column.ndim != len(shape) + 1 or any(size not in (None, own) for size, own in zip(shape, column.shape[1:])):
        raise _other_shape(name, shape, str(column.shape[1:]))
    return column


def _other_shape(name: str, shape: tuple[int | None, ...], got: str) -> ElementError:
    return ElementError(
        f"column {name!r}: expected rows of shape {shape}, as the first ones of the analysis, got {got}: where rows "
        "may differ in length, declare it by map(..., output_signature=...) with ps.TensorSpec((None,))"
    )


def weights_of(call: str, column: Any) -> Array:
    """A column of weights.

    Raises:
        InvalidTypeError: they are no numbers.
    """
    values = flat(column)
    if is_text(values) or values.dtype.kind not in "biuf":
        raise InvalidTypeError(
            f"{call}(weights=...) takes numbers, got {'strings' if is_text(values) else values.dtype}"
        )
    return np.asarray(values, np.float64)


def _converted(name: str, given: Any) -> Any:
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return _of_arrow(name, given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given)
    if isinstance(given, np.ndarray):
        array = given
    elif isinstance(given, (list, tuple)):
        array = _of_list(name, given)
    else:
        raise InvalidTypeError(f"column {name!r}: expected an array with a row for each element, got {given!r:.100}")
    if array.ndim == 0:
        raise InvalidTypeError(
            f"column {name!r}: expected an array with a row for each element, got a single {given!r}"
        )
    if array.dtype.kind in "biuf":
        return array
    if array.dtype.kind in "OUST":
        return _of_objects(name, array)
    raise InvalidTypeError(f"column {name!r}: expected numbers or strings, got {array.dtype}")


def _of_list(name: str, given: Any) -> Array:
    entries = [np.asarray(entry) if isinstance(entry, (list, tuple)) else entry for entry in given]
    if any(isinstance(entry, (str, bytes, np.ndarray)) or entry is None for entry in entries):
        return object_column(entries)
    try:
        return np.asarray(entries)
    except ValueError as error:
        raise InvalidTypeError(f"column {name!r}: {error}") from error


def _of_objects(name: str, array: Array) -> Any:
    if array.dtype.kind == "O" and array.ndim == 1 and any(isinstance(row, np.ndarray) for row in array):
        return _of_rows(name, list(array))
    flat_array = array.reshape(-1)
    try:
        texts, _ = text_array(f"column {name!r}", flat_array)
    except InvalidTypeError as error:
        missing = [number for number, entry in enumerate(flat_array) if entry is None]
        if not missing:
            raise
        row = missing[0] // max(int(np.prod(array.shape[1:])), 1)
        raise ElementError(
            f"column {name!r}: row {row} of the block is missing (None): give ps.transform.fill_missing(column, value) "
            "to whatever takes the column, or leave such rows out by dataset.filter"
        ) from error
    if array.ndim == 1:
        return texts
    shape = array.shape[1:]
    return Ragged(texts, np.full(len(array), int(np.prod(shape)), np.int64), shape)


def _of_rows(name: str, rows: list[Any]) -> Any:
    """Rows that are arrays, which may differ in length, and must agree in their other axes."""
    for number, row in enumerate(rows):
        if not isinstance(row, np.ndarray) or row.ndim == 0:
            raise ElementError(f"column {name!r}: row {number} of the block is {row!r:.100}, where others are lists")
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    filled = [row for row in rows if row.size] or rows[:1]  # an empty list says nothing of its dtype
    if len({row.shape[1:] for row in filled}) > 1:
        shapes = sorted({row.shape for row in filled})
        raise ElementError(f"column {name!r}: rows may differ in their first axis only, got shapes {str(shapes)[:100]}")
    if rows[0].ndim > 1 and len({row.shape for row in rows}) == 1:
        return _converted(name, np.stack(rows))
    values = _converted(name, np.concatenate(filled))
    if isinstance(values, Ragged):
        raise ElementError(f"column {name!r}: strings in rows with two axes must have one shape in all rows")
    return Ragged(values, lengths)


def _of_arrow(name: str, array: pa.Array) -> Any:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _of_arrow(name, array.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if pa.types.is_nested(kind.value_type):
            return _converted(name, array.to_pylist())
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        return Ragged(_of_arrow(name, array.flatten()), lengths.to_numpy(zero_copy_only=False).astype(np.int64))
    if array.null_count and not pa.types.is_floating(kind):
        raise ElementError(
            f"column {name!r}: {array.null_count} values are missing (null): give ps.transform.fill_missing(column, "
            "value) to whatever takes the column"
        )
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array.to_numpy(zero_copy_only=False)
    return text_array(f"column {name!r}", array)[0]


def missing_rows(column: Any) -> int:
    """Return how many rows have no value: NaN, an empty string, or no entries."""
    if isinstance(column, Ragged):
        return int(np.count_nonzero(column.lengths == 0))
    if is_text(column):
        return len(column) - int(np.count_nonzero(pc.binary_length(column)))
    if column.dtype.kind != "f":
        return 0
    return int(np.isnan(column).reshape(len(column), -1).any(axis=1).sum()) if np.isnan(column.sum()) else 0


def to_array(value: Any) -> Array:
    """Return an operation's result, as users get it."""
    if isinstance(value, Ragged):
        inner = to_array(value.values)
        if value.shape is not None:
            return inner.reshape(len(value.lengths), *value.shape)
        return (
            object_column(np.split(inner, np.cumsum(value.lengths)[:-1])) if len(value.lengths) else column_of([inner])
        )
    if is_text(value):
        return decoded(value, "utf-8")
    return np.asarray(value)


def texts_of(value: Any) -> pa.LargeBinaryArray:
    """Texts, or integers as texts: what vocabularies and keys hold.

    Raises:
        InvalidTypeError: floats.
    """
    values = flat(value)
    if is_text(values):
        return values
    if values.dtype.kind not in "iub":
        raise InvalidTypeError(f"expected strings or integers, got {values.dtype}")
    return pa.array(np.ascontiguousarray(values)).cast(pa.large_string()).cast(TEXT)


def places_among(keys: pa.LargeBinaryArray, names: Any) -> Integers:
    """Return the place of each name among keys; -1 for one that is not there."""
    found = pc.fill_null(pc.index_in(texts_of(names), value_set=keys), -1)
    return found.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # Arrow has no types
