"""from_source: the rows of a foreign collection, read by index in the largest pieces that it offers.

| what                                     | known by                       | how its rows are read             |
|------------------------------------------|--------------------------------|-----------------------------------|
| data sets of Hugging Face                | `with_format`, `column_names`  | Arrow columns                     |
| arrays on disk: HDF5, zarr, NumPy's maps | `shape`, `dtype`               | slices, one for each chunk        |
| data sets of torch that give many rows   | `__getitems__`                 | a list of rows for a list of them |
| anything else with `__len__`             | `__getitem__`                  | row by row                        |
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from typing import Any, Final

import numpy as np

from penstock.data.block import Block, Column, Indices, locked, locked_entries
from penstock.data.element_kinds import of_one_kind
from penstock.data.functions.apply import note
from penstock.data.node import KnownLength, Node, Run, derived
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.formats import tables
from penstock.positions import by_part
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec, as_leaf, check_dense
from penstock.structure import LEAF, flatten

_PIECE_BYTES: Final = 1 << 20
"""The approximate size of a read from an array on disk that has no chunks."""


class CollectionRows(ABC):
    """The rows of one kind of collection."""

    spec: Any = None
    """The specification of a row, if the collection has one."""

    @abstractmethod
    def read(self, indices: Indices) -> Block:
        """Return the rows at these positions, at least one."""


class RowByRow(CollectionRows):
    """`source[index]` for each row."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def read(self, indices: Indices) -> Block:
        rows: list[Any] = []
        for index in _numbers(indices):
            try:
                rows.append(self._source[index])
            except StopIteration as error:  # it would end the dataset silently
                raise ElementError("__getitem__ raised StopIteration: give a row for each index") from error
        return Block.of_rows(rows)


