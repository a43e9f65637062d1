"""Records that are rows of a table, which Arrow's readers decode: the common part of CSV and JSON lines."""

from abc import abstractmethod
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.byte_reader import ByteReader
from penstock.formats.compression import compression_of
from penstock.formats.opening import open_bytes
from penstock.formats.records.line_numbers import line_of, lines_in
from penstock.formats.records.record_format import CHUNK_BYTES, RecordFormat, RecordReader, SomeRecords, Source
from penstock.formats.tables.arrow_columns import as_columns, varies_in_shape
from penstock.formats.tables.damaged_records import DAMAGE, WithoutDamaged
from penstock.formats.tables.nulls import MaskNulls, masked
from penstock.spec import TensorSpec
from penstock.structure import map_structure

_MOST_BYTES: Final = 1 << 26
"""A record is believed to be no longer than this: a quote that is never closed would make the rest of a file one."""

Ends = Callable[[bytes, bool], npt.NDArray[np.int64]]
"""A function that gives the end of each record of bytes; the flag is True if nothing follows them."""


@dataclass(frozen=True)
class TableRecords(RecordFormat):
    """Rows as dictionaries of their columns, or pairs of one and a label.

    Attributes:
        call: the function that the user called, for errors.
        schema: the columns that are read, and their types.
        mask_nulls: those that get a column of booleans beside them; True stands for all.
        label: the column that becomes the second part of each row; "" for none.
        given: the columns whose types were given; the others were guessed.
    """

    call: str
    schema: pa.Schema
    mask_nulls: MaskNulls
    label: str
    given: tuple[str, ...]
    returns_end: ClassVar[bool] = False
    """True if a carriage return without a newline ends a line too."""

    @cached_property  # each file is asked for it
    def spec(self) -> Any:
        columns = self.rows(self.schema.empty_table())  # or the error of a type that is not read
        if any(varies_in_shape(kind) for kind in self.schema.types):
            return None
        return map_structure(lambda column: TensorSpec(column.shape[1:], column.dtype), columns)

    @property
    def decodes_groups(self) -> bool:
        return True

    def rows(self, table: pa.Table) -> Any:
        """The columns of a table as those of rows.

        Raises:
            InvalidArgumentError: a null where no mask takes it.
        """
        columns = as_columns(masked(table, self.mask_nulls, self.call), call=self.call)
        if not self.label:
            return columns
        label = columns.pop(self.label)
        return columns, label

    @abstractmethod
    def table(self, data: bytes) -> pa.Table:
        """The rows of whole records.

        Raises:
            ArrowException: one of them is damaged.
        """

    def explained(self, problem: str) -> str:
        """The problem of one record, in the user's words, with advice."""
        return problem.replace("Row #1: ", "")

    def check_last(self, record: bytes) -> None:
        """Refuse the last record of some bytes if it is not whole; Arrow takes it as it is.

        Raises:
            ElementError: it is not whole.
        """

    def to_be_joined(self, data: bytes) -> bytes:
        self.check_last(data)
        data = data.removeprefix(BOM_UTF8)
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"

    @abstractmethod
    def ends(self, data: bytes, whole: bool) -> npt.NDArray[np.int64]:
        """The end of each record at the beginning of a file's rest; `whole` when nothing follows."""


