"""Rows of a table of Arrow at any positions, gathered by NumPy from where the table has its numbers.

| column of the table                 | how its rows are read                                              |
|-------------------------------------|--------------------------------------------------------------------|
| numbers without nulls, also fixed   | gathered from the chunks; a range within one chunk is not copied   |
| lists of them                       | the same where the rows of a read have one length, else views      |
| anything else                       | taken by Arrow from each chunk, then as `tables.as_columns` has it |

Arrow's own `take` joins all chunks of a column first, which costs as much for one row as for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.tables.arrow_columns import as_columns
from penstock.formats.tables.nulls import MaskNulls, maskable, masked
from penstock.positions import Indices, as_positions, by_part, shifted
from penstock.structure import map_structure

Array = npt.NDArray[Any]


class _ChunkRows(NamedTuple):
    """Rows of one chunk.

    Attributes:
        where: which of the rows that are read they are.
        chunk: the number of the chunk.
        rows: their places in it.
    """

    where: Array
    chunk: int
    rows: Indices


class TableRows:
    """The rows of a table by number, as a dictionary of columns.

    Args:
        table: its memory is not copied, so that it may be mapped from a file.
        call: the function that the user called, for errors.
        mask_nulls: the columns that get a column of booleans beside them.
    """

    def __init__(self, table: pa.Table, call: str, mask_nulls: MaskNulls = None) -> None:
        as_columns(masked(table.slice(0, 0), mask_nulls, call), call=call)  # refuses types that NumPy cannot hold
        full = {name: _full(table[name]) for name in table.column_names}
        chosen = set(maskable(table.column_names) if mask_nulls is True else mask_nulls or ())
        self._columns = {
            name: _Others(name, column, call, masks=True) if name in chosen else _column_rows(name, column, call)
            for name, column in full.items()
        }
        self._ends = {
            name: np.cumsum([len(chunk) for chunk in column.chunks], dtype=np.int64) for name, column in full.items()
        }

    def read(self, indices: Indices) -> dict[str, Any]:
        """The rows at these positions, at least one.

        Raises:
            InvalidArgumentError: a null is among them.
        """
        pieces: dict[bytes, list[_ChunkRows]] = {}  # most tables are chunked alike in all columns
        columns: dict[str, Any] = {}
        for name, column in self._columns.items():
            ends = self._ends[name]
            if ends.tobytes() not in pieces:
                pieces[ends.tobytes()] = _pieces(ends, indices)
            columns |= column.read(pieces[ends.tobytes()], len(indices))
        return columns


class _ColumnRows(ABC):
    """The rows of one column."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def read(self, pieces: list[_ChunkRows], count: int) -> dict[str, Any]:
        """The rows of all pieces, `count` altogether, by the name of the column, and of its mask."""


class _Numbers(_ColumnRows):
    """Chunks that NumPy sees as arrays."""

    def __init__(self, name: str, chunks: list[Array]) -> None:
        super().__init__(name)
        self._chunks = chunks

    def read(self, pieces: list[_ChunkRows], count: int) -> dict[str, Any]:
        parts = [_rows_of(self._chunks[chunk], rows) for _, chunk, rows in pieces]
        return {self._name: _gathered(parts, pieces, count)}


class _Lists(_ColumnRows):
    """Lists of numbers: of each chunk the values, and where each row begins and the last one ends."""

    def __init__(self, name: str, values: list[Array], edges: list[Array]) -> None:
        super().__init__(name)
        self._values = values
        self._edges = edges

    def read(self, pieces: list[_ChunkRows], count: int) -> dict[str, Any]:
        begins = [_rows_of(self._edges[chunk][:-1], rows) for _, chunk, rows in pieces]
        ends = [_rows_of(self._edges[chunk][1:], rows) for _, chunk, rows in pieces]
        length = int(ends[0][0] - begins[0][0])
        if all(((end - begin) == length).all() for begin, end in zip(begins, ends, strict=True)):
            parts = [self._of_one_length(piece, begin, length) for piece, begin in zip(pieces, begins, strict=True)]
            return {self._name: _gathered(parts, pieces, count)}
        columns = []
        for piece, begin, end in zip(pieces, begins, ends, strict=True):
            values = self._values[piece.chunk]
            found = (values[start:stop] for start, stop in zip(begin.tolist(), end.tolist(), strict=True))
            columns.append(np.fromiter(found, object, len(begin)))
        return {self._name: _gathered(columns, pieces, count)}

    def _of_one_length(self, piece: _ChunkRows, begins: Array, length: int) -> Array:
        values = self._values[piece.chunk]
        if isinstance(piece.rows, range) or length == 0:
            return values[begins[0] : begins[0] + len(begins) * length].reshape(len(begins), length)
        return np.lib.stride_tricks.sliding_window_view(values, length)[begins]