class RowsByList(CollectionRows):
    """`source.__getitems__(indices)`, which gives a list of rows."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def read(self, indices: Indices) -> Block:
        rows = self._source.__getitems__(_numbers(indices))
        if not isinstance(rows, Sequence) or len(rows) != len(indices):
            got = f"{len(rows)} of them" if isinstance(rows, Sequence) else f"{rows!r:.200}"
            raise ElementError(f"__getitems__ must give a list of {len(indices)} rows, got {got}")
        return Block.of_rows(rows)


class ArrayRows(CollectionRows):
    """Rows of an array on disk, by slices: a chunk, or about a megabyte, is read once for all its rows."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._dtype = _dtype_of(source)
        shape = tuple(source.shape[1:])
        if self._dtype.kind != "O":  # for strings and rows of unequal length, the first row decides
            self.spec = TensorSpec(shape, self._dtype)
        row_bytes = max(1, self._dtype.itemsize * int(np.prod(shape)))
        chunks = getattr(source, "chunks", None)
        rows = chunks[0] if chunks else max(1, _PIECE_BYTES // row_bytes)
        self._piece = int(max(rows)) if isinstance(rows, tuple) else int(rows)  # dask and xarray name each chunk

    def read(self, indices: Indices) -> Block:
        if isinstance(indices, range) and indices.step == 1:
            column = self._between(indices.start, indices.stop)
        else:
            column = self._picked(np.asarray(indices, np.int64))
        return Block((column,), LEAF, len(indices))

    def _between(self, start: int, stop: int) -> Column:
        rows = np.asarray(as_leaf(self._source[start:stop]))
        # A slice of an array in memory, or of a mapped file, is a view: the user's data must not be written to.
        return rows if rows.flags.owndata else locked(rows)

    def _picked(self, indices: Column) -> Column:
        wanted, inverse = np.unique(indices, return_inverse=True)
        parts = [
            self._between(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]
            for _, _, rows in by_part(wanted, wanted // self._piece)
        ]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found[inverse]


class ArrowRows(CollectionRows):
    """Rows of a Hugging Face data set, from the Arrow table that it holds or maps into memory."""

    def __init__(self, source: Any, mask_nulls: "tables.nulls.MaskNulls") -> None:
        self._source = source.with_format("arrow")
        self._mask_nulls = mask_nulls

    def __reduce__(self) -> tuple[type["ArrowRows"], tuple[Any, ...]]:
        """Pickle this without its table, which another process finds again."""
        return ArrowRows, (self._source, self._mask_nulls)

    @cached_property
    def _table(self) -> "tuple[tables.table_rows.TableRows, tables.table_rows.TableRows | None] | None":
        """The rows of the table, and the selection among them that the data set consists of, if there is one.

        None where the data set does not show them: its own methods return the rows then, which is slower.
        """
        table = getattr(getattr(self._source, "data", None), "table", None)
        if not hasattr(self._source, "_indices") or getattr(table, "column_names", None) != self._source.column_names:
            return None
        chosen = self._source._indices  # there is no public name for the selection
        rows = tables.table_rows.TableRows(table, "from_source", self._mask_nulls)
        return rows, None if chosen is None else tables.table_rows.TableRows(chosen.table, "from_source")

    def read(self, indices: Indices) -> Block:
        if self._table is not None:
            rows, chosen = self._table
            if chosen is not None:
                (numbers,) = chosen.read(indices).values()
                indices = numbers.astype(np.int64)
            found = rows.read(indices)
        else:
            if isinstance(indices, range) and indices.step == 1:
                table = self._source[indices.start : indices.stop]
            else:
                table = self._source[_numbers(indices)]
            found = tables.arrow_columns.as_columns(
                tables.nulls.masked(table, self._mask_nulls, "from_source"), call="from_source"
            )
        columns, structure = flatten(found)
        return Block(tuple(map(np.asarray, columns)), structure, len(indices))


class Source(KnownLength, Node, name="from_source"):
    """The rows of a collection of the user's."""

    indexable = True
    source: Any = field(repr=False)
    length: int = field(repr=False)
    rows: CollectionRows = field(repr=False)

    def arguments(self) -> list[str]:
        return [type(self.source).__name__]

    @derived
    def spec(self) -> Any:
        return self.rows.spec

    @property
    def spec_from_call(self) -> bool:
        return self.rows.spec is None

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        if len(indices) == 0:
            return Block((np.empty(0, object),), LEAF, 0)
        try:
            block = of_one_kind(run, self, self.rows.read(indices), int(indices[0]))
            return Block(tuple(map(locked_entries, block.columns)), block.structure, len(block))
        except failures() as error:
            if len(indices) == 1:  # reading the rows in halves finds the one that fails
                note(error, self, int(indices[0]))
            raise


def length_of(source: Any) -> int:
    """Return the number of rows of a collection; arrays of zarr have a shape and no `__len__`."""
    return len(source) if hasattr(type(source), "__len__") else int(source.shape[0])


def rows_of(source: Any, mask_nulls: "tables.nulls.MaskNulls") -> CollectionRows:
    """Return the rows of a collection, to be read in the fastest way that it supports.

    Raises:
        InvalidArgumentError: `mask_nulls` is set, and the collection has no Arrow columns.
        InvalidTypeError: it has no length, or its rows cannot be read by index.
    """
    kind = type(source)
    check_dense(source)
    is_array = hasattr(source, "shape") and hasattr(source, "dtype") and len(source.shape) > 0
    wanted = ("__getitem__",) if is_array else ("__len__", "__getitem__")
    missing = [name for name in wanted if not hasattr(kind, name)]
    if missing or isinstance(source, (str, bytes, Mapping, Set)):
        raise InvalidTypeError(
            f"from_source(source=...) takes a collection with __len__ and __getitem__, got a {kind.__name__}"
            f"{' without ' + ' and '.join(missing) if missing else ''}: from_generator takes what can only be "
            "iterated, from_tensor_slices arrays in memory and dictionaries of them, and ps.Dataset.zip joins datasets "
            "of several arrays"
        )
    if hasattr(source, "with_format") and hasattr(source, "column_names") and _gives_arrow(source):
        return ArrowRows(source, mask_nulls)
    if mask_nulls:
        raise InvalidArgumentError(
            f"from_source(mask_nulls=...) is for data sets that give Arrow columns, got a {kind.__name__}: "
            "fill missing values in its __getitem__, or by map"
        )
    if not is_array and (hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")):
        # The index of a table selects columns, and the entries of an Arrow array are Arrow's objects.
        raise InvalidTypeError(
            f"from_source(source=...) takes a collection of rows, got a {kind.__name__}: from_tensor_slices takes "
            "tables and columns of Arrow, pandas and polars"
        )
    if is_array:
        return ArrayRows(source)
    return RowsByList(source) if callable(getattr(source, "__getitems__", None)) else RowByRow(source)


def _dtype_of(source: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of an array; other libraries have separate classes of dtypes.

    Raises:
        InvalidTypeError: NumPy has no such dtype.
    """
    found: np.dtype[Any]
    with suppress(TypeError):
        found = np.dtype(source.dtype)
        return found
    try:
        found = as_leaf(source[:0]).dtype
    except Exception as error:  # each library raises its own
        raise InvalidTypeError(
            f"from_source(source=...) got an array of {source.dtype}, which NumPy does not take ({error}): convert it "
            "first, for example to float32"
        ) from error
    return found


def _gives_arrow(source: Any) -> bool:
    """Return whether Arrow columns are the rows of a data set: no other format is set, and no column is decoded."""
    form = getattr(source, "format", None) or {}
    return form.get("type") is None and not any(map(_is_decoded, (getattr(source, "features", None) or {}).values()))


def _is_decoded(feature: Any) -> bool:
    if isinstance(feature, dict):
        return any(map(_is_decoded, feature.values()))
    if isinstance(feature, list):
        return any(map(_is_decoded, feature))
    return hasattr(feature, "decode_example") or _is_decoded(getattr(feature, "feature", []))


def _numbers(indices: Indices) -> list[int]:
    return list(indices) if isinstance(indices, range) else indices.tolist()
