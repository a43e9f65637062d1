"""Files of records by number, through an index of where each record begins."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from penstock.errors import ElementError, StorageError
from penstock.formats.byte_reader import HeldBytes
from penstock.formats.compression import compression_of
from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.formats.decoded_rows import CACHE_BYTES, DecodedRows, bytes_of, joined
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat, OpenRanges
from penstock.formats.ranges import RangedFile, open_ranges
from penstock.formats.records.offsets import Edges, cached_edges, edges_beside
from penstock.formats.records.record_format import Decoded, RecordFormat, RecordReader, SomeRecords
from penstock.paths import has_protocol
from penstock.printing import in_bytes
from penstock.structure import LEAF, Structure

_GROUP_BYTES: Final = 1 << 20
"""The bytes of a file that are decoded together, where that costs hardly more than one record."""
_INDEX_BYTES: Final = 1 << 28
"""Indexes are kept up to this size, by all datasets of a process together."""
_SMALL_BYTES: Final = 1 << 18
"""Finding the records of a file of no more bytes takes less time than writing an index, or reading one."""
_NO_ROWS: Final[Decoded] = ([], LEAF)


class _DecodedGroup(NamedTuple):
    """Rows that were decoded together.

    Attributes:
        columns: of those that are not damaged.
        structure: of a row.
        damaged: the numbers of the others.
        problems: an error message for each of these.
    """

    columns: list[Any]
    structure: Structure
    damaged: list[int]
    problems: list[str]


_UNREADABLE: Final = _DecodedGroup(*_NO_ROWS, [], [])
"""Stands for records that cannot be told apart."""


@dataclass(frozen=True)
class IndexedFile(OpenRanges):
    """An open file, and the offsets at which its records begin."""

    edges: Edges

    @property
    def count(self) -> int:
        return len(self.edges) - 1


class _Indexes(DatasetCache[str, tuple[str, Edges]]):
    """The offsets of the records of files, by name, with the version of the file. They outlast its descriptor."""

    bound = ProcessBound(lambda: _INDEX_BYTES, 1)


class RecordFiles(OpenFileFormat[IndexedFile]):
    """The records of files that are not compressed.

    The bytes of the records that are asked for are read together, and decoded as if they were a file. Where that fails,
    the record is read again from the file itself, by the reader that streams use, whose error names the place.

    Args:
        records: the format of the records.
    """

    def __init__(self, records: RecordFormat) -> None:
        super().__init__()
        self.records = records
        self._decoded: DecodedRows[_DecodedGroup] = DecodedRows()
        self._indexes = _Indexes()

    @property
    def name(self) -> str:
        return type(self.records).__name__

    @property
    def memory(self) -> str:  # type: ignore[override]  # it depends on the files
        records = sum(len(edges) - 1 for _, edges in self._indexes.values())
        held = f"holds where {records:,} records begin, 8 bytes each"
        return f"{held}, and shares {in_bytes(CACHE_BYTES)} for decoded rows" if self.records.decodes_groups else held

    def spec(self, name: str) -> Any:
        return self.records.spec

    def read(self, name: str, rows: Rows) -> Any:
        columns, structure = self.read_columns(name, rows)
        return structure.unflatten(columns)

    def read_columns(self, name: str, rows: Rows) -> Decoded:
        opened = self.opened(name)
        file, edges = opened.file, opened.edges
        if len(rows) and rows[-1] >= len(edges) - 1:
            raise StorageError(
                f"{name!r} has {len(edges) - 1} records, and had more when the dataset was made: make it again"
            )
        if isinstance(rows, range) and self.records.decodes_groups:
            return _joined(list(self._parts(file, edges, rows)))
        return self._records(file, edges, rows)

    def read_pieces(self, pieces: Sequence[tuple[str, Rows]]) -> Decoded | None:
        if not self.records.decodes_groups:
            return None
        parts, rows, size = [], 0, 0
        try:
            for name, some in pieces:
                opened = self.opened(name)
                if some[-1] >= opened.count:
                    return None
                begins, ends = _limits(opened.edges, some)
                rows, size = rows + len(some), size + int((ends - begins).sum())
                if size > _GROUP_BYTES:  # those of one file alone are many
                    return None
                parts.append(self.records.to_be_joined(opened.file.read(begins, ends)))
            return _all(self.records.open(SomeRecords(f"{len(pieces)} files", b"".join(parts)), ""), rows)
        except (StorageError, ElementError):  # raised again when that file is read alone
            return None

    def _parts(self, file: RangedFile, edges: Edges, rows: range) -> Iterator[Decoded]:
        """The rows of a range, by groups."""
        start = rows.start
        while start < rows.stop:
            number = int(edges[start] - edges[0]) // _GROUP_BYTES
            limits = edges[0] + np.array([number, number + 1]) * _GROUP_BYTES
            first, last = np.searchsorted(edges[:-1], limits).tolist()
            stop = min(last, rows.stop)
            group = self._group(file, edges, number, range(first, last))
            if group is None:  # its records cannot be told apart any more
                yield self._records(file, edges, range(start, stop))
            else:
                before, until = bisect_left(group.damaged, start), bisect_left(group.damaged, stop)
                if before < until:  # the caller asks for the others, and for these alone
                    failed = ElementError(group.problems[before])
                    failed.positions = tuple(row - rows.start for row in group.damaged[before:until])
                    raise failed
                begin = start - first - before
                yield [column[begin : begin + stop - start] for column in group.columns], group.structure
            start = stop

    def _group(self, file: RangedFile, edges: Edges, number: int, rows: range) -> "_DecodedGroup | None":
        """The rows of a group that are not damaged; None if its records cannot be told apart."""
        found = self._decoded.get((file.name, number))
        if found is None:
            found = self._decoded_group(file, edges, rows) or _UNREADABLE
            self._decoded.put({(file.name, number): found}, bytes_of(found.columns))
        return None if found is _UNREADABLE else found

    def _decoded_group(self, file: RangedFile, edges: Edges, rows: range) -> "_DecodedGroup | None":
        reader = self._reader(file, edges, rows)
        parts: list[Decoded] = []
        damaged: list[int] = []
        problems: list[str] = []
        while reader.number < rows.stop:
            try:
                part = reader.read(rows.stop - reader.number)
            except ElementError as error:
                damaged.append(reader.number - 1)
                problems.append(str(error))
                continue
            except StorageError:
                return None
            if part is None:
                return None
            parts.append(part)
        return _DecodedGroup(*(_joined(parts) if parts else _NO_ROWS), damaged, problems)

    def _records(self, file: RangedFile, edges: Edges, rows: Rows) -> Decoded:
        """All of these records.

        Raises:
            StorageError, ElementError: one of them is damaged.
        """
        reader = self._reader(file, edges, rows)
        found, damage = None, None
        try:
            found = _all(reader, len(rows))
        except (StorageError, ElementError) as error:
            damage = error
        if found is None and len(rows) > 1:  # the caller asks for fewer, until it knows which one it is
            raise damage or StorageError(f"{file.name!r}: of {len(rows)} records from {rows[0]} on, one is damaged")
        if found is None:
            self._read_damaged(file.name, int(rows[0]), int(edges[rows[0]]))
        return found

    def _reader(self, file: RangedFile, edges: Edges, rows: Rows) -> RecordReader:
        begins, ends = _limits(edges, rows)
        offset = int(begins[0]) if isinstance(rows, range) else None
        return self.records.open(SomeRecords(file.name, file.read(begins, ends), offset), "", int(rows[0]))

    def _read_damaged(self, name: str, number: int, offset: int) -> NoReturn:
        with closing(self.records.open(name, "", number, offset)) as reader:
            reader.read(1)
        raise StorageError(f"{name!r}, record {number}: it has changed since the dataset was made: make it again")

    def open(self, name: str) -> IndexedFile:
        file = open_ranges(name)
        kept = self._indexes.get(name)
        if kept is not None and kept[0] == file.version:
            return IndexedFile(file, kept[1])
        edges = self._edges(file)
        self._indexes.put({name: (file.version, edges)}, edges.nbytes)
        return IndexedFile(file, edges)

    def _edges(self, file: RangedFile) -> Edges:
        name = file.name
        is_small = file.size <= _SMALL_BYTES and (file.is_held or not has_protocol(name))
        begin = file.read(np.array([0]), np.array([file.size if is_small else min(6, file.size)]))
        compression = compression_of(begin[:6])
        if compression:
            raise StorageError(
                f"{name!r} is compressed ({compression}), so that its records cannot be read by number: read it as a "
                f"stream, by a reader that takes compression_type={compression!r}, or unpack it"
            )
        if is_small:
            return self.records.edges(HeldBytes(name, begin))
        edges = edges_beside(file, self.records.layout)
        if edges is None:
            edges = cached_edges(name, self.records.layout, file.version, lambda: self.records.edges(name))
        return edges


def _limits(edges: Edges, rows: Rows) -> tuple[Edges, Edges]:
    """The offsets at which records begin, and those at which they end."""
    numbers = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    return edges[:-1][numbers], edges[1:][numbers]


def _all(reader: RecordReader, count: int) -> Decoded | None:
    """The next `count` records of a reader; None if there are fewer."""
    parts, left = [], count
    while left and (found := reader.read(left)) is not None:
        parts.append(found)
        left -= len(found[0][0])
    return None if left else _joined(parts)


def _joined(parts: list[Decoded]) -> Decoded:
    if len(parts) == 1:
        return parts[0]
    columns = list(map(joined, zip(*(columns for columns, _ in parts), strict=True)))
    return columns, parts[0][1]
