"""Tables and columns of other libraries as NumPy's, without importing those libraries: by the protocols they speak.

| what                                             | how it is known                           | becomes           |
|--------------------------------------------------|-------------------------------------------|-------------------|
| tables and batches of Arrow, polars frames       | `__arrow_c_stream__` of a struct          | a dictionary      |
| arrays of Arrow, in chunks or not, polars series | `__arrow_c_stream__`, `__arrow_c_array__` | one column        |
| data sets of Hugging Face                        | `with_format`, which offers Arrow         | a dictionary      |
| pandas frames and series                         | their class; Arrow would make NaN a null  | the same by NumPy |

Numbers without nulls in one chunk are not copied. A null is an error: NumPy's numbers have none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgumentError, InvalidTypeError


def as_columns(value: Any, path: str = "") -> Any:
    """A table as a dictionary of columns, an Arrow array as a column; anything else as it is.

    Args:
        value: anything.
        path: what the value is called, for errors.

    Raises:
        InvalidArgumentError: a column with nulls, or two of one name.
        InvalidTypeError: a column of a type that NumPy has no place for, or rows that are not there yet: those of a
            query, or of a data set that can only be iterated.
    """
    if isinstance(value, (np.ndarray, np.generic, list, str, bytes, int, float)):
        return value
    if callable(getattr(value, "collect", None)) and not hasattr(value, "__len__"):
        raise InvalidTypeError(
            f"from_tensor_slices takes rows that are there, got a {type(value).__name__}, whose rows have to be "
            "computed: call .collect() on it"
        )
    columns = _columns(value, path)
    if isinstance(columns, dict) and columns is not value and not columns:
        raise InvalidArgumentError(
            f"from_tensor_slices takes a table with columns, got a {type(value).__name__} without any{_at(path)}"
        )
    return columns


def _columns(value: Any, path: str) -> Any:
    if _is_of_pandas(value):
        if not hasattr(value, "columns"):
            return _of_series(value, path)
        named = _unique([str(name) for name in value.columns])
        return {name: _of_series(value.iloc[:, place], f"{path}[{name!r}]") for place, name in enumerate(named)}
    if hasattr(value, "with_format") and hasattr(value, "column_names"):
        if not hasattr(value, "__len__"):
            raise InvalidTypeError(
                f"from_tensor_slices takes what has a length, got {type(value).__name__}, which can only be iterated: "
                "from_generator(lambda: iter(it)) takes it"
            )
        value = value.with_format("arrow")[:]
    if hasattr(value, "__arrow_c_stream__"):
        return _of_arrow(pa.chunked_array(value), path)
    return _of_arrow(pa.array(value), path) if hasattr(value, "__arrow_c_array__") else value


def _is_of_pandas(value: Any) -> bool:
    return hasattr(value, "iloc") and any(kind.__module__.partition(".")[0] == "pandas" for kind in type(value).__mro__)


def _of_series(series: Any, path: str) -> Any:
    if not isinstance(series.dtype, np.dtype) and hasattr(series.array, "__arrow_array__"):  # pandas's own, with nulls
        return _of_arrow(pa.array(series.array), path)
    return np.asarray(series)


def _unique(names: Sequence[str]) -> Sequence[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(f"from_tensor_slices takes a table whose columns have different names, got {twice}")
    return names


def _of_arrow(array: pa.Array | pa.ChunkedArray, path: str) -> Any:
    """An Arrow array as a column; a struct as a dictionary of columns."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # too long for one array
        array = pa.concat_arrays(array.chunks)
    _check_nulls(array, path)
    kind = array.type
    if isinstance(array, pa.FixedShapeTensorArray):
        return array.to_numpy_ndarray()
    if isinstance(kind, pa.BaseExtensionType):
        return _of_arrow(array.storage, path)
    if pa.types.is_dictionary(kind):
        return _of_arrow(array.dictionary, path)[array.indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_struct(kind):
        names = _unique([kind.field(number).name for number in range(kind.num_fields)])
        columns = array.flatten()
        return {name: _of_arrow(column, f"{path}[{name!r}]") for name, column in zip(names, columns, strict=True)}
    if pa.types.is_fixed_size_list(kind):
        values = _of_arrow(array.flatten(), path)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return values.reshape(len(array), kind.list_size, *values.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _rows(array, path)
    if _has_a_place(kind):
        return array.to_numpy(zero_copy_only=False)
    raise InvalidTypeError(
        f"from_tensor_slices takes numbers, strings, bytes, times, and lists and structs of them, got {kind}"
        f"{_at(path)}: cast the column, or leave it out"
    )


def _rows(array: pa.Array, path: str) -> Any:
    """Lists as an object column with one array per row, each a view of the values."""
    values = _of_arrow(array.flatten(), path)
    if isinstance(values, dict):
        raise InvalidTypeError(f"from_tensor_slices takes lists of numbers or strings, got {array.type}{_at(path)}")
    ends = np.cumsum(array.value_lengths().to_numpy(zero_copy_only=False)) if len(array) else np.zeros(0, np.int64)
    rows = np.empty(len(array), dtype=object)
    start = 0
    for number, end in enumerate(ends.tolist()):
        rows[number] = values[start:end]
        start = end
    return rows


def _has_a_place(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
        pa.types.is_timestamp,
        pa.types.is_date,
        pa.types.is_duration,
    )
    return any(test(kind) for test in tests)


def _check_nulls(array: pa.Array, path: str) -> None:
    if array.null_count:
        raise InvalidArgumentError(
            f"from_tensor_slices takes columns without nulls, got {array.null_count} of {len(array)}{_at(path)} "
            f"({array.type}): leave these rows out (table.drop_null() in Arrow), fill them (column.fill_null(0)), or "
            "give a mask next to what is filled: {'x': column.fill_null(0), 'x_is_valid': column.is_valid()}"
        )


def _at(path: str) -> str:
    return f" at {path}" if path else ""
