"""Datasets saved as Parquet files, in row groups small enough for reading rows in any order."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ElementError, InvalidTypeError
from penstock.formats.columns import not_unicode
from penstock.formats.writing.leaves import ONLY, Column, Columns, Kind, Leaves, dense, is_ragged, kind_of, names_of
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure

_GROUP_ROWS: Final = 2000
_GROUP_BYTES: Final = 8 << 20
"""A row group ends at whichever limit comes first: reading a random row decodes its whole group."""
_NUMBERS: Final = "biufMm"
_TIME_UNITS: Final = ("D", "s", "ms", "us", "ns")


class ParquetShards(ShardWriter):
    """Leaves become columns, nested elements structs, and arrays lists."""

    ending = "parquet"
    needs_spec = True

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        super().check(structure, specs, columns)
        names_of(structure)
        for path, spec, column in zip(structure.paths(), specs, columns, strict=True):
            _type_of(path or "the element", spec, column)

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self.leaves = Leaves(_kind_of)
        self._specs = specs
        self._types: list[pa.DataType | None] = []
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        paths = structure.paths()
        if not self._types:
            given = zip(paths, self._specs, columns, strict=True)
            self._types = [_type_of(path or "the element", spec, column) for path, spec, column in given]
        arrays = [_array(path, kind, column) for path, kind, column in zip(paths, self._types, columns, strict=True)]
        nested = _nested(structure, iter(arrays), rows)
        table = pa.table({ONLY: nested} if structure.kind == "leaf" else dict(zip(*_fields(nested), strict=True)))
        # Groups are filled from several blocks, so that their size does not depend on the blocks'.
        start = 0
        while start < rows:
            part = table.slice(start, self._room(table.nbytes / rows))
            self._pending.append(part)
            self._pending_rows += len(part)
            self._pending_bytes += part.nbytes
            start += len(part)
            if self._pending_rows >= _GROUP_ROWS or self._pending_bytes >= _GROUP_BYTES:
                self._flush()

    def _room(self, row_bytes: float) -> int:
        by_bytes = int((_GROUP_BYTES - self._pending_bytes) / max(row_bytes, 1e-9))
        return max(1, min(_GROUP_ROWS - self._pending_rows, by_bytes))

    def _flush(self) -> None:
        if self._pending:
            # Lists show their types row by row: a key that some objects lack is null in these.
            known = [] if self._file is None else [self._file.schema.empty_table()]
            table = _together([*known, *self._pending])
            if self._file is None:
                self._file = pq.ParquetWriter(self.path, table.schema, write_page_checksum=True)
            elif table.schema != self._file.schema:
                raise ElementError(
                    f"rows are of {table.schema.to_string()}, and those before them of "
                    f"{self._file.schema.to_string()}: give all of them the same keys and types by map"
                )
            self._file.write_table(table, row_group_size=len(table))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _end(self) -> list[str]:
        self._flush()
        return []


def _together(parts: list[pa.Table]) -> pa.Table:
    """The rows of several tables, whose lists may have different types as far as they do not show them.

    Raises:
        ElementError: they have different types.
    """
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowException as error:
        raise ElementError(f"rows of lists are of different types: {error}") from error


def _kind_of(column: Column) -> Kind:
    """Return the kind of a column's rows. Arrays of objects are lists, whose type empty ones do not show."""
    is_of_lists = column.dtype == object and (column.ndim > 1 or (is_ragged(column) and column[0].dtype == object))
    return "lists" if is_of_lists else kind_of(column)


def _lists(value: Any) -> Any:
    """A row as lists, as far as it is of objects."""
    return list(map(_lists, value)) if isinstance(value, np.ndarray) and value.dtype == object else value


def _of_lists(path: str, column: Column) -> pa.Array:
    """Rows of lists and dictionaries as an Arrow array of the type that they show.

    Raises:
        InvalidTypeError: they are of no type of Arrow's.
    """
    try:
        return pa.array(list(map(_lists, column)))
    except pa.ArrowException as error:
        raise InvalidTypeError(
            f"Parquet has no type for {path or 'the element'}: {error}: convert it by map, for example by json.dumps, "
            "or save in penstock's own format"
        ) from error


