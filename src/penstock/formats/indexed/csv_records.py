r"""CSV: records of values, divided by commas or other signs, of which some are in quotes and can hold line breaks."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pc

from penstock.errors import ElementError, InvalidArgumentError, StorageError
from penstock.formats.exact_numbers import may_be_rounded, may_have_leading_zeros, refuse, type_of_texts
from penstock.formats.records import Source
from penstock.formats.table_records import TableReader, TableRecords, chosen_schema, sample

_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


@dataclass(frozen=True)
class CsvRecords(TableRecords):
    """Rows of CSV files.

    Attributes:
        names: of all columns of a file, in their order.
        header: whether the first record of each file names them.
        delimiter: what stands between two values.
        null_values: what stands for a null; None for what Arrow takes for one.
        encoding: of the text, in which ASCII is what it is in UTF-8.
    """

    names: tuple[str, ...]
    header: bool
    delimiter: str
    null_values: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    returns_end = True

    @cached_property
    def _guessed(self) -> list[str]:
        """The columns of numbers whose types nobody has given."""
        return [field.name for field in self.schema if _is_number(field.type) and field.name not in self.given]

    @property
    def layout(self) -> str:
        return f"CSV with {self.delimiter!r}, {'with' if self.header else 'without'} a header"

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> "CsvReader":
        return CsvReader(self, name, compression, number, offset)

    def table(self, data: bytes) -> pa.Table:
        table = _table(data, self.delimiter, self.names, self.schema, self.null_values, self.encoding)
        for name, (kind, lost) in _kept_types(table, self._guessed, data, self.delimiter, self._texts).items():
            if kind != table.field(name).type:
                refuse(name, repr(lost), table.field(name).type, f"types={{{name!r}: str}} keeps it")
        return table

    def _texts(self, data: bytes, names: Sequence[str]) -> pa.Table:
        """Some columns as they are written."""
        return _table(data, self.delimiter, self.names, _as_text(names), self.null_values, self.encoding)

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
            if names != list(format.names):
                self.close()
                raise StorageError(f"{self._name!r} has the columns {names}, expected {list(format.names)}")
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
    mask_nulls: Sequence[str],
    label: str,
    null_values: tuple[str, ...] | None,
    encoding: str,
    without_rows: bool,
) -> CsvRecords | None:
    """What a file's first records show about its rows, and those of other files like it.

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
        found_names = _header(first, delimiter, encoding)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise StorageError(f"{call}: {name!r} has no first line that tells which columns there are: {error}") from error
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
    known = pa.schema([(column, kind) for column, kind in types.items() if column in names])
    found = chosen_schema(
        call, name, _sampled(call, name, body, delimiter, names, known, null_values, encoding), columns, types, label
    )
    return CsvRecords(
        call,
        found,
        tuple(mask_nulls),
        label,
        tuple(known.names),
        tuple(names),
        header is True,
        delimiter,
        null_values,
        encoding,
    )