class _Others(_ColumnRows):
    """Rows that Arrow takes."""

    def __init__(self, name: str, column: pa.ChunkedArray, call: str, masks: bool = False) -> None:
        super().__init__(name)
        self._column = column
        self._call = call
        self._masks = masks

    def read(self, pieces: list[_ChunkRows], count: int) -> dict[str, Any]:
        parts = []
        for _, number, rows in pieces:
            chunk = self._column.chunk(number)
            parts.append(chunk.slice(rows.start, len(rows)) if isinstance(rows, range) else chunk.take(rows))
        table = pa.table({self._name: pa.chunked_array(parts)})
        found: dict[str, Any] = as_columns(masked(table, [self._name] * self._masks, self._call), call=self._call)
        if len(pieces) == 1:
            return found
        places = np.empty(count, np.int64)
        places[np.concatenate([piece.where for piece in pieces])] = np.arange(count)
        return dict(map_structure(lambda column: column[places], found))


def _pieces(ends: Array, indices: Indices) -> list[_ChunkRows]:
    """Rows by their chunks, where `ends` says how many rows there are up to the end of each chunk."""
    if not isinstance(indices, range) or indices.step != 1:
        indices = as_positions(indices)
    numbers = np.searchsorted(ends, as_positions(indices), side="right")
    return [
        _ChunkRows(which, chunk, shifted(rows, -int(ends[chunk - 1]) if chunk else 0))
        for chunk, which, rows in by_part(indices, numbers)
    ]


def _rows_of(column: Array, rows: Indices) -> Array:
    return column[rows.start : rows.stop] if isinstance(rows, range) else column.take(rows, axis=0)


def _gathered(parts: Sequence[Array], pieces: list[_ChunkRows], count: int) -> Array:
    """The rows of all pieces in their places."""
    if len(parts) == 1:
        return parts[0]
    column = np.empty((count, *parts[0].shape[1:]), parts[0].dtype)
    for part, piece in zip(parts, pieces, strict=True):
        column[piece.where] = part
    return column


def _full(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without chunks of no rows, which may have no memory for their offsets; pyarrow would read it all the same."""
    return pa.chunked_array([chunk for chunk in column.chunks if len(chunk)], column.type)


def _column_rows(name: str, column: pa.ChunkedArray, call: str) -> _ColumnRows:
    dense = [_numbers(chunk) for chunk in column.chunks]
    if all(chunk is not None for chunk in dense):
        return _Numbers(name, [chunk for chunk in dense if chunk is not None])
    if (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) and not column.null_count:
        values = [_numbers(chunk.values) for chunk in column.chunks]
        if all(chunk is not None and chunk.ndim == 1 for chunk in values):
            edges = [chunk.offsets.to_numpy() for chunk in column.chunks]
            return _Lists(name, [chunk for chunk in values if chunk is not None], edges)
    return _Others(name, column, call)


def _numbers(array: pa.Array) -> Array | None:
    """An array of Arrow as NumPy sees it without a copy; None if it cannot."""
    kind = array.type
    if array.null_count:
        return None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found: Array = array.to_numpy()
        return found
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        values = _numbers(array.flatten())
        return None if values is None else values.reshape(len(array), kind.list_size, *values.shape[1:])
    return None
