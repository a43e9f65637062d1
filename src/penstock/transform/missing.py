"""Columns in which values are missing, until something takes their place."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.data.block import object_column
from penstock.errors import ElementError, InvalidTypeError
from penstock.transform.columns import Array, Ragged, is_text, to_column


@dataclass(frozen=True, eq=False)
class Unfilled:
    """Values that a user gave for all rows of a column that `fill_missing` takes.

    Attributes:
        name: that of the column.
        given: an array, a list or an Arrow array, with None, nulls or NaN where values are missing.
        shape: that of each row.
    """

    name: str
    given: Any
    shape: tuple[int | None, ...]

    def missing_rows(self) -> int:
        """Return how many rows have no value: None, null, NaN or an empty string."""
        given = self.given
        if isinstance(given, (pa.Array, pa.ChunkedArray)):
            given = given.to_numpy(zero_copy_only=False) if isinstance(given, pa.Array) else given.to_numpy()
        if isinstance(given, np.ndarray) and given.dtype.kind != "O":
            return int(np.isnan(given).sum()) if given.dtype.kind == "f" else 0
        return sum(row is None or row == "" or row == b"" or row != row for row in given)


def complete(column: Any) -> Any:
    """The column, in which nothing is missing.

    Raises:
        ElementError: something is.
    """
    return to_column(column.name, column.given, column.shape) if isinstance(column, Unfilled) else column


def fill_missing(column: Any, *, value: Any) -> Any:
    """The column with a value in the place of each that is missing; rows of one entry or none become that entry.

    Raises:
        ElementError: a row with several entries.
        InvalidTypeError: a value that is no entry of such a column.
    """
    if not isinstance(column, Unfilled):
        raise InvalidTypeError(f"fill_missing takes a column of the dataset, got {column!r:.100}")
    given = column.given
    if column.shape:
        rows = complete(column)
        if _whole_for_floats(given, value) and isinstance(rows, Ragged) and rows.values.dtype.kind == "i":
            rows = replace(rows, values=rows.values.astype(np.float64))
        return _only_entries(column.name, rows, value)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        given = _of_arrow(column.name, given, value)
    elif not isinstance(given, np.ndarray) or given.dtype.kind == "O":
        entries = [value if entry is None else entry for entry in given]
        if _whole_for_floats(given, value):
            entries = [float(entry) if type(entry) is int else entry for entry in entries]
        given = _of_entries(column.name, entries, value)
    filled = to_column(column.name, given, column.shape)
    if is_text(filled) != isinstance(value, str):
        raise _misfit(column.name, value, "strings" if is_text(filled) else filled.dtype)
    if not is_text(filled):
        # Whether something is missing in these rows must not decide: other rows of the column will show it.
        _check_kind(column.name, value, filled.dtype.kind, filled.dtype)
    if not is_text(filled) and filled.dtype.kind == "f":
        return np.where(np.isnan(filled), filled.dtype.type(value), filled)
    return filled


def _whole_for_floats(given: Any, value: Any) -> bool:
    """Return whether whole numbers may be floats, as 50 for 50.0 in requests in JSON."""
    return isinstance(given, (list, tuple)) and isinstance(value, float)


def _of_arrow(name: str, given: pa.Array, value: Any) -> pa.Array:
    """An Arrow array without nulls."""
    if pa.types.is_integer(given.type):  # Arrow would make 0 of 0.5
        _check_kind(name, value, "i", given.type)
    try:
        return pc.fill_null(given, pa.scalar(value, given.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _misfit(name, value, given.type) from error


def _check_kind(name: str, value: Any, kind: str, told: Any) -> None:
    """Refuse a number that a column of this kind cannot hold.

    Args:
        told: what the column is called in the error.
    """
    if isinstance(value, float) and kind in "iub":
        raise _misfit(name, value, told)


def _of_entries(name: str, entries: list[Any], value: Any) -> Array:
    """Strings or numbers as an array, integers not through floats."""
    if isinstance(value, str):
        if not all(isinstance(entry, (str, bytes)) for entry in entries):
            raise _misfit(name, value, "numbers")
        return object_column(entries)
    kinds = {np.asarray(entry).dtype.kind for entry in entries}
    for kind in kinds:
        _check_kind(name, value, kind, "integers")
    if not kinds <= set("biuf"):
        raise _misfit(name, value, "strings")
    return np.asarray(entries)


def _only_entries(name: str, rows: Any, value: Any) -> Any:
    """The only entry of each row, or the value."""
    if not isinstance(rows, Ragged) or (rows.lengths > 1).any():
        raise ElementError(f"column {name!r}: fill_missing takes rows with one entry at most, got several in a row")
    if is_text(rows.values) != isinstance(value, str):
        raise _misfit(name, value, "strings" if is_text(rows.values) else rows.values.dtype)
    if not is_text(rows.values):
        _check_kind(name, value, rows.values.dtype.kind, rows.values.dtype)
    filled = rows.lengths == 1
    if is_text(rows.values):
        places = np.cumsum(filled) - 1
        found = rows.values.take(pa.array(places, mask=~filled))
        return pc.fill_null(found, pa.scalar(value.encode("utf-8", "surrogateescape"), found.type))
    dense = np.full(len(rows.lengths), value, rows.values.dtype)
    dense[filled] = rows.values
    return dense


def _misfit(name: str, value: Any, kind: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"column {name!r}: fill_missing cannot put {value!r} among {kind}: give a value of the same kind"
    )
