"""JSON lines: a JSON object on each line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.records import CHUNK_BYTES, Source
from penstock.formats.table_records import TableReader, TableRecords, chosen_schema, sample

_NEWLINE = ord("\n")
_SPACES = np.frombuffer(b" \t\r\n", np.uint8)


@dataclass(frozen=True)
class JsonRecords(TableRecords):
    """The objects of JSON lines. Lines of spaces alone are passed over."""

    @property
    def layout(self) -> str:
        return "JSON lines"

    def open(self, name: Source, compression: str, number: int = 0, offset: int = 0) -> TableReader:
        return TableReader(self, name, compression, number, offset)

    def table(self, data: bytes) -> pa.Table:
        return _table(data, pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"))

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
    mask_nulls: Sequence[str],
    label: str,
) -> JsonRecords:
    """What a file's first objects show about the others, and those of other files like it.

    Raises:
        StorageError: it cannot be read, or holds nothing.
        InvalidArgumentError: its columns are not those that are asked for, or there are nulls alone in one.
    """
    data, whole = sample(name, compression)
    ends = _ends(data, whole)
    if not len(ends):
        raise StorageError(f"{call}: {name!r} holds no object that tells which columns there are")
    known = pj.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="infer")
    found = None
    while found is None:
        try:
            found = _table(data[: int(ends[-1])], known).schema
        except pa.ArrowException as error:
            if len(ends) == 1:
                advice = ""
                if data.lstrip()[:1] == b"[":
                    advice = ": one JSON document is read by ps.Dataset.from_list(json.load(file))"
                raise StorageError(
                    f"{call}: {name!r}: its first line is no JSON object, or has other types: {error}{advice}"
                ) from error
            ends = ends[: len(ends) // 2]  # a damaged line is an error where it is read
    schema = chosen_schema(call, name, found, columns, types, label)
    for field in schema:
        if pa.types.is_null(field.type):
            raise InvalidArgumentError(
                f"{call}: {field.name!r} is always null in the first {CHUNK_BYTES:,} bytes of {name!r}: say its type "
                f"by types={{{field.name!r}: ...}}, or leave it out by columns=[...]"
            )
    return JsonRecords(call, schema, tuple(mask_nulls), label)


def _table(data: bytes, options: pj.ParseOptions) -> pa.Table:
    reading = pj.ReadOptions(block_size=len(data) + 1, use_threads=False)
    return pj.read_json(pa.BufferReader(data), reading, options)


def _ends(data: bytes, whole: bool) -> npt.NDArray[np.int64]:
    content = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(content == _NEWLINE) + 1
    if whole and data and (len(ends) == 0 or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    if not len(ends):
        return ends
    begins = np.append(0, ends[:-1])
    full = ~np.isin(content[begins], _SPACES)
    for line in np.flatnonzero(~full).tolist():  # few lines begin with spaces
        full[line] = bool(data[begins[line] : ends[line]].strip())
    lines = np.flatnonzero(full)
    return ends[np.append(lines[1:] - 1, len(ends) - 1)] if len(lines) else ends[:0]
