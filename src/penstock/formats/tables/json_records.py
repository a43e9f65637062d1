"""JSON lines: a JSON object on each line."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.records.record_format import CHUNK_BYTES, Source
from penstock.formats.records.text_lines import of_utf_16
from penstock.formats.tables.arrow_columns import DEEPEST, check_depth
from penstock.formats.tables.exact_numbers import in_python, may_be_rounded, refuse, type_of_values, values_in_json
from penstock.formats.tables.nulls import MaskNulls
from penstock.formats.tables.table_records import TableReader, TableRecords, chosen_schema, sample

_NEWLINE = ord("\n")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{", b"[")
_DEEP = b"[" * (2 * DEEPEST)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_IS_SPACE = np.isin(np.arange(256), list(b" \t\r\n"))


@dataclass(frozen=True)
class JsonRecords(TableRecords):
    """The objects of JSON lines. Lines of spaces alone are passed over.

    Attributes:
        some: whether other columns are skipped, as some were asked for by their names.
    """

    some: bool

    @property
    def layout(self) -> str:
        return "JSON lines"

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> TableReader:
        return TableReader(self, name, compression, number, offset)

    def table(self, data: bytes) -> pa.Table:
        if self.some and not any(pa.types.is_nested(self.schema.field(name).type) for name in self._guessed):
            table = _table(data, self.schema, "ignore")
        else:
            table = _table(data, self.schema, "infer")
            self._check_added(table)
            if table.schema != self.schema:
                table = _table(data, self.schema, "ignore")
        for name, (kind, lost) in _kept_types(table, self._guessed, data).items():
            if kind != table.field(name).type:
                own = table.field(name).type
                values = ([row.get(name)] for row in _objects(data))
                row = next(number for number, one in enumerate(values) if type_of_values(own, one)[1] is not None)
                refuse(name, lost, own, "types={...} may give one that keeps it", row)
        return table

    @cached_property
    def _guessed(self) -> dict[str, None]:
        """The columns whose types were guessed."""
        given = set(self.given)
        return dict.fromkeys(name for name in self.schema.names if name not in given)

    def _check_added(self, found: pa.Table) -> None:
        """Refuse a key that the first objects do not have. One that is always null adds nothing."""
        for field in found.schema:
            if field.name in self._guessed:
                path = _added(self.schema.field(field.name).type, field.type, f"[{field.name!r}]")
                if path:
                    raise ElementError(
                        f"it has {path}, and the first objects do not: types={{{field.name!r}: pa.struct([...])}} "
                        "names all that it may have"
                    )
            elif field.name not in self.given and not self.some and not pa.types.is_null(field.type):
                error = ElementError(
                    f"it has a key {field.name!r}, and the first objects do not: types={{{field.name!r}: ...}} reads "
                    f"it, with mask_nulls=[{field.name!r}] where it is missing, and columns=[...] skips it"
                )
                error.positions = (pc.index(found[field.name].is_valid(), True).as_py(),)
                raise error

    def explained(self, problem: str) -> str:
        if "changed from" not in problem and "Failed to convert" not in problem:
            return super().explained(problem)
        kinds = ", ".join(f"{field.name!r}: {field.type}" for field in self.schema)
        return (
            f"{problem}; the columns are read as {{{kinds}}}: types={{...}} gives one another type, and lines of "
            "unequal kinds are read as text, by .map(json.loads)"
        )

    def ends(self, data: bytes, whole: bool) -> npt.NDArray[np.int64]:
        return _ends(data, whole)


def json_records(
    call: str,
    name: str,
    compression: str,
    *,
    columns: Sequence[str] | None,
    types: Mapping[str, pa.DataType],
    mask_nulls: MaskNulls,
    label: str,
) -> JsonRecords | None:
    """The rows of a file as its first objects show them, and those of other files like it; None if there are none.

    Raises:
        StorageError: it cannot be read.
        InvalidArgumentError: its columns are not those that are asked for, or there are nulls alone in one.
    """
    data, ends = sample(call, name, compression, _ends, 1)
    if not len(ends):
        return None
    known = pa.schema(list(types.items()))
    found = None
    while found is None:
        try:
            found = _table(data[: int(ends[-1])], known, "infer")
        except (pa.ArrowException, InvalidTypeError) as error:
            if len(ends) == 1 and isinstance(error, InvalidTypeError):
                raise InvalidTypeError(f"{call}: {name!r}: {error}") from error
            if len(ends) == 1:
                advice = of_utf_16(data)
                if data.lstrip()[:1] == b"[":
                    advice = ": one JSON document is read by ps.Dataset.from_list(json.load(file))"
                raise StorageError(
                    f"{call}: {name!r}: its first line is no JSON object, or has other types: {error}{advice}"
                ) from error
            ends = ends[: len(ends) // 2]  # a damaged line is an error where it is read
    advice = ": types={...} declares one that later objects have"
    schema = chosen_schema(call, name, found.schema, columns, types, label, advice)
    for field in schema:
        check_depth(field.type, call, f" in {name!r} at [{field.name!r}]")
    guessed = [column for column in schema.names if column not in types]
    for column, (kind, lost) in _kept_types(found, guessed, data[: int(ends[-1])]).items():
        if kind is None:
            raise InvalidArgumentError(
                f"{call}: {name!r} has numbers in its column {column!r} that neither float64 nor uint64 holds, as "
                f"{lost!s:.60}: types={{{column!r}: {in_python(schema.field(column).type)}}} takes the nearest "
                "number; lines read as text keep it, by .map(json.loads)"
            )
        schema = schema.set(schema.get_field_index(column), pa.field(column, kind))
    for field in schema:
        if pa.types.is_null(field.type):
            raise InvalidArgumentError(
                f"{call}: {field.name!r} is always null in the first {CHUNK_BYTES:,} bytes of {name!r}: give its type "
                f"by types={{{field.name!r}: ...}}, or skip it by columns=[...]"
            )
    return JsonRecords(call, schema, mask_nulls, label, tuple(types), columns is not None)


def _added(known: pa.DataType, found: pa.DataType, path: str) -> str:
    """The place at which a type has a field that another one has not, and that is not always null; "" for nowhere."""
    if pa.types.is_list(found) and pa.types.is_list(known):
        return _added(known.value_type, found.value_type, path)
    if not pa.types.is_struct(found) or not pa.types.is_struct(known):
        return ""
    mine = {field.name: field.type for field in known}
    for field in found:
        deeper = f"{path}[{field.name!r}]"
        if field.name not in mine and not pa.types.is_null(field.type):
            return deeper
        if field.name in mine and (below := _added(mine[field.name], field.type, deeper)):
            return below
    return ""


def _kept_types(table: pa.Table, guessed: Iterable[str], data: bytes) -> dict[str, tuple[pa.DataType | None, Any]]:
    """The types of guessed columns that keep their numbers as they are written, where the guess may not."""
    wanted = [name for name in guessed if may_be_rounded(table[name])]
    if not wanted:
        return {}
    rows = list(_objects(data))
    return {name: type_of_values(table.field(name).type, [row.get(name) for row in rows]) for name in wanted}


def _objects(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects of lines, as Python reads them."""
    return (values_in_json(line) for line in data.removeprefix(BOM_UTF8).split(b"\n") if line.strip())


