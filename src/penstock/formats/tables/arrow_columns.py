"""Tables and columns of other libraries as NumPy's, without importing those libraries: by the protocols they speak.

| what                                             | how it is known                           | becomes           |
|--------------------------------------------------|-------------------------------------------|-------------------|
| tables and batches of Arrow, polars frames       | `__arrow_c_stream__` of a struct          | a dictionary      |
| arrays of Arrow, in chunks or not, polars series | `__arrow_c_stream__`, `__arrow_c_array__` | one column        |
| data sets of Hugging Face                        | `with_format`, which offers Arrow         | a dictionary      |
| pandas frames and series                         | their class; Arrow would make NaN a null  | the same by NumPy |

Numbers without nulls in one chunk are not copied, nor are lists of them that all have one length, which become an
array with one more axis. Lists within lists stay arrays of arrays, unless their type fixes their length: the type of a
row must not depend on the others. Lists of structs, and maps, become Python's objects (`objects.py`). Elsewhere a null
is an error, as NumPy's numbers have none, unless it is masked (`nulls.py`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.tables.nulls import MaskNulls, masked
from penstock.formats.tables.objects import Objects, holds_objects, innermost, is_list
from penstock.spec import TensorSpec
from penstock.structure import flatten, map_structure

_IN_NUMPY: Final = frozenset(
    kind.id
    for kind in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.timestamp("s"), pa.date32(), pa.date64(), pa.duration("s")),
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        pa.binary(1),
    )
)
"""The types whose arrays Arrow turns into NumPy's."""
DEEPEST: Final = 64
_READERS: Final = ("CsvDataset", "DeltaDataset", "IcebergDataset", "JsonLinesDataset", "LanceDataset", "ParquetDataset")
"""The readers that take `columns`, `types` and `mask_nulls`."""
_MASKING: Final = (*_READERS, "from_arrow_stream", "from_source")


class _ColumnPath(NamedTuple):
    """The call that a column was given to, and its path in the argument."""

    call: str
    path: str = ""
    column: str = ""
    """Of the table, in which it is."""

    def of(self, name: str) -> "_ColumnPath":
        """A column of the table at this path."""
        return _ColumnPath(self.call, f"{self.path}[{name!r}]", self.column or name)

    def __str__(self) -> str:
        return f" at {self.path}" if self.path else ""


def as_columns(value: Any, path: str = "", call: str = "from_tensor_slices") -> Any:
    """A table as a dictionary of columns, an Arrow array as a column; anything else as it is.

    Args:
        value: anything.
        path: the name of the value, for errors.
        call: the method that it was given to.

    Raises:
        InvalidArgumentError: a column with nulls, or two of one name.
        InvalidTypeError: a column of a type that NumPy has no place for, or rows that are not there yet: those of a
            query, or of a data set that can only be iterated.
    """
    if isinstance(value, (np.ndarray, np.generic, list, str, bytes, int, float)):
        return value
    _check_computed(value, call)
    # An array first, though those of xarray speak Arrow as well, which would make one column of all their numbers.
    if hasattr(value, "__array__") and isinstance(getattr(value, "dtype", None), np.dtype) and not _is_of_pandas(value):
        return np.asarray(value)
    where = _ColumnPath(call, path)
    columns = _columns(value, where)
    if isinstance(columns, dict) and columns is not value and not flatten(columns)[0]:
        raise InvalidArgumentError(
            f"{call} takes a table with columns of values, got a {type(value).__name__} without any{where}"
        )
    return columns


def arrow_table(data: Any, mask_nulls: MaskNulls) -> Any:
    """A table of an object with Arrow's protocol, its nulls masked by `masked`; pandas's frames only with masks.

    Raises:
        InvalidTypeError: something else.
        InvalidArgumentError: what cannot be masked.
    """
    _check_computed(data, "from_arrow")
    if _is_of_pandas(data) and not mask_nulls:
        return data  # its own columns, of which NumPy's are not copied, and NaN is no null
    stream, array = (hasattr(data, f"__arrow_c_{kind}__") for kind in ("stream", "array"))
    if not stream and not array:
        raise InvalidTypeError(
            f"from_arrow(data=...) takes a table of Arrow or an object that offers one (__arrow_c_stream__), got "
            f"{type(data).__name__}: from_tensor_slices takes dictionaries of arrays"
        )
    try:
        table = pa.table(data) if stream else pa.table(pa.record_batch(data))
    except (pa.ArrowInvalid, TypeError) as error:
        raise InvalidTypeError(f"from_arrow(data=...) takes a table, got a column, or none: {error}") from error
    return masked(table, mask_nulls, "from_arrow")


def batches_of(stream: Any) -> Iterator[pa.Table]:
    """The batches of an object with Arrow's protocol for streams.

    Raises:
        InvalidTypeError: something else.
    """
    if not hasattr(stream, "__arrow_c_stream__"):
        raise InvalidTypeError(
            "from_arrow_stream(make=...) takes a function that opens a stream of Arrow (__arrow_c_stream__), got one "
            f"that gives a {type(stream).__name__}"
        )
    return (pa.Table.from_batches([batch]) for batch in pa.RecordBatchReader.from_stream(stream))