def _sampled(
    call: str,
    name: str,
    body: bytes,
    delimiter: str,
    names: list[str],
    known: pa.Schema,
    null_values: tuple[str, ...] | None,
    encoding: str,
) -> pa.Schema:
    """All columns, and their types: those that are known, and for the others guesses that keep what is written."""

    def texts(data: bytes, some: Sequence[str]) -> pa.Table:
        return _table(data, delimiter, names, _as_text(some), null_values, encoding)

    def schema(data: bytes) -> pa.Schema:
        table = _table(data, delimiter, names, known, null_values, encoding, every=True)
        guessed = [field.name for field in table.schema if _is_number(field.type) and field.name not in known.names]
        kept = _kept_types(table, guessed, data, delimiter, texts)
        for column, (kind, lost) in kept.items():
            if kind is None:
                raise InvalidArgumentError(
                    f"{call}: {name!r} has numbers in its column {column!r} that neither float64 nor uint64 holds, as "
                    f"{lost}: types={{{column!r}: str}} keeps what is written, np.float64 takes what is nearest"
                )
        kinds = {field.name: field.type for field in table.schema} | {one: kind for one, (kind, _) in kept.items()}
        # What is not UTF-8 is an error where it is read, as it is in a file that is read later.
        is_text = {one: pa.types.is_null(kind) or pa.types.is_binary(kind) for one, kind in kinds.items()}
        return pa.schema(
            [(one, pa.string() if is_text[one] and one not in known.names else kind) for one, kind in kinds.items()]
        )

    try:
        found = schema(body)
    except (pa.ArrowException, ElementError, UnicodeDecodeError) as error:
        problem = error
        # Some record is damaged. It is an error where it is read; a few of those before it tell as much as there is.
        lines = _ends(body, True, delimiter.encode())
        found = None
        while found is None and len(lines) > 1:
            lines = lines[: len(lines) // 2]
            try:
                found = schema(body[: int(lines[-1])])
            except (pa.ArrowException, UnicodeDecodeError) as error:
                problem = error
        if found is None:
            raise StorageError(
                f"{call}: {name!r} has columns {names}, and its first record does not fit them, or the given types: "
                f"{body[: int(lines[0])]!r:.200}: {problem}"
            ) from problem
    return found


def _kept_types(
    table: pa.Table,
    guessed: Sequence[str],
    data: bytes,
    delimiter: str,
    texts: Callable[[bytes, Sequence[str]], pa.Table],
) -> dict[str, tuple[pa.DataType | None, str]]:
    """The types of guessed columns that keep their numbers as they are written, where the guess may not."""
    wanted = list(guessed)
    if not guessed or not may_have_leading_zeros(data, delimiter.encode()):
        wanted = [name for name in guessed if may_be_rounded(table[name])]
    if not wanted:
        return {}
    written = texts(data, wanted)
    return {name: type_of_texts(table[name], written[name]) for name in wanted}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _as_text(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _table(
    data: bytes,
    delimiter: str,
    names: Sequence[str],
    schema: pa.Schema,
    null_values: tuple[str, ...] | None,
    encoding: str,
    every: bool = False,
) -> pa.Table:
    if not data:
        return pa.schema([(name, pa.null()) for name in names] if every else schema).empty_table()
    return pc.read_csv(
        pa.BufferReader(data),
        pc.ReadOptions(column_names=list(names), block_size=len(data) + 1, use_threads=False, encoding=encoding),
        # Without quotes no value holds a newline; Arrow then does not look for the last record's end value by value.
        pc.ParseOptions(delimiter=delimiter, newlines_in_values=_QUOTE in data),
        pc.ConvertOptions(
            column_types=schema,
            include_columns=[] if every else schema.names,
            null_values=null_values,
            quoted_strings_can_be_null=False,
        ),
    )


def _header(record: bytes, delimiter: str, encoding: str) -> list[str]:
    """The values of the record that names the columns."""
    options = pc.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    reading = pc.ReadOptions(block_size=len(record) + 2, use_threads=False, encoding=encoding)
    found: list[str] = pc.read_csv(pa.BufferReader(record + b"\n"), reading, options).column_names
    return found


def _ends(data: bytes, whole: bool, delimiter: bytes) -> npt.NDArray[np.int64]:
    """Where each record ends. Empty lines belong to the record before them, or else to the one behind."""
    content = np.frombuffer(data, np.uint8)
    lines = np.flatnonzero(content == _NEWLINE)
    if _RETURN in data:
        lines = np.union1d(lines, _returns_alone(content, whole))
    if _QUOTE in data:
        lines = lines[~_quoted(data, content, lines, delimiter)]
    ends = lines + 1
    if whole and (len(ends) == 0 or ends[-1] < len(data)) and data:
        ends = np.append(ends, len(data))
    lengths = np.diff(ends, prepend=0)
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
    """Which of these offsets are within quotes."""
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
    """Whether a value in quotes has no end."""
    return any(found["open"] is not None for found in _values_in_quotes(data, delimiter))


def _values_in_quotes(data: bytes, delimiter: bytes) -> Iterator[re.Match[bytes]]:
    pattern = rb'(?:(?<=[\n\r%b])|\A(?:\xef\xbb\xbf)?)"[^"]*+(?:""[^"]*+)*+(?:"|(?P<open>\Z))' % re.escape(delimiter)
    return re.finditer(pattern, data)