def _table(data: bytes, schema: pa.Schema, others: str) -> pa.Table:
    if data.removeprefix(BOM_UTF8).lstrip().startswith(b"null"):  # Arrow's reader would end the process
        raise pa.ArrowInvalid("expected an object, got null in row 0")
    if others == "infer" and _is_deep(data):
        raise InvalidTypeError(
            f"expected lists and structs up to {DEEPEST} within each other, got more: read it as text"
        )
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    reading = pj.ReadOptions(block_size=len(data) + 1, use_threads=False)
    return pj.read_json(pa.BufferReader(data), reading, options)


def _is_deep(data: bytes) -> bool:
    """True if lists and objects are so deep within each other that Arrow would take minutes to infer their types."""
    return _seems_deep(data) and _seems_deep(_STRING.sub(b"", data))


def _seems_deep(data: bytes) -> bool:
    """The same, where strings have no brackets."""
    left = data.translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):
        before, left = len(left), left.replace(b"[]", b"").replace(b"{}", b"")
        if len(left) == before:
            break
    return _DEEP in left.translate(_ALIKE)


def _ends(data: bytes, whole: bool) -> npt.NDArray[np.int64]:
    content = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(content == _NEWLINE) + 1
    if whole and data and (len(ends) == 0 or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    if not len(ends):
        return ends
    begins = np.append(0, ends[:-1])
    full = ~_IS_SPACE[content[begins]]
    full[0] &= not data.startswith(BOM_UTF8)
    for line in np.flatnonzero(~full).tolist():  # few lines begin with spaces
        full[line] = bool(data[begins[line] : ends[line]].removeprefix(BOM_UTF8).strip())
    lines = np.flatnonzero(full)
    return ends[np.append(lines[1:] - 1, len(ends) - 1)] if len(lines) else ends[:0]