def _check_computed(value: Any, call: str) -> None:
    if callable(getattr(value, "collect", None)) and not hasattr(value, "__len__"):
        raise InvalidTypeError(
            f"{call} takes rows that are there, got a {type(value).__name__}, whose rows have to be "
            "computed: call .collect() on it"
        )


def check_depth(kind: pa.DataType, call: str, where: str) -> None:
    """Refuse a type that is nested so deeply that recursion would fail.

    Raises:
        InvalidTypeError: it is one.
    """
    level = [kind]
    for _ in range(DEEPEST):
        level = [one.field(number).type for one in level for number in range(one.num_fields)]
        if not level:
            return
    raise InvalidTypeError(
        f"{call} takes lists and structs up to {DEEPEST} within each other, got more{where}: skip the column, or read "
        "it as text"
    )


def _columns(value: Any, where: _ColumnPath) -> Any:
    if _is_of_pandas(value):
        if not hasattr(value, "columns"):
            return _of_series(value, where)
        named = _unique([str(name) for name in value.columns], where)
        return {name: _of_series(value.iloc[:, number], where.of(name)) for number, name in enumerate(named)}
    if hasattr(value, "with_format") and hasattr(value, "column_names"):
        if not hasattr(value, "__len__"):
            raise InvalidTypeError(
                f"{where.call} takes data with a length, got {type(value).__name__}, which can only be iterated: "
                "from_generator(lambda: iter(it)) takes it"
            )
        value = value.with_format("arrow")[:]
    if isinstance(value, pa.Table):
        named = _unique(value.column_names, where)
        for name, kind in zip(named, value.schema.types, strict=True):
            check_depth(kind, where.call, str(where.of(name)))
        return {name: _of_arrow(column, where.of(name)) for name, column in zip(named, value.columns, strict=True)}
    if hasattr(value, "__arrow_c_stream__"):
        return _of_arrow(pa.chunked_array(value), where)
    return _of_arrow(pa.array(value), where) if hasattr(value, "__arrow_c_array__") else value


def _is_of_pandas(value: Any) -> bool:
    return hasattr(value, "iloc") and any(kind.__module__.partition(".")[0] == "pandas" for kind in type(value).__mro__)


def _of_series(series: Any, where: _ColumnPath) -> Any:
    if not isinstance(series.dtype, np.dtype) and hasattr(series.array, "__arrow_array__"):  # pandas's own, with nulls
        return _of_arrow(pa.array(series.array), where)
    return np.asarray(series)


def _unique(names: Sequence[str], where: _ColumnPath) -> Sequence[str]:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidArgumentError(f"{where.call} takes a table whose columns have different names, got {twice}")
    return names


def varies_in_shape(kind: pa.DataType) -> bool:
    """True if values of a type may differ in shape, or if only reading them shows their shape."""
    if pa.types.is_struct(kind):
        return any(varies_in_shape(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        inner = kind.value_type
        if pa.types.is_fixed_size_list(inner):
            return varies_in_shape(inner)
        return not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner))
    return bool(pa.types.is_nested(kind))


def without_rows(schema: pa.Schema) -> pa.Table:
    """A table of these columns; Arrow makes none of tensors."""
    columns = []
    for kind in schema.types:
        is_extended = isinstance(kind, pa.BaseExtensionType)
        column = pa.array([], kind.storage_type if is_extended else kind)
        columns.append(pa.ExtensionArray.from_storage(kind, column) if is_extended else column)
    return pa.table(columns, schema=schema)


def spec_of(empty: pa.Table, mask_nulls: MaskNulls, call: str) -> Any:
    """The specification of the rows of a table, given without them; None if only reading a row shows it.

    Raises:
        InvalidTypeError: a column of a type that NumPy does not have.
        InvalidArgumentError: what cannot be masked.
    """
    table = masked(empty, mask_nulls, call)
    columns = as_columns(table, call=call)
    unknown = any(map(varies_in_shape, table.schema.types))
    return None if unknown else map_structure(lambda column: TensorSpec(column.shape[1:], column.dtype), columns)


