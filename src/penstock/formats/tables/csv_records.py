r"""CSV: records of values, divided by commas or other signs, of which some are in quotes and can hold line breaks."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as pc

from penstock.errors import ElementError, InvalidArgumentError, StorageError
from penstock.formats.records.record_format import Source
from penstock.formats.records.text_lines import of_utf_16
from penstock.formats.tables.exact_numbers import may_be_rounded, may_have_leading_zeros, refuse, type_of_texts
from penstock.formats.tables.nulls import MaskNulls
from penstock.formats.tables.table_records import TableReader, TableRecords, chosen_schema, sample

_QUOTE, _NEWLINE, _RETURN = b'"\n\r'
_AS_TEXT = (pa.types.is_null, pa.types.is_binary, pa.types.is_time)
"""The guesses that are read as strings."""


@dataclass(frozen=True)
class CsvRecords(TableRecords):
    """Rows of CSV files.

    Attributes:
        names: of all columns of a file, in their order.
        header: whether the first record of each file names them.
        delimiter: the sign between two values.
        null_values: the texts that stand for a null; None for Arrow's own.
        encoding: of the text, in which ASCII has the same bytes as in UTF-8.
    """

    names: tuple[str, ...]
    header: bool
    delimiter: str
    null_values: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    returns_end = True

    @cached_property
    def _guessed(self) -> list[str]:
        """The columns of numbers whose types were guessed."""
        given = set(self.given)
        return [field.name for field in self.schema if _is_number(field.type) and field.name not in given]

    @property
    def layout(self) -> str:
        return f"CSV with {self.delimiter!r}, {'with' if self.header else 'without'} a header"

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "CsvReader":
        return CsvReader(self, name, compression, number, offset)

    def table(self, data: bytes) -> pa.Table:
        data = _in_utf8(data, self.encoding)
        table = self._decoder(data)
        for name, (kind, lost) in _kept_types(table, self._guessed, data, self._decoder).items():
            if kind != table.field(name).type:
                text = replace(self._decoder, schema=pa.schema([(name, pa.string())]))(data)[name]
                row = compute.index(text, lost).as_py()
                refuse(name, repr(lost), table.field(name).type, f"types={{{name!r}: str}} keeps it", row)
        return table

    @cached_property
    def _decoder(self) -> "_Decoder":
        return _Decoder(self.schema, self.names, self.delimiter, self.null_values)

    def explained(self, problem: str) -> str:
        found = re.search(r"CSV column #(\d+): (?:Row #\d+: )?(CSV conversion error to .*)", problem, re.DOTALL)
        if found is None:
            return super().explained(problem)
        name = self.names[int(found[1])]
        advice = f"types={{{name!r}: ...}} gives a type that fits all values, such as str"
        if "invalid UTF8" in found[2]:
            advice = f"encoding='latin-1' or another reads it, and types={{{name!r}: bytes}} leaves it as it is"
        return f"column {name!r}: {found[2]}: {advice}"

    def check_last(self, record: bytes) -> None:
        if _QUOTE in record and _is_open(record, self.delimiter.encode()):
            raise ElementError("a value in quotes is not closed, so that it continues to the end of the file")

    def ends(self, data: bytes, whole: bool) -> npt.NDArray[np.int64]:
        return _ends(data, whole, self.delimiter.encode())


class CsvReader(TableReader):
    """The rows of a file behind its header."""

    def __init__(self, format: CsvRecords, source: Source, compression: str, number: int, offset: int) -> None:
        super().__init__(format, source, compression, number, offset)
        if format.header and offset == 0 and self._is_file and self._loaded(skipping=True):
            try:
                names = _header(self._data[: int(self._ends[0])], format.delimiter, format.encoding)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise StorageError(f"{self._name!r} has no header: {error}") from error
            if names != format.names:
                self.close()
                raise StorageError(f"{self._name!r} has the columns {list(names)}, expected {list(format.names)}")
            self._next = 1


def csv_records(
    call: str,
    name: str,
    compression: str,
    *,
    columns: Sequence[str] | None,
    types: Mapping[str, pa.DataType],
    header: bool | Sequence[str],
    delimiter: str,
    mask_nulls: MaskNulls,
    label: str,
    null_values: tuple[str, ...] | None,
    encoding: str,
    without_rows: bool,
) -> CsvRecords | None:
    """The rows of a file as its first records show them, and those of other files like it.

    None if there are none; a header is enough if it is to do `without_rows`: all columns are strings then.

    Raises:
        StorageError: it cannot be read.
        InvalidArgumentError: its columns are not those that are asked for.
    """
    data, ends = sample(
        call, name, compression, lambda data, whole: _ends(data, whole, delimiter.encode()), 1 + (header is True)
    )
    if len(ends) <= (header is True and not without_rows):
        return None
    first = data[: int(ends[0])]
    try:
        found_names = list(_header(first, delimiter, encoding))
    except (pa.ArrowException, UnicodeDecodeError) as error:
        advice = ": encoding='latin-1', or another, reads it" if isinstance(error, UnicodeDecodeError) else ""
        raise StorageError(
            f"{call}: {name!r} has no first line from which to count its columns: {error}{of_utf_16(first) or advice}"
        ) from error
    body = data[len(first) if header is True else 0 : int(ends[-1])]
    if header is True:
        names = found_names
    else:
        names = list(header) if header else [f"f{number}" for number in range(len(found_names))]
    if header is not True and header and names == found_names:
        raise InvalidArgumentError(
            f"{call}(header={names}): {name!r} has these names in its first line, which is no row: give header=True"
        )
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{call}: {name!r} has two columns of one name: {names}")
    known = {column: types[column] for column in names if column in types}
    body = body.decode(encoding, "replace").encode()  # other bytes are an error where they are read
    decoder = _Decoder(pa.schema([]), tuple(names), delimiter, null_values)
    schema = _sampled(call, name, body, known, decoder)
    found = chosen_schema(call, name, schema, columns, types, label)
    return CsvRecords(
        call, found, mask_nulls, label, tuple(known), tuple(names), header is True, delimiter, null_values, encoding
    )


def _sampled(call: str, name: str, body: bytes, known: Mapping[str, pa.DataType], decoder: "_Decoder") -> pa.Schema:
    """All columns, and their types: those that are known, and for the others guesses that keep the text's numbers.

    Records that are damaged are passed over: they are errors where they are read.
    """
    every = replace(decoder, schema=pa.schema([(column, pa.binary()) for column in known]), every=True, skips=True)
    table = every(body)
    if body and not table.num_rows:
        try:
            replace(every, skips=False)(body)
        except pa.ArrowException as error:
            raise StorageError(
                f"{call}: {name!r} has columns {table.column_names}, and no record fits them: {error}"
            ) from error
    kinds = {field.name: known.get(field.name, field.type) for field in table.schema}
    guessed = [column for column, kind in kinds.items() if column not in known and _is_number(kind)]
    for column, (kind, lost) in _kept_types(table, guessed, body, replace(decoder, skips=True)).items():
        if kind is None:
            raise InvalidArgumentError(
                f"{call}: {name!r} has numbers in its column {column!r} that neither float64 nor uint64 holds, as "
                f"{lost:.60}: types={{{column!r}: str}} keeps it as it is written, np.float64 takes the nearest number"
            )
        kinds[column] = kind
    # Bytes that are not UTF-8 are an error where they are read, as they are in a file that is read later. NumPy has no
    # times of a day.
    text = {column for column, kind in kinds.items() if any(is_one(kind) for is_one in _AS_TEXT)}
    return pa.schema([(one, pa.string() if one in text and one not in known else kind) for one, kind in kinds.items()])


def _kept_types(
    table: pa.Table, guessed: Sequence[str], data: bytes, decoder: "_Decoder"
) -> dict[str, tuple[pa.DataType | None, str]]:
    """The types of guessed columns that keep their numbers as they are written, where the guess may not."""
    wanted = list(guessed)
    if not guessed or not may_have_leading_zeros(data, decoder.delimiter.encode()):
        wanted = [name for name in guessed if may_be_rounded(table[name])]
    if not wanted:
        return {}
    written = replace(decoder, schema=pa.schema([(name, pa.string()) for name in wanted]))(data)
    return {name: type_of_texts(table[name], written[name]) for name in wanted}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _in_utf8(data: bytes, encoding: str) -> bytes:
    return data if encoding == "utf-8" else data.decode(encoding).encode()


@dataclass(frozen=True)
class _Decoder:
    """Makes tables of the text of records. Arrow's options are kept: to make them takes longer than to read a few rows.

    Attributes:
        schema: the columns that are read; with `every` those whose types are not guessed.
        names: of all columns.
        delimiter: the sign between two values.
        null_values: the texts that stand for a null.
        every: whether all columns are read.
        skips: whether records with too many or too few values are passed over.
    """

    schema: pa.Schema
    names: tuple[str, ...]
    delimiter: str
    null_values: tuple[str, ...] | None
    every: bool = False
    skips: bool = False

    def __call__(self, data: bytes) -> pa.Table:
        if not data:
            return (pa.schema([(name, pa.null()) for name in self.names]) if self.every else self.schema).empty_table()
        size = len(data).bit_length()
        if size not in self._blocks:
            self._blocks[size] = pc.ReadOptions(column_names=list(self.names), block_size=1 << size, use_threads=False)
        # Without quotes no value holds a newline; Arrow then does not look for the last record's end value by value.
        return pc.read_csv(pa.BufferReader(data), self._blocks[size], self._parsing[_QUOTE in data], self._conversion)

    @cached_property
    def _blocks(self) -> dict[int, pc.ReadOptions]:
        """Options for text by the number of bits of its length."""
        return {}

    @cached_property
    def _parsing(self) -> list[pc.ParseOptions]:
        """Options without quotes and with them."""
        handler = (lambda row: "skip") if self.skips else None
        return [
            pc.ParseOptions(delimiter=self.delimiter, newlines_in_values=quoted, invalid_row_handler=handler)
            for quoted in (False, True)
        ]

    @cached_property
    def _conversion(self) -> pc.ConvertOptions:
        return pc.ConvertOptions(
            column_types=self.schema,
            include_columns=[] if self.every else self.schema.names,
            null_values=self.null_values,
            quoted_strings_can_be_null=False,
        )

    def __reduce__(self) -> Any:
        """In another process the options are made again."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