class TableReader(RecordReader):
    """A chunk is decoded at once, without its damaged records, if there are some.

    Of some records alone, from anywhere in a file, damage is an error: their caller then asks for fewer of them.
    """

    def __init__(self, format: TableRecords, source: Source, compression: str, number: int, offset: int) -> None:
        self._format = format
        self._compression = compression
        self._is_file = not isinstance(source, SomeRecords)
        self._origin = source.offset if isinstance(source, SomeRecords) else 0
        self._forget()
        super().__init__(source, compression, number, offset)

    def _forget(self) -> None:
        """Begin a chunk."""
        self._line, self._of_line = 0, 0  # the line on which a record begins, as soon as one is asked for
        self._from = 0
        self._rows: Any = None
        self._damaged: dict[int, Exception] = {}
        self._order: list[int] = []

    def _load(self, skipping: bool) -> npt.NDArray[np.int64]:
        self._forget()
        self._data, ends = _with_whole_records(self._bytes, self._data, self._format.ends, 1, lambda: self._where(0))
        return ends

    def _decode(self, first: int) -> Any:
        if self._rows is None:
            self._from = first
            self._rows = self._decoded_from(first)
        if first in self._damaged:
            error = self._damaged[first]
            where = self._where(first)
            self._pass(1)
            # The row that Arrow counts is the only one it was given.
            raise ElementError(f"{where}: {self._format.explained(str(error))}") from error
        before = bisect_left(self._order, first)
        stop = self._order[before] if before < len(self._order) else len(self._ends)
        begin = first - self._from - before
        return map_structure(lambda column: column[begin : begin + stop - first], self._rows)

    def _decoded_from(self, first: int) -> Any:
        """The rows of the chunk from a record on, without those that are damaged."""
        records = range(first, len(self._ends))
        try:
            self._format.check_last(self._record(records[-1]))
            return self._format.rows(self._table([records]))
        except DAMAGE as error:
            if self._origin is None and len(records) > 1:
                raise ElementError(f"{self._name}: {self._format.explained(str(error))}") from error
        found = WithoutDamaged(self._table, self._format.rows)
        try:
            self._format.check_last(self._record(records[-1]))
        except DAMAGE as error:
            found.note(records[-1], error)
        tables = list(found.tables(records))
        self._damaged, self._order = found.damaged, found.order
        return self._format.rows(pa.concat_tables(tables) if tables else self._format.schema.empty_table())

    def _record(self, record: int) -> bytes:
        return self._data[self._begin(record) : int(self._ends[record])]

    def _table(self, runs: Sequence[range]) -> pa.Table:
        data = b"".join([self._data[self._begin(run.start) : int(self._ends[run.stop - 1])] for run in runs])
        table = self._format.table(data)
        if table.num_rows != sum(map(len, runs)):
            raise ElementError(f"expected one row, got {table.num_rows}: {data!r:.200}")
        return table

    def _where(self, record: int) -> str:
        if self._origin is None:
            return self._name
        returns, begin = self._format.returns_end, self._begin(record)
        if self._line == 0 or record < self._of_line:
            self._line = line_of(self._name, self._compression, self._origin + self._start + begin, returns)
        else:
            self._line += lines_in(self._data[self._begin(self._of_line) : begin], returns)
        self._of_line = record
        return f"{self._name!r}, line {self._line}"


def sample(call: str, name: str, compression: str, ends: Ends, least: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The beginning of a file with `least` records or more, or all of it, and where each record ends.

    Raises:
        StorageError: it cannot be read.
    """
    with closing(open_bytes(name, compression)) as source:
        data, found = _with_whole_records(source, b"", ends, least, lambda: f"{call}: {name!r}")
    packed = "" if compression else compression_of(data[:8])
    if packed:
        raise StorageError(f"{name!r} is compressed: give compression_type={packed!r}")
    return data, found


def _with_whole_records(
    source: ByteReader, data: bytes, ends: Ends, least: int, where: Callable[[], str]
) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Bytes and the next ones of a file, with `least` records or more or to its end, and where records end."""
    size = CHUNK_BYTES
    while True:
        parts, target = [data], len(data) + size
        while (held := sum(map(len, parts))) < target and (piece := source.read(target - held)):
            parts.append(piece)
        data = b"".join(parts)
        whole = len(data) < target
        found = ends(data, whole)
        if len(found) >= least or whole:
            return data, found
        if len(data) > _MOST_BYTES:
            raise StorageError(f"{where()}: a record does not end within {len(data)} bytes: is a quote not closed?")
        size *= 2


def arrow_types(call: str, types: Mapping[str, Any] | None, argument: str = "types") -> dict[str, pa.DataType]:
    """The types that a user has given for columns: Arrow's, dtypes of NumPy, `str` or `bytes`.

    Raises:
        InvalidTypeError: no such type.
    """
    given: Any = types or {}
    if not isinstance(given, Mapping):
        raise InvalidTypeError(f"{call}({argument}=...) takes a dictionary of types by column, got {given!r:.200}")
    return {name: _arrow_type(f"{call}({argument}=...)", name, kind) for name, kind in given.items()}


def _arrow_type(call: str, name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if kind in (str, bytes):
        return pa.string() if kind is str else pa.binary()
    try:
        return pa.from_numpy_dtype(np.dtype(kind))
    except (TypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidTypeError(
            f"{call} takes types of Arrow, dtypes of NumPy that Arrow has too, str or bytes, got {kind!r} "
            f"for {name!r}: give one near to it, such as np.float32, and convert by map"
        ) from error


def chosen_schema(
    call: str,
    name: str,
    found: pa.Schema,
    columns: Sequence[str] | None,
    types: Mapping[str, pa.DataType],
    label: str,
    advice: str = "",
) -> pa.Schema:
    """The columns that are read, of those that a file has.

    Raises:
        InvalidArgumentError: one is not there.
    """
    chosen = list(found.names if columns is None else columns)
    if label and label not in chosen:
        chosen.append(label)
    known = set(found.names)
    for argument, given in (("columns", chosen), ("types", types)):
        missing = [column for column in given if column not in known]
        if missing:
            argument = "label" if missing[0] == label else argument
            raise InvalidArgumentError(
                f"{call}({argument}=...): {name!r} has no column {missing[0]!r}; its columns are {found.names}{advice}"
            )
    return pa.schema([(column, types.get(column, found.field(column).type)) for column in chosen])
