"""Blocks and specifications as they are sent between processes: a typed description, and buffers beside it.

A column of one shape crosses as the bytes of its array, which are copied neither to be sent nor when they have come.
Other columns (strings, bytes, rows of unequal shape) cross as an Arrow IPC stream each, as `formats/columns.py` encodes
them. The description says what each buffer holds. It goes beside the buffers and not into an Arrow schema, because it
differs from block to block where the rows' shapes do, and the schema of a Flight stream cannot.
"""

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.data.block import Block, Column
from penstock.errors import InvalidTypeError, ServiceError
from penstock.formats import plain_data
from penstock.formats.columns import decode_column, encode_columns
from penstock.formats.plain_data import dtype_of_data, dtype_to_data, structure_of_data, structure_to_data
from penstock.service.wire.arrow_stream import read_batch
from penstock.service.wire.interfaces import WrongAnswerError
from penstock.structure import Structure, flatten

_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)
"""The errors of reading a column that does not fit its header."""

Buffer = npt.NDArray[np.uint8]
"""Bytes, as an array of one axis."""


class ColumnHeader(msgspec.Struct, frozen=True, array_like=True):
    """The description of a column's buffer.

    Attributes:
        shape: of the column, its rows first.
        dtype: of the array whose bytes these are; of an Arrow stream, what its objects become: None for themselves, "T"
            for NumPy's strings.
        arrow: whether the buffer is an Arrow IPC stream.
    """

    shape: tuple[int, ...]
    dtype: Any
    arrow: bool = False


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """The description of a block, beside its buffers, one per column."""

    structure: Any
    length: int
    columns: tuple[ColumnHeader, ...]


def pack(block: Block) -> tuple[BlockHeader, list[Buffer]]:
    """A block as a header and a buffer for each column. Buffers of contiguous columns are views of them.

    Raises:
        InvalidTypeError: a leaf of Python objects that are neither strings nor bytes nor arrays, or a structure that
            has no name. The message says which leaf.
    """
    headers, buffers = [], []
    for number, column in enumerate(block.columns):
        try:
            header, buffer = _pack_column(column)
        except (InvalidTypeError, pa.ArrowException) as error:
            path = block.structure.paths()[number]
            raise InvalidTypeError(f"an element cannot be sent{' at ' + path if path else ''}: {error}") from error
        headers.append(header)
        buffers.append(buffer)
    return BlockHeader(structure_to_data(block.structure), len(block), tuple(headers)), buffers


def unpack(header: BlockHeader, buffers: Sequence[Buffer]) -> Block:
    """The block that was packed. Its columns of one shape are views of the buffers.

    Raises:
        WrongAnswerError: the header does not fit the buffers.
        ServiceError: it names a class or a dtype that this process does not know.
    """
    structure = _structure_of(header.structure)
    if not len(buffers) == len(header.columns) == structure.leaf_count:
        raise WrongAnswerError(
            f"a block of {structure} came with {len(buffers)} buffers for {len(header.columns)} columns"
        )
    try:
        columns = tuple(map(_unpack_column, header.columns, buffers))
    except _DAMAGED as error:
        raise WrongAnswerError(f"a block of {structure} came with columns that its header does not describe") from error
    if any(column.shape[:1] != (header.length,) for column in columns):
        shapes = [column.shape for column in columns]
        raise WrongAnswerError(f"a block of {header.length} rows came with columns of the shapes {shapes}")
    return Block(columns, structure, header.length)


def spec_to_data(spec: Any) -> Any:
    """A specification, nested `TensorSpec`s and `RaggedTensorSpec`s, as plain data; None for None.

    Raises:
        InvalidTypeError: its structure has no name to be found by.
    """
    if spec is None:
        return None
    leaves, structure = flatten(spec)
    return [structure_to_data(structure), [plain_data.spec_to_data(leaf) for leaf in leaves]]


def spec_of_data(data: Any) -> Any:
    """The specification that `spec_to_data` wrote.

    Raises:
        ServiceError: it names a class or a dtype that this process does not know.
    """
    if data is None:
        return None
    try:
        described, leaves = data
        structure = _structure_of(described)
        if structure.leaf_count != len(leaves):
            raise ValueError(f"{len(leaves)} specifications of {structure.leaf_count} leaves")
        return structure.unflatten([plain_data.spec_of_data(leaf, known_dtype) for leaf in leaves])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"the data is no specification of elements: {error}") from error