@lru_cache(maxsize=16)  # most files have the same
def _header(record: bytes, delimiter: str, encoding: str) -> tuple[str, ...]:
    """The values of the record that names the columns."""
    options = pc.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    data = _in_utf8(record, encoding) + b"\n"
    reading = pc.ReadOptions(block_size=len(data) + 1, use_threads=False)
    return tuple(pc.read_csv(pa.BufferReader(data), reading, options).column_names)


def _ends(data: bytes, whole: bool, delimiter: bytes) -> npt.NDArray[np.int64]:
    """The end of each record. Empty lines belong to the record before them, or else to the one behind."""
    content = np.frombuffer(data, np.uint8)
    lines = np.flatnonzero(content == _NEWLINE)
    if data == BOM_UTF8:  # an empty file
        return lines[:0]
    if _RETURN in data:
        lines = np.union1d(lines, _returns_alone(content, whole))
    if _QUOTE in data:
        lines = lines[~_quoted(data, content, lines, delimiter)]
    ends = lines + 1
    if whole and (len(ends) == 0 or ends[-1] < len(data)) and data:
        ends = np.append(ends, len(data))
    lengths = np.diff(ends, prepend=0)
    if (lengths > 2).all():  # none is empty, which is the rule
        return ends
    returns = content[ends - lengths] == _RETURN if len(ends) else np.empty(0, bool)
    full = np.flatnonzero(
        (lengths > 2)
        | ((lengths == 2) & ~returns)
        | ((lengths == 1) & ~np.isin(content[ends - 1], (_NEWLINE, _RETURN)))
    )
    return ends[np.append(full[1:] - 1, len(ends) - 1)] if len(full) else ends[:0]