@lru_cache(1024)
def values_of(kind: pa.DataType) -> str:
    """A name for a type's values in NumPy: the same for types whose rows are alike.

    Example:
        >>> values_of(pa.list_(pa.large_string())), values_of(pa.struct({"at": pa.timestamp("s", "UTC")}))
        ('lists of strings', "{'at': datetime64[s]}")
    """
    if isinstance(kind, pa.BaseExtensionType):
        return values_of(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return values_of(kind.value_type)
    if pa.types.is_struct(kind):
        return "{" + ", ".join(f"{field.name!r}: {values_of(field.type)}" for field in kind) + "}"
    if pa.types.is_fixed_size_list(kind):
        return f"lists of {kind.list_size} {values_of(kind.value_type)}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"lists of {values_of(kind.value_type)}"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "strings"
    if kind.id not in _IN_NUMPY:
        return str(kind)
    dtype = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return "bytes" if dtype.kind == "O" else str(dtype)


def _of_arrow(array: pa.Array | pa.ChunkedArray, where: _ColumnPath, within: bool = False) -> Any:
    """An Arrow array as a column; a struct as a dictionary of columns.

    Args:
        array: of one column, or the values of all lists of one.
        where: the name of the column, for errors.
        within: whether these are values of lists.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # too long for one array
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    is_plain = kind.id in _IN_NUMPY
    if within and pa.types.is_null(kind) and not len(array):  # lists that are all empty do not show their type
        return np.empty(0, object)
    for inner in () if is_plain or pa.types.is_struct(kind) else innermost(kind):
        _check_type(inner, kind, where)
    if array.null_count:
        raise InvalidArgumentError(
            f"{where.call} takes columns without nulls, got {array.null_count} of {len(array)}{where} "
            f"({kind.value_type if pa.types.is_dictionary(kind) else kind}): {_without_nulls(where)}"
        )
    if is_plain or holds_objects(kind):
        try:
            if is_plain:
                return array.to_numpy(zero_copy_only=False)
            array.validate(full=True)  # here, where errors name the column
            return Objects(array)
        except pa.ArrowException as error:
            advice = f"types={{{where.column!r}: bytes}} takes" if where.call in _READERS else "a binary column keeps"
            raise InvalidArgumentError(
                f"{where.call} takes strings in UTF-8, got other bytes{where}: {advice} them as they are"
            ) from error
    if isinstance(array, pa.FixedShapeTensorArray):
        return array.to_numpy_ndarray()
    if isinstance(kind, pa.BaseExtensionType):
        return _of_arrow(array.storage, where, within)
    if pa.types.is_dictionary(kind):
        return _of_arrow(array.dictionary, where, within)[array.indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_struct(kind):
        names = _unique([kind.field(number).name for number in range(kind.num_fields)], where)
        columns = array.flatten()
        return {name: _of_arrow(column, where.of(name), within) for name, column in zip(names, columns, strict=True)}
    if pa.types.is_fixed_size_list(kind):
        values = _of_arrow(array.flatten(), where, within=True)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return values.reshape(len(array), kind.list_size, *values.shape[1:])
    return _rows(array, where, within)


def _check_type(kind: pa.DataType, column: pa.DataType, where: _ColumnPath) -> None:
    """Refuse a type of values that NumPy cannot hold, with advice about their column."""
    if kind.id in _IN_NUMPY or (pa.types.is_null(kind) and (is_list(column) or holds_objects(column))):
        return
    near = f"np.int{kind.bit_width}" if pa.types.is_time(kind) else "np.float64" if pa.types.is_decimal(kind) else "..."
    if where.call not in _READERS:
        advice = f"cast the column, by column.cast({near.replace('np.', 'pa.') + '()' * (near != '...')}), or drop it"
    elif kind != column or where.path != f"[{where.column!r}]" or near == "...":
        advice = f"give another type for the column by types={{{where.column!r}: ...}}, or skip it by columns=[...]"
    else:
        advice = f"types={{{where.column!r}: {near}}} converts it, and columns=[...] skips it"
    raise InvalidTypeError(
        f"{where.call} takes numbers, strings, bytes, times, and lists, structs and maps of them, got {kind}{where}: "
        f"{advice}"
    )


def _rows(array: pa.Array, where: _ColumnPath, within: bool) -> Any:
    """Lists as an array with one more axis if they have one length, else as one array per row; not copied."""
    values = _of_arrow(array.flatten(), where, within=True)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) and not within and values.dtype != object and (lengths == lengths[0]).all():
        return values.reshape(len(lengths), lengths[0], *values.shape[1:])
    ends = np.cumsum(lengths)
    spans = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return np.fromiter((values[start:end] for start, end in spans), object, len(lengths))


def _without_nulls(where: _ColumnPath) -> str:
    """Advice about nulls."""
    if where.call not in _MASKING:
        return (
            "drop these rows (table.drop_null() in Arrow), fill them (column.fill_null(0)), or give a mask next to the "
            "filled column: {'x': column.fill_null(0), 'x_is_valid': column.is_valid()}, as "
            "ps.Dataset.from_arrow(table, mask_nulls=True) does"
        )
    masks = (
        f"mask_nulls=[{where.column!r}] makes zeros or empty strings of them, and adds a column "
        f"{where.column + '_is_valid'!r}"
    )
    if where.call not in ("DeltaDataset", "ParquetDataset") or where.path != f"[{where.column!r}]":
        return masks
    return f"{masks}, and filter=pc.field({where.column!r}).is_valid() skips the rows"
