"""Constants, indices and casts: what operations of a graph hold as plain data."""

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ElementError, InvalidTypeError
from penstock.preprocessing.tokens import TEXT
from penstock.transform.columns import Ragged, in_rows_of, is_text


def plain_array(value: Any) -> dict[str, Any]:
    """An array or texts as data for JSON; floats as the shortest decimals that give them back."""
    if isinstance(value, pa.Array):
        return {"texts": [text.decode("utf-8", "surrogateescape") for text in value.to_pylist()]}
    array = np.asarray(value)
    data = array.astype(np.float64).tolist() if array.dtype.kind == "f" else array.tolist()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": _finite(data)}


def _finite(data: Any) -> Any:
    """Numbers for strict JSON, which has no NaN and no infinity."""
    if isinstance(data, list):
        return [_finite(entry) for entry in data]
    return repr(data) if isinstance(data, float) and not np.isfinite(data) else data


def constant_value(**plain: Any) -> Any:
    """The value that `plain_array` or `symbols.constant` wrote."""
    if "texts" in plain:
        return pa.array([text.encode("utf-8", "surrogateescape") for text in plain["texts"]], TEXT)
    if "data" in plain:
        return np.array(plain["data"], object).astype(plain["dtype"]).reshape(plain["shape"])
    return float(plain["float"]) if "float" in plain else plain["value"]


def cast(column: Any, *, dtype: str) -> Any:
    """Numbers in another dtype; texts as the numbers they spell."""
    values = column.values if isinstance(column, Ragged) else column
    if is_text(values):
        if np.dtype(dtype).kind not in "iuf":
            raise InvalidTypeError(f"astype({np.dtype(dtype)}): strings can be cast to numbers only")
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        cast_values = values.cast(pa.large_string()).cast(kind).to_numpy(zero_copy_only=False)
    else:
        cast_values = np.asarray(values).astype(dtype, copy=False)
    return in_rows_of(column, cast_values)


def index(column: Any, *, index: list[Any]) -> Any:
    """Some positions of each element."""
    if not isinstance(column, np.ndarray):
        raise InvalidTypeError("an index takes positions of dense numbers, got a ragged column or strings")
    places = sum(entry not in (None, "...") for entry in index)
    if places + (index[0] == "...") > column.ndim:
        raise ElementError(f"an index of {places} axes is too long for elements of shape {column.shape[1:]}")
    try:
        return column[tuple(_entry(entry) for entry in index)]
    except IndexError as error:
        raise ElementError(f"elements of shape {column.shape[1:]}: {error}") from error


def _entry(entry: Any) -> Any:
    if entry == "...":
        return Ellipsis
    return slice(*entry["slice"]) if isinstance(entry, dict) else entry