def _returns_alone(content: npt.NDArray[np.uint8], whole: bool) -> npt.NDArray[np.int64]:
    """The carriage returns that end a line without a newline, as on old Macs. A newline may follow the last byte."""
    returns = np.flatnonzero(content == _RETURN)
    last = returns[-1] == len(content) - 1
    alone = content[(returns[:-1] if last else returns) + 1] != _NEWLINE
    found: npt.NDArray[np.int64] = returns[np.append(alone, whole) if last else alone]
    return found


def _quoted(
    data: bytes, content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], delimiter: bytes
) -> npt.NDArray[np.bool_]:
    """True for each of these offsets that is within quotes."""
    quotes = np.flatnonzero(content == _QUOTE)
    beside = np.array([*delimiter, _NEWLINE, _RETURN, _QUOTE], np.uint8)
    opening, closing = quotes[::2], quotes[1::2]
    before, after = content[opening[opening > 0] - 1], content[closing[closing < len(content) - 1] + 1]
    if np.isin(before, beside).all() and np.isin(after, beside).all():
        odd: npt.NDArray[np.bool_] = np.searchsorted(quotes, offsets) % 2 == 1
        return odd
    # Some value that is not in quotes has one in it. Values in quotes are then found one by one.
    spans = np.array([found.span() for found in _values_in_quotes(data, delimiter)], np.int64).reshape(-1, 2)
    begun, over = np.searchsorted(spans[:, 0], offsets), np.searchsorted(spans[:, 1], offsets, side="right")
    within: npt.NDArray[np.bool_] = begun != over
    return within


def _is_open(data: bytes, delimiter: bytes) -> bool:
    """True if a value in quotes has no end."""
    return any(found["open"] is not None for found in _values_in_quotes(data, delimiter))


def _values_in_quotes(data: bytes, delimiter: bytes) -> Iterator[re.Match[bytes]]:
    pattern = rb'(?:(?<=[\n\r%b])|\A(?:\xef\xbb\xbf)?)"[^"]*+(?:""[^"]*+)*+(?:"|(?P<open>\Z))' % re.escape(delimiter)
    return re.finditer(pattern, data)
