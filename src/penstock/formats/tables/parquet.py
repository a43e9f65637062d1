"""Parquet files: rows by number, of which those of one row group are decoded together and kept for a while.

A row group is the least that can be decoded. Row numbers count the rows that a filter keeps, which are found by reading
the columns of the filter once.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.decoded_rows import CACHE_BYTES, DecodedRows, bytes_of, joined
from penstock.formats.file_errors import by_library
from penstock.formats.file_format import Rows
from penstock.formats.open_files import REMOTE, OpenFileFormat, share_of
from penstock.formats.remote.remote_files import AHEAD_BYTES, open_remote_bytes
from penstock.formats.tables.arrow_columns import as_columns, spec_of, values_of, without_rows
from penstock.formats.tables.file_columns import NamedFolders, TableVersion
from penstock.formats.tables.nulls import MaskNulls, masked
from penstock.formats.tables.table_records import arrow_types
from penstock.formats.unchanged import UnchangedFile
from penstock.paths import has_protocol
from penstock.positions import Indices, as_positions, by_part, shifted
from penstock.printing import in_bytes
from penstock.structure import Structure, flatten

_Decoded = tuple[list[npt.NDArray[Any]], Structure]
"""The columns of rows, and the structure of a row."""
_Within = slice | npt.NDArray[np.int64]
"""Some rows of a row group."""
_DAMAGE: Final = (pa.ArrowException, OSError, InvalidArgumentError)

_TOGETHER_BYTES: Final = 1 << 23
"""Row groups are decoded together up to about this size, which is faster where they are small. Their memory is one: as
long as one of them is kept, all are."""
_OBJECT_BYTES: Final = 64
_LEAST_BYTES: Final = 3
"""Of a string that is written out; its length alone takes 4."""
_FEW_ROWS: Final = 1000
"""Fewer rows take less time than other threads, or than opening a file once more to decode equal strings once."""
_MANY_ROWS: Final = 20_000
"""With row groups above this size, rows at random cost more than reading them in order by far."""


class ParquetFiles(OpenFileFormat["_ParquetFile"]):
    """The rows of Parquet files as dictionaries of their columns; checksums of pages are verified, if there are some.

    Args:
        columns: the names of those that are read; None for all.
        filter: an expression of Arrow's over any columns; rows for which it is not true are skipped.
        mask_nulls: the columns that get a column of booleans beside them.
        types: the types that columns are cast to, by name.
        call: the function that the user called, for errors.
        table: the table that the files are parts of; None if their own columns are all.

    Raises:
        InvalidTypeError: a type that Arrow does not have.
    """

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        filter: pd.Expression | None = None,
        mask_nulls: MaskNulls = None,
        types: Mapping[str, Any] | None = None,
        *,
        call: str = "ParquetDataset",
        table: TableVersion | NamedFolders | None = None,
    ) -> None:
        super().__init__()
        self.call = call
        self.table = table
        self.version = "" if table is None else table.version
        self.columns = None if columns is None else list(columns)
        self.filter = filter
        self.mask_nulls = mask_nulls
        self.types = arrow_types(call, types)
        self._decoded_groups: DecodedRows[_Decoded | str] = DecodedRows()
        self._kinds: dict[pa.Schema, dict[str, str]] = {}

    @property
    def memory(self) -> str:  # type: ignore[override]  # it depends on the files
        largest = max((file.largest for file in self._files.values()), default=0)
        sizes = [file.largest * file.row_bytes for file in self._files.values()]
        held = f"shares {in_bytes(CACHE_BYTES)} for decoded row groups with the other datasets of its process"
        if largest <= _MANY_ROWS:
            return held
        fit = max(1, int(CACHE_BYTES // max(sizes)))
        return (
            f"{held}; a row at random decodes up to {largest:,} rows: shuffle(clump={fit}) decodes each row group "
            "once, or write row groups of a few thousand"
        )

    def rows_of_version(self, version: int) -> Mapping[str, int]:
        at = self.table.at if isinstance(self.table, TableVersion) else None
        return super().rows_of_version(version) if at is None else at(version).rows

    def spec(self, name: str) -> Any:
        return spec_of(self._empty(name), self.mask_nulls, self.call)

    def kind(self, name: str) -> Any:
        schema = self.opened(name).schema
        if schema not in self._kinds:  # most files have one
            empty = self._empty(name)
            spec_of(empty, self.mask_nulls, self.call)  # or the error of a type that is not read
            self._kinds[schema] = {field.name: values_of(field.type) for field in empty.schema}
        return self._kinds[schema]

    def _empty(self, name: str) -> pa.Table:
        """The columns of a file, without rows."""
        try:
            return self._cast(without_rows(self.opened(name).schema))
        except pa.ArrowNotImplementedError as error:
            raise InvalidTypeError(f"{self.call}(types=...) does not fit {name!r}: {error}") from error

    def group_ends(self, name: str) -> npt.NDArray[np.int64]:
        return self.opened(name).ends

    def read(self, name: str, rows: Rows) -> Any:
        columns, structure = self.read_columns(name, rows)
        return structure.unflatten(columns)

    def read_columns(self, name: str, rows: Rows) -> _Decoded:
        file = self.opened(name)
        places = dict(file.places(rows))
        taken = self._taken(file, places)
        parts: list[list[npt.NDArray[Any]]] = []
        for group in places:
            found = taken[group]
            if isinstance(found, str):
                raise StorageError(found)
            columns, structure = found
            parts.append(columns)
        return parts[0] if len(parts) == 1 else [joined(pieces) for pieces in zip(*parts, strict=True)], structure

    def read_pieces(self, pieces: Sequence[tuple[str, Rows]]) -> _Decoded | None:
        """The rows of small files, each read as a whole, decoded together."""
        tables, size = [], 0.0
        try:
            for name, rows in pieces:
                file = self.opened(name)
                size += file.count * file.row_bytes
                is_whole = isinstance(rows, range) and len(rows) == file.count
                if not is_whole or size > _TOGETHER_BYTES or has_protocol(name):
                    return None
                with file.lock:
                    tables.append(self._cast(file.read(list(range(len(file.ends))))))
            return flatten(as_columns(masked(pa.concat_tables(tables), self.mask_nulls, self.call), call=self.call))
        except (StorageError, *_DAMAGE):  # raised again when that file is read alone
            return None

    def _taken(self, file: "_ParquetFile", places: Mapping[int, _Within]) -> dict[int, _Decoded | str]:
        """Some rows of row groups, or the error message of a group that cannot be read.

        Of groups that are decoded now the rows are taken before the next ones are: of a block of rows at random, each
        may be of another group.
        """
        taken: dict[int, _Decoded | str] = {}
        with file.lock:  # of several threads that want a group one decodes it
            for group, within in places.items():
                found = self._decoded_groups.get((file.name, group))
                if found is not None:
                    taken[group] = _rows_of(found, within)
            missing = [group for group in places if group not in taken]
            for groups in file.prepared(missing):
                decoded = self._decoded_if_whole(file, groups)
                taken |= {group: _rows_of(found, places[group]) for group, found in decoded.items()}
        return taken

    def _decoded_if_whole(self, file: "_ParquetFile", groups: list[int]) -> Mapping[int, _Decoded | str]:
        """Row groups, decoded together if none is damaged, and kept."""
        try:
            return self._decoded(file, groups)
        except StorageError:  # of the file or its server, which may work later
            raise
        except _DAMAGE:  # of one of them
            return {group: self._decoded_alone(file, group) for group in groups}

    def _decoded(self, file: "_ParquetFile", groups: list[int]) -> dict[int, _Decoded]:
        table = masked(self._cast(file.read(groups)), self.mask_nulls, self.call)
        columns, structure = flatten(as_columns(table, call=self.call))
        edges = np.cumsum([0, *(file.ends[group] - file.begin(group) for group in groups)])
        decoded = {
            group: ([column[start:stop] for column in columns], structure)
            for group, (start, stop) in zip(groups, pairwise(edges), strict=True)
        }
        self._decoded_groups.put({(file.name, group): found for group, found in decoded.items()}, bytes_of(columns))
        return decoded

    def _cast(self, table: pa.Table) -> pa.Table:
        """The columns in the types that were given for them."""
        if not self.types:
            return table
        columns = list(table.columns)
        for place, name in enumerate(table.column_names):
            kind = self.types.get(name, columns[place].type)
            try:
                columns[place] = columns[place].cast(kind) if name in self.types else columns[place]
            except pa.ArrowException as error:
                raise type(error)(f"column {name!r} as {kind}: {error}") from error
        return pa.table(columns, table.column_names)

    def _decoded_alone(self, file: "_ParquetFile", group: int) -> _Decoded | str:
        try:
            return self._decoded(file, [group])[group]
        except StorageError:
            raise
        except _DAMAGE as error:
            rows = f"rows {file.begin(group)} to {file.ends[group] - 1}"
            message = f"{file.name!r}: row group {group}, {rows}, cannot be read: {error}"
            self._decoded_groups.put({(file.name, group): message}, len(message))
            return message

    def open(self, name: str) -> "_ParquetFile":
        return _ParquetFile(name, self)


class _ParquetFile:
    """An open file, which is closed when it is dropped.

    Attributes:
        schema: of the columns that are read.
        ends: the number of selected rows in each row group and those before it.
        largest: the number of rows of the largest row group.
        row_bytes: about the size of a decoded row.
        open_size: the share of the open file in the limit for all of them.
    """

    def __init__(self, name: str, format: ParquetFiles) -> None:
        self.name = name
        self._call = format.call
        columns, typed = format.columns, list(format.types)
        self.lock = threading.Lock()
        self._last = -1
        with by_library(f"{name!r} cannot be read as a Parquet file", StorageError):
            self._remote = open_remote_bytes(name) if has_protocol(name) else None
            # Requests of remote files find out by themselves whether they have changed.
            self._local = UnchangedFile(name) if self._remote is None else None
            self._source = pa.OSFile(name) if self._remote is None else pa.PythonFile(self._remote, mode="r")
            self.open_size = share_of(REMOTE if self._remote is not None else 2 * REMOTE, 2)
            self._parquet = pq.ParquetFile(self._source, page_checksum_verification=True)
            metadata, schema = self._parquet.metadata, self._parquet.schema_arrow
            self._arrangement = None if format.table is None else format.table.columns_in(name, schema)
            many = metadata.num_rows >= _FEW_ROWS
            if many and (repeated := _repeated_strings(metadata, schema, self._in_file(typed))):
                self._parquet = pq.ParquetFile(
                    self._source, metadata=metadata, read_dictionary=repeated, page_checksum_verification=True
                )
            schema = schema if self._arrangement is None else self._arrangement.schema
        known = set(schema.names)
        for argument, given in (("columns", columns or ()), ("types", typed)):
            missing = [column for column in given if column not in known]
            if missing:
                raise InvalidArgumentError(
                    f"{self._call}({argument}=...): {name!r} has no column {missing[0]!r}; its columns are "
                    f"{schema.names}"
                )
        self._columns = (
            None if columns is None and self._arrangement is None else self._in_file(columns or schema.names)
        )
        self.schema = schema if columns is None else pa.schema([schema.field(column) for column in columns])
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.largest = max(counts, default=0)
        self._rows_read: list[int] = counts
        encoded = sum(metadata.row_group(group).total_byte_size for group in range(len(counts)))
        widths = sum(_least_bytes(field.type) for field in self.schema)
        self.row_bytes = max(widths, encoded / max(1, metadata.num_rows))
        self._is_measured = False
        self._selected = None if format.filter is None else self._selected_rows(format.filter)
        if self._arrangement is not None and self._arrangement.deleted is not None:
            self._selected = self._without(self._arrangement.deleted)
        selected = counts if self._selected is None else [len(rows) for rows in self._selected]
        self.ends = np.cumsum(selected, dtype=np.int64)

    def _in_file(self, columns: list[str]) -> list[str]:
        """The names of columns in the file, of those that it has."""
        return columns if self._arrangement is None else self._arrangement.in_file(columns)

    @property
    def count(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def begin(self, group: int) -> int:
        """The number of a row group's first row."""
        return int(self.ends[group - 1]) if group else 0

    def places(self, rows: Rows) -> list[tuple[int, _Within]]:
        """The row groups that have some of these rows, each with the places of these rows in it."""
        numbers = np.searchsorted(self.ends, as_positions(rows), side="right")
        return [(group, _as_slice(shifted(own, -self.begin(group)))) for group, _, own in by_part(rows, numbers)]

    def prepared(self, groups: list[int]) -> Iterator[list[int]]:
        """Row groups, in those that are decoded together; those of a remote file are all fetched at the same time."""
        if self._remote is not None and groups:
            ahead = self._next_groups(groups) if groups[0] == self._last + 1 else range(0)
            self._last = groups[-1]
            self._remote.keep(
                [self._column_ranges(group) for group in groups], [self._column_ranges(group) for group in ahead]
            )
        start = 0
        while start < len(groups):
            stop, size = start + 1, self._size_of(groups[start])
            while stop < len(groups) and (size := size + self._size_of(groups[stop])) <= _TOGETHER_BYTES:
                stop += 1
            yield groups[start:stop]
            start = stop

    def _size_of(self, group: int) -> float:
        return float(self._rows_read[group] * self.row_bytes)

    def read(self, groups: list[int]) -> pa.Table:
        """The rows of row groups that are selected."""
        try:
            many = sum(self._rows_read[group] for group in groups) >= _FEW_ROWS
            table = self._parquet.read_row_groups(groups, columns=self._columns, use_threads=many)
        finally:  # bytes of a file that was overwritten may look damaged, or right
            if self._local is not None:
                self._local.check()
        if self._arrangement is not None:
            table = self._arrangement.arranged(table, self.schema)
        if not self._is_measured and table.num_rows:  # asking costs as much as decoding a small group
            self.row_bytes, self._is_measured = table.nbytes / table.num_rows, True
        if self._selected is None:
            return table
        starts = np.cumsum([0, *(self._rows_read[group] for group in groups)])
        return table.take(np.concatenate([self._selected[group] + start for group, start in zip(groups, starts)]))

    def _next_groups(self, groups: list[int]) -> range:
        """The row groups behind some that are read in advance."""
        metadata, size, stop = self._parquet.metadata, 0, groups[-1] + 1
        while stop < metadata.num_row_groups and size < AHEAD_BYTES // 2:
            size += sum(end - begin for begin, end in self._column_ranges(stop))
            stop += 1
        return range(groups[-1] + 1, stop)

    def _column_ranges(self, group: int) -> list[tuple[int, int]]:
        """The bounds of the columns of a row group that are read; neighbours are one."""
        ranges: list[tuple[int, int]] = []
        metadata = self._parquet.metadata.row_group(group)
        wanted = None if self._columns is None else set(self._columns)
        for number in range(metadata.num_columns):
            column = metadata.column(number)
            if wanted is not None and column.path_in_schema.partition(".")[0] not in wanted:
                continue
            begin = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
            before = ranges.pop() if ranges and ranges[-1][1] == begin else (begin, begin)
            ranges.append((before[0], begin + column.total_compressed_size))
        return ranges

    def _selected_rows(self, filter: pd.Expression) -> list[npt.NDArray[np.int64]]:
        """The numbers of the rows of each row group for which the filter is true."""
        selected = [np.empty(0, np.int64)] * len(self._rows_read)
        try:
            for group, part in self._filtered_parts(filter):
                found = part.to_table()["selected"].fill_null(False)
                selected[group] = np.flatnonzero(found.to_numpy())
        except OSError as error:
            raise StorageError(f"{self.name!r} cannot be read: {error}") from error
        except (pa.ArrowException, TypeError) as error:
            raise InvalidArgumentError(f"{self._call}(filter=...) does not fit {self.name!r}: {error}") from error
        return selected

    def _filtered_parts(self, filter: pd.Expression) -> Iterator[tuple[int, pd.Scanner]]:
        """The row groups that may have rows for which the filter is true, each with its value for all rows."""
        wanted = {"selected": filter}
        if self._arrangement is not None and self._arrangement.renamed:  # statistics are of the columns' old names
            schema = self._arrangement.schema
            columns = self._in_file(schema.names)
            for group in range(len(self._rows_read)):
                table = self._arrangement.arranged(self._parquet.read_row_group(group, columns), schema)
                yield group, pd.dataset(table).scanner(columns=wanted)
            return
        whole, known = (
            (None, None) if self._arrangement is None else (self._arrangement.schema, self._arrangement.known)
        )
        format = pd.ParquetFileFormat(page_checksum_verification=True)
        fragment = format.make_fragment(self._source, partition_expression=known)
        for part in fragment.split_by_row_group(filter, schema=whole):  # without those that their statistics rule out
            (group,) = (one.id for one in part.row_groups)
            yield group, part.scanner(schema=whole, columns=wanted)

    def _without(self, deleted: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The numbers of the rows of each row group that are read and not deleted.

        Raises:
            StorageError: a row is deleted that the file does not have.
        """
        edges = np.cumsum([0, *self._rows_read])
        if len(deleted) and not 0 <= deleted.min() <= deleted.max() < edges[-1]:
            raise StorageError(
                f"{self._call}: row {int(deleted.max())} of {self.name!r} is deleted, and it has {edges[-1]} rows: its "
                "table is damaged"
            )
        kept = np.ones(edges[-1], bool)
        kept[deleted] = False
        groups = [np.flatnonzero(kept[start:stop]) for start, stop in pairwise(edges)]
        if self._selected is None:
            return groups
        return [rows[kept[start + rows]] for start, rows in zip(edges[:-1], self._selected, strict=True)]


def _least_bytes(kind: pa.DataType) -> float:
    """The bytes that a value takes at least once it is decoded, however few it has in the file."""
    try:
        return float(kind.bit_width / 8)
    except ValueError:  # values of any length
        return _OBJECT_BYTES


def _rows_of(decoded: _Decoded | str, within: _Within) -> _Decoded | str:
    """Some rows of a row group, if it could be read."""
    if isinstance(decoded, str):
        return decoded
    columns, structure = decoded
    return [column[within] for column in columns], structure


def _repeated_strings(metadata: pq.FileMetaData, schema: pa.Schema, typed: list[str]) -> list[str]:
    """The columns of few different strings, which are decoded once each instead of once a row.

    Strings that are written out take 4 bytes each and their content. So a column that takes less is of numbers of
    entries in a dictionary, and the dictionary is small.

    Args:
        metadata: of the file.
        schema: of the file.
        typed: the columns that are cast, which cannot be done to dictionaries.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    strings = {field.name for field in schema if field.type in (pa.string(), pa.large_string())}.difference(typed)
    repeated = []
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        chunks = [group.column(place) for group in groups] if name in strings else []
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        if size < _LEAST_BYTES * metadata.num_rows and all(map(_is_of_a_dictionary, chunks)) and chunks:
            repeated.append(name)
    return repeated


def _is_of_a_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    """True if Arrow can read strings as entries of a dictionary: none may be encoded by differences."""
    return chunk.has_dictionary_page and not any("DELTA" in encoding for encoding in chunk.encodings)


def _as_slice(numbers: Indices) -> slice | npt.NDArray[np.int64]:
    """Numbers without gaps as a slice, which copies nothing."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first == len(numbers) - 1 else as_positions(numbers)
