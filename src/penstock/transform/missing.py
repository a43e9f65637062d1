"""Columns in which values are missing, until something takes their place."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ElementError, InvalidTypeError
from penstock.transform.columns import Ragged, is_text, to_column


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
    rows = complete(column) if column.shape else _present(column, value)
    if not isinstance(rows, Ragged) or (rows.lengths > 1).any():
        raise ElementError(
            f"column {column.name!r}: fill_missing takes rows with one entry at most, got several in a row"
        )
    values, filled = rows.values, rows.lengths == 1
    if is_text(values) != isinstance(value, str):
        raise _misfit(column.name, value, "strings" if is_text(values) else values.dtype)
    if is_text(values):
        found = values.take(pa.array(np.cumsum(filled) - 1, mask=~filled))
        return pc.fill_null(found, pa.scalar(value.encode("utf-8", "surrogateescape"), found.type))
    if values.dtype.kind == "i" and isinstance(column.given, (list, tuple)) and isinstance(value, float):
        values = values.astype(np.float64)  # whole numbers may be floats, as 50 for 50.0 in requests in JSON
    # Whether something is missing in these rows must not decide: other rows of the column will show it.
    if values.dtype.kind in "iub" and (isinstance(value, float) or (values.dtype.kind == "b" and value not in (0, 1))):
        raise _misfit(column.name, value, values.dtype)
    try:
        dense = np.full(len(filled), value, values.dtype)
    except OverflowError as error:
        raise _misfit(column.name, value, values.dtype) from error
    dense[filled] = values
    if values.dtype.kind == "f" and not column.shape:
        dense[np.isnan(dense)] = value
    return dense


def _present(column: Unfilled, value: Any) -> Ragged:
    """The values that are not missing, in rows of one or none; where all are, they are like the one to fill in."""
    given = column.given
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if isinstance(given, pa.Array):
        filled, entries = given.is_valid().to_numpy(zero_copy_only=False), given.drop_null()
    elif isinstance(given, np.ndarray) and given.dtype.kind != "O":
        filled, entries = np.ones(len(given), bool), given
    else:
        filled = np.fromiter((entry is not None for entry in given), bool, len(given))
        entries = [entry for entry in given if entry is not None]
    values = to_column(column.name, entries if len(entries) else np.full(0, value), ())
    return Ragged(values, filled.astype(np.int64))


def _misfit(name: str, value: Any, kind: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"column {name!r}: fill_missing cannot put {value!r} among {kind}: give a value of the same kind"
    )
