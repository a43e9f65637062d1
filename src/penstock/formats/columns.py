"""Columns of rows as typed Arrow arrays, and back without a copy where the rows have one shape.

| rows                                | Arrow                                                                 |
|-------------------------------------|-----------------------------------------------------------------------|
| numbers of one shape                | fixed_size_list of the number type, or the type itself for scalars    |
| other fixed-width dtypes            | the same over fixed_size_binary, with NumPy's dtype in the metadata   |
| arrays of unequal shape             | struct of a list of values and a list of lengths                      |
| strings, bytes                      | large_string, large_binary                                            |
| dictionaries, lists, pairs          | large_binary, as `packed_objects.py` packs them                       |

The metadata of a field describes how to read it: {"kind": …, "dtype": …, "shape": …}.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError
from penstock.formats.packed_objects import CONTAINERS, pack, unpack
from penstock.formats.plain_data import dtype_of_data, dtype_to_data

Column = npt.NDArray[Any]

_NUMBER_KINDS = "iuf"
_METADATA_KEY = b"penstock"
_PREFIX: Final = struct.Struct("<II")
"""A sign and the length of Arrow's description of the columns, with which a stream begins."""


def encode_columns(columns: Sequence[Column], metadata: Mapping[bytes, str] | None = None) -> pa.Buffer:
    """Columns and metadata as a stream of Arrow's with one batch.

    Raises:
        InvalidTypeError: as `encode_column`.
    """
    encoded = [encode_column(str(number), column) for number, column in enumerate(columns)]
    fields, arrays = zip(*encoded, strict=True)
    schema = pa.schema(fields, metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(list(arrays), schema=schema))
    return sink.getvalue()


def read_batch(stream: pa.Buffer) -> tuple[pa.Schema, pa.RecordBatch]:
    """The schema and the batch of `encode_columns`: views of the stream, and one schema for all streams like it."""
    start = _PREFIX.size + _PREFIX.unpack(stream.slice(0, _PREFIX.size))[1]
    schema = _schema(stream.slice(0, start).to_pybytes())
    return schema, pa.ipc.read_record_batch(stream.slice(start), schema)


@lru_cache(maxsize=64)  # reading it takes longer than reading a few rows
def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def decode_columns(batch: pa.RecordBatch) -> tuple[Column, ...]:
    """The columns of `encode_columns`, which are views of the batch where rows have one shape."""
    return tuple(map(decode_column, batch.schema, batch.columns))


def encode_column(name: str, column: Column) -> tuple[pa.Field, pa.Array]:
    """A column as an Arrow field and array.

    Raises:
        InvalidTypeError: Python objects that are neither strings nor bytes nor arrays of numbers, nor dictionaries and
            lists of plain values, or strings that are not valid Unicode.
    """
    if column.dtype.kind == "V" and column.dtype.isbuiltin != 2:
        raise InvalidTypeError(f"cannot store values of dtype {column.dtype}: use one array for each field")
    if column.dtype.kind == "T":
        raise InvalidTypeError(f"cannot store values of dtype {column.dtype}: convert them by map, to objects")
    if column.dtype.kind != "O":
        array = _encode_dense(column)
        return _field(
            name, array, {"kind": "dense", "dtype": dtype_to_data(column.dtype), "shape": column.shape[1:]}
        ), array
    if column.ndim > 1:
        rows = np.empty(len(column), dtype=object)
        rows[:] = list(column)
        column = rows
    kinds = {type(entry) for entry in column}
    if kinds <= {str}:
        try:
            array = pa.array(column.tolist(), pa.large_string())
        except UnicodeEncodeError as error:
            raise not_unicode(error) from error
        return _field(name, array, {"kind": "str"}), array
    if kinds == {bytes}:
        array = pa.array(column.tolist(), pa.large_binary())
        return _field(name, array, {"kind": "bytes"}), array
    if kinds == {np.ndarray}:
        return _encode_ragged(name, list(column))
    if kinds & CONTAINERS and kinds <= {*CONTAINERS, NoneType}:
        array = pa.array(map(pack, column), pa.large_binary())
        return _field(name, array, {"kind": "objects"}), array
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidTypeError(f"cannot store objects of type {named}: convert them by map, to numbers, strings or bytes")