def known_dtype(data: Any) -> np.dtype[Any]:
    """The dtype that `dtype_to_data` wrote.

    Raises:
        ServiceError: this process does not know it.
    """
    try:
        return dtype_of_data(data)
    except (MemoryError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise ServiceError(
            f"elements have dtype {data}, which NumPy does not know here: `import ml_dtypes` if it is one of its dtypes"
        ) from error


def _structure_of(data: Any) -> Structure:
    try:
        return structure_of_data(data, ServiceError)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise WrongAnswerError(f"the data is no structure of elements: {error}") from error


def _pack_column(column: Column) -> tuple[ColumnHeader, Buffer]:
    if not column.dtype.hasobject:
        return ColumnHeader(column.shape, dtype_to_data(column.dtype)), _bytes_of(column)
    if column.dtype.names is not None:
        raise InvalidTypeError(f"cannot send values of dtype {column.dtype}: use one array for each field")
    strings = column.dtype.kind == "T"
    objects = column.astype(object) if strings else column
    header = ColumnHeader(column.shape, "T" if strings else None, arrow=True)
    return header, np.frombuffer(encode_columns([objects.reshape(-1)]), np.uint8)


def _unpack_column(header: ColumnHeader, buffer: Buffer) -> Column:
    if min(header.shape, default=0) < 0:  # NumPy would divide by an item's size, which may be 0
        raise WrongAnswerError(f"a column came with the shape {header.shape}")
    if not header.arrow:
        dtype = known_dtype(header.dtype)
        if dtype.hasobject or buffer.size != dtype.itemsize * math.prod(header.shape):
            raise WrongAnswerError(f"{buffer.size} bytes came for a column of {header.shape} values of {dtype}")
        if buffer.size == 0:
            return np.ndarray(header.shape, dtype, buffer=b"")  # NumPy's other ways make "U0" larger
        if buffer.ctypes.data % dtype.alignment:
            buffer = buffer.copy()  # as a codec may leave it
        column = buffer.view(dtype).reshape(header.shape)
        _check_text(column)
        return column
    if header.dtype not in (None, "T"):  # for other dtypes a few bytes could state any size
        raise WrongAnswerError(f"a column of objects came that is to become one of {header.dtype}")
    batch = read_batch(pa.py_buffer(buffer))
    if not _is_sent(batch.schema.field(0).type) or len(batch) != math.prod(header.shape):
        raise WrongAnswerError(f"{len(batch)} rows of {batch.schema} came for a column of {header.shape} values")
    batch.validate(full=True)  # Arrow follows offsets wherever they lead
    column = decode_column(batch.schema.field(0), batch.column(0), copy=True).reshape(header.shape)
    if pa.types.is_struct(batch.schema.field(0).type) and len(column) and column.flat[0].dtype.kind in "UV":
        for row in column.flat:
            _check_text(row)
    return column if header.dtype is None else column.astype(known_dtype(header.dtype))


def _check_text(column: Column) -> None:
    """Refuse NumPy strings with invalid character codes: every later use of them would raise."""
    if column.dtype.names is not None:
        for name in column.dtype.names:
            _check_text(column[name])
    elif column.dtype.kind == "U" and column.size and column.dtype.itemsize:
        points = np.ascontiguousarray(column).reshape(-1).view(np.dtype(np.uint32).newbyteorder(column.dtype.byteorder))
        if int(points.max()) > sys.maxunicode:
            raise WrongAnswerError(
                f"a column of {column.dtype} came with the number {points.max()} instead of a character"
            )


def _is_sent(kind: pa.DataType) -> bool:
    """Return whether `encode_columns` writes columns of this type. In others a row may take no byte."""
    if pa.types.is_struct(kind):  # ragged rows
        values, shapes = [field.type for field in kind] if kind.num_fields == 2 else (pa.null(), pa.null())
        return pa.types.is_large_list(values) and _is_sent(values.value_type) and shapes == pa.list_(pa.int64())
    binary = pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0
    return binary or bool(
        pa.types.is_primitive(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    )


def _bytes_of(column: Column) -> Buffer:
    if column.size == 0 or column.dtype.itemsize == 0:
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)