def _type_of(path: str, spec: LeafSpec, column: Column) -> pa.DataType | None:
    """The type of a column: axes of a fixed length become lists of fixed size. None for lists that show their own."""
    kind = _kind_of(column)
    if kind == "lists":
        _of_lists(path, column)
        return None
    shape = list(spec.shape)
    if kind != "numbers":
        found = pa.string() if kind == "text" else pa.binary()
    else:
        dtype = spec.dtype
        timed = dtype.kind in "Mm" and (np.datetime_data(dtype) not in [(unit, 1) for unit in _TIME_UNITS])
        if dtype.kind not in _NUMBERS or timed or dtype.itemsize > 8 or (dtype.kind == "m" and dtype.str[3:] == "[D]"):
            raise InvalidTypeError(
                f"Parquet has no type for {dtype}, of {path}: convert it by map, or save in penstock's own format"
            )
        found = pa.from_numpy_dtype(dtype.newbyteorder("="))
    if None in shape[1:]:
        raise InvalidTypeError(
            f"Parquet files hold arrays of which the first axis alone varies, got {spec} of {path}: encode the arrays, "
            "or save in penstock's own format"
        )
    for axis, length in reversed(list(enumerate(shape))):
        varies = length is None or (len(shape) == 1 and axis in spec.assumed_axes)
        # Empty lists cannot have a fixed size.
        found = pa.list_(found) if varies or 0 in shape else pa.list_(found, length)
    return found


def _array(path: str, kind: pa.DataType | None, column: Column) -> pa.Array:
    """A column as an Arrow array.

    Raises:
        ElementError: its rows have another shape than the specification, or contain NaT.
    """
    if kind is None:
        return _of_lists(path, column)
    column = dense(column)
    lists = []
    inner = kind
    while pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner):
        lists.append(inner)
        inner = inner.value_type
    rows = list(column) if is_ragged(column) else None
    shapes = {row.shape for row in rows} if rows is not None else {column.shape[1:]}
    for shape in shapes:
        fixed = [one.list_size if pa.types.is_fixed_size_list(one) else None for one in lists]
        if len(shape) != len(fixed) or any(size not in (None, length) for size, length in zip(fixed, shape)):
            raise ElementError(
                f"rows of {path or 'the dataset'} have shape {shape}, and the first one said {tuple(fixed)}: promise "
                "None for axes that vary, by map(..., output_signature=ps.TensorSpec(...))"
            )
    flat = column.reshape(-1) if rows is None else np.concatenate([row.reshape(-1) for row in rows])
    if flat.dtype.kind in "Mm" and np.isnat(flat).any():
        raise ElementError(f"{path or 'the dataset'} holds NaT, which Parquet has no place for beside times")
    entries = flat.tolist() if flat.dtype.kind in "OUS" else flat.astype(flat.dtype.newbyteorder("="))
    try:
        array = pa.array(entries, inner)
    except UnicodeEncodeError as error:
        raise not_unicode(error) from error
    lengths = [shape[0] for shape in (row.shape for row in rows)] if rows is not None else []
    for axis in range(len(lists) - 1, -1, -1):
        array = _listed(array, lists[axis], len(column), column.shape, axis, lengths)
    return array


def _listed(
    values: pa.Array, kind: pa.DataType, rows: int, shape: tuple[int, ...], axis: int, lengths: list[int]
) -> pa.Array:
    """The values as lists along one axis."""
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    if lengths:
        counts = lengths
    else:
        counts = [shape[1 + axis]] * (rows * math.prod(shape[1 : 1 + axis]))
    return pa.ListArray.from_arrays(np.cumsum([0, *counts], dtype=np.int32), values, type=kind)


def _nested(structure: Structure, arrays: Any, rows: int) -> Any:
    """Arrays as nested structs, without structures that have no leaves."""
    if structure.kind == "leaf":
        return next(arrays)
    parts = [_nested(child, arrays, rows) if child.leaf_count else None for child in structure.children]
    shown = zip(structure.shown_names, structure.in_order(parts), strict=True)
    names, fields = zip(*[(str(name), part) for name, part in shown if part is not None], strict=True)
    return pa.StructArray.from_arrays(fields, names=names)


def _fields(nested: pa.StructArray) -> tuple[list[str], list[pa.Array]]:
    return [field.name for field in nested.type], nested.flatten()