def not_unicode(error: UnicodeEncodeError) -> InvalidTypeError:
    """The error of a string that UTF-8 cannot hold, such as the name of a file in another encoding."""
    return InvalidTypeError(
        f"cannot store the string {error.object!r:.200}, which is not valid Unicode: convert it by map, to bytes "
        "(os.fsencode makes them of a file's name)"
    )


def decode_column(field: pa.Field, array: pa.Array, copy: bool = False) -> Column:
    """The column that `encode_column` encoded. Of an array that is valid, no memory is taken that it does not hold.

    Numbers are a read-only view of Arrow's memory, or with `copy` the column's own, to be written at will.
    """
    meta = json.loads(field.metadata[_METADATA_KEY])
    if meta["kind"] == "dense":
        dense = _decode_dense(array, dtype_of_data(meta["dtype"]), tuple(meta["shape"]))
        return dense.copy() if copy else dense
    if meta["kind"] == "objects":
        return np.fromiter(map(unpack, array.to_pylist()), object, len(array))
    rows = np.empty(len(array), dtype=object)
    if meta["kind"] != "ragged":
        rows[:] = array.to_pylist()
        return rows
    lists, shapes = array.field("values"), array.field("shape").to_pylist()
    inner = pa.field("values", lists.type.value_type, metadata={_METADATA_KEY: meta["values"].encode()})
    values = decode_column(inner, lists.flatten(), copy)
    starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    for number, shape in enumerate(shapes):
        rows[number] = values[starts[number] : starts[number + 1]].reshape(shape)
    return rows


def _field(name: str, array: pa.Array, meta: dict[str, Any]) -> pa.Field:
    return pa.field(name, array.type, metadata={_METADATA_KEY: json.dumps(meta).encode()})


def _encode_dense(column: Column) -> pa.Array:
    flat = np.ascontiguousarray(column).reshape(-1)
    if flat.dtype.kind in _NUMBER_KINDS and flat.dtype.isnative and flat.dtype.itemsize <= 8:
        values = pa.array(flat)
    else:
        buffer = pa.py_buffer(flat.view(np.uint8))
        values = pa.Array.from_buffers(pa.binary(flat.dtype.itemsize), len(flat), [None, buffer])
    if column.ndim == 1:
        return values
    size = int(np.prod(column.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(values, size) if size else pa.nulls(len(column))


def _decode_dense(array: pa.Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Column:
    values = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    count = len(array) * math.prod(shape)
    if count == 0:
        return np.empty((len(array), *shape), dtype)
    buffer = None if pa.types.is_null(array.type) or pa.types.is_nested(values.type) else values.buffers()[1]
    if buffer is None:
        raise ValueError(f"{count} values of {dtype} have no bytes in a column of {array.type}")
    flat = np.frombuffer(buffer, dtype=dtype, count=count, offset=values.offset * dtype.itemsize)
    return flat.reshape(len(array), *shape)


def _encode_ragged(name: str, rows: list[Column]) -> tuple[pa.Field, pa.Array]:
    flat = np.concatenate([row.reshape(-1) for row in rows])
    field, values = encode_column("values", flat)
    offsets = np.cumsum([0, *(row.size for row in rows)], dtype=np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), values)
    shapes = pa.array([list(row.shape) for row in rows], pa.list_(pa.int64()))
    array = pa.StructArray.from_arrays([lists, shapes], names=["values", "shape"])
    meta = {"kind": "ragged", "values": field.metadata[_METADATA_KEY].decode()}
    return _field(name, array, meta), array
