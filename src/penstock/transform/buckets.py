"""Numbers to buckets between boundaries, as tft assigns them."""

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.transform.columns import Array, Ragged, in_rows_of, is_text, places_among
from penstock.transform.operations import spread


def apply_buckets(column: Any, boundaries: Any) -> Any:
    """The number of boundaries that are not larger, as int64; with rows of boundaries, each position by its own."""
    boundaries = np.asarray(boundaries)
    if isinstance(column, Ragged):
        return in_rows_of(column, _assigned(column.values, boundaries.reshape(-1)))
    if boundaries.ndim < 2 or boundaries.shape[:-1] in ((1,), ()) or column.ndim == 1:
        return _assigned(column, boundaries.reshape(-1))
    places = column.reshape(len(column), -1)
    rows = boundaries.reshape(-1, boundaries.shape[-1])
    found = [_assigned(places[:, number], row) for number, row in enumerate(rows)]
    return np.stack(found, axis=1).reshape(column.shape)


def _assigned(values: Array, boundaries: Array) -> Array:
    if np.asarray(values).dtype.kind not in "biuf":
        raise InvalidTypeError("buckets are of numbers, got strings")
    if boundaries.dtype.kind == "f" and values.dtype != np.float64:
        values = values.astype(boundaries.dtype)
    return np.searchsorted(boundaries, values, side="right").astype(np.int64)


def apply_buckets_with_interpolation(column: Any, boundaries: Any) -> Any:
    """The place of each number between the boundaries, from 0 to 1; NaN gets 0.5.

    Raises:
        InvalidArgumentError: no finite boundary.
    """
    values = column.values if isinstance(column, Ragged) else column
    if is_text(values) or values.dtype.kind not in "iuf":
        kind = "strings" if is_text(values) else values.dtype
        raise InvalidTypeError(f"apply_buckets_with_interpolation takes numbers, got {kind}")
    borders = np.asarray(boundaries).reshape(-1)
    borders = borders[np.isfinite(borders)]
    if len(borders) == 0:
        raise InvalidArgumentError("apply_buckets_with_interpolation needs a finite boundary, got none")
    kind = np.float64 if values.dtype == np.float64 else np.float32
    number = _assigned(values, borders)
    if len(borders) == 1:
        result = (number > 0).astype(kind)
    else:
        upper, lower = (
            np.append(borders, borders[-1])[number].astype(kind),
            borders[np.maximum(number - 1, 0)].astype(kind),
        )
        width = upper - lower
        inside = (number > 0) & (number < len(borders))
        share = np.divide(values.astype(kind) - lower, width, out=np.full(values.shape, 0.5, kind), where=width != 0)
        result = (np.maximum(number - 1, 0) + np.where(inside, share, 0)).astype(kind) / kind(len(borders) - 1)
        if values.dtype.kind == "f":
            result = np.where(np.isnan(values), kind(0.5), result)
    return in_rows_of(column, result)


def apply_buckets_per_key(column: Any, key: Any, keys: pa.LargeBinaryArray, boundaries: Array) -> Any:
    """The bucket of each number between the boundaries of its key, the last of NaN; -1 for a key that was not seen."""
    values, names = spread("bucketize_per_key", column, key)
    places = places_among(keys, names)
    borders = np.concatenate([boundaries, np.zeros((1, boundaries.shape[1]), boundaries.dtype)])[places]
    found = (~(values.astype(boundaries.dtype)[:, None] < borders)).sum(axis=1)  # NaN is in the last one
    found = np.where(places < 0, -1, found).astype(np.int64)
    return in_rows_of(column, found)
