"""The columns of a table in one of its Parquet files, which may lack some, or have them under older names and types.

| a column of the table                              | where a file's rows have it from              |
|----------------------------------------------------|-----------------------------------------------|
| with a number, if the file numbers its columns too | the column of that number, whatever its name  |
| any other                                          | the column of that name                       |
| that the file lacks                                | the value of its partition, which all rows share |
| that is of no partition either                     | nowhere: it is null                           |
"""

import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.file_errors import by_library
from penstock.formats.remote.shared_listings import shared
from penstock.formats.tables.arrow_columns import values_of
from penstock.formats.tables.table_records import arrow_types

_NUMBER: Final = b"PARQUET:field_id"
OLD_NAMES: Final = b"names"
"""The key of a field's metadata with a list of its names in files that do not number their columns, in JSON."""
_VALUE: Final = "value of "
"""What the name of a column begins with, in a table of files, that has the values of their partitions."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class FileColumns:
    """The columns of a table as one of its files has them.

    Args:
        name: of the file.
        schema: of the file.
        table: the columns of the table.
        values: of the file's partition, by column.
        deleted: the numbers of the file's rows that the table no longer has.

    Attributes:
        schema: the columns of the table.
        renamed: true if the file has a column under another name than the table.
        known: an expression that is true for all rows of the file, by its partition.

    Raises:
        InvalidArgumentError: a struct whose fields have other names in the file.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        table: pa.Schema,
        values: Mapping[str, Any],
        deleted: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.schema = table
        self.deleted = deleted
        numbers = {_number(field): field.name for field in schema} if any(map(_number, schema)) else {}
        self._sources = {field.name: _source(field, numbers, schema.names) for field in table}
        for field in table:
            source = self._sources[field.name]
            if source is not None and _renamed_within(field.type, schema.field(source).type):
                raise InvalidArgumentError(
                    f"the column {field.name!r} of {name!r} has fields under other names than the table, which changed "
                    "since: name the other columns by columns=[...], or have the table's library rewrite the file"
                )
        self.renamed = any(
            source != column for column, source in self._sources.items() if source is not None or column in schema.names
        )
        self._values = {
            field.name: pa.scalar(values.get(field.name), field.type)
            for field in table
            if self._sources[field.name] is None
        }
        self.known = pc.scalar(True)
        for column, value in self._values.items():
            self.known &= pc.field(column) == value if value.is_valid else pc.field(column).is_null()

    def in_file(self, columns: list[str]) -> list[str]:
        """The file's names of those of these columns that it has."""
        return [source for column in columns if (source := self._sources.get(column)) is not None]

    def arranged(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows of the file as rows of the table, with these of its columns."""
        return pa.table([self._column(rows, field) for field in schema], schema.names)

    def _column(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        source = self._sources[field.name]
        if source is None:
            return pa.repeat(self._values[field.name], len(rows))
        column = rows[source]
        return column if values_of(column.type) == values_of(field.type) else column.cast(field.type)


@dataclasses.dataclass(frozen=True)
class TableVersion:
    """A version of a table, as the library of its format plans it.

    Attributes:
        schema: the columns of the table.
        values: of each file's partition, by file and column.
        deleted: the numbers of the rows of files that the table no longer has.
        version: as an argument that its dataset takes: "version=3".
        rows: the number of rows that each file has.
        at: gives the table at another version, in the process that has planned it.
    """

    schema: pa.Schema
    values: Mapping[str, Mapping[str, Any]]
    deleted: Mapping[str, npt.NDArray[np.int64]]
    version: str
    rows: Mapping[str, int]
    at: "Callable[[int], TableVersion] | None" = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "at": None}

    @staticmethod
    def shared(asked: str, plan: "Callable[[], TableVersion]") -> "TableVersion":
        """Return what `plan` gives, in one process of a job for all that share their listings and have asked alike."""
        (text,) = shared(asked, lambda: [plan().told()])
        return TableVersion.of(text)  # also in the process that has planned, so that fingerprints agree

    def told(self) -> str:
        """Return all but `at` as text: a table of Arrow's with a row for each file."""
        files = list(self.values)
        given = {
            _VALUE + field.name: pa.array([values.get(field.name) for values in self.values.values()], field.type)
            for field in self.schema
            if any(field.name in values for values in self.values.values())
        }
        deleted = pa.array([self.deleted.get(file) for file in files], pa.list_(pa.int64()))
        rows = pa.array([self.rows[file] for file in files], pa.int64())
        table = pa.table({"file": pa.array(files, pa.string()), "rows": rows, "deleted": deleted, **given})
        table = table.replace_schema_metadata({"version": self.version, "schema": self.schema.serialize().to_pybytes()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return b64encode(sink.getvalue()).decode()

    @classmethod
    def of(cls, text: str) -> "TableVersion":
        """Return what `told` has made a text of."""
        table = pa.ipc.open_stream(b64decode(text)).read_all()
        schema = pa.ipc.read_schema(pa.py_buffer(table.schema.metadata[b"schema"]))
        columns = [name for name in table.column_names if name.startswith(_VALUE)]
        values, rows, deleted = {}, {}, {}
        for file in table.to_pylist():
            name = file["file"]
            values[name], rows[name] = {column.removeprefix(_VALUE): file[column] for column in columns}, file["rows"]
            if file["deleted"] is not None:
                deleted[name] = np.array(file["deleted"], np.int64)
        return cls(schema, values, deleted, table.schema.metadata[b"version"].decode(), rows)

    def columns_in(self, name: str, schema: pa.Schema) -> FileColumns:
        """The columns of the table in a file, which has columns of its own; raises as `FileColumns`."""
        return FileColumns(name, schema, self.schema, self.values[name], self.deleted.get(name))


class NamedFolders:
    """Files in folders whose names are values of columns, as in "year=2024/city=Rome/part-0.parquet".

    Args:
        types: of these columns, by name, as NumPy or Arrow name them, or `str`.

    Raises:
        InvalidTypeError: one that they do not have.
    """

    version = ""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = arrow_types("ParquetDataset", types, "partitions")

    def columns_in(self, name: str, schema: pa.Schema) -> FileColumns:
        """The columns of a file, and of its folders those that it lacks.

        Raises:
            InvalidArgumentError: no folder is named after a column.
            StorageError: a folder's name is no value of its column.
        """
        folders = dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)
        fields = [pa.field(column, kind) for column, kind in self._types.items() if column not in schema.names]
        values = {}
        for field in fields:
            if field.name not in folders:
                raise InvalidArgumentError(
                    f"ParquetDataset(partitions=...): {name!r} is in no folder such as '{field.name}=...'"
                )
            text = unquote(folders[field.name])
            with by_library(f"{name!r}: the folder '{field.name}={text}' names no {field.type}", StorageError):
                values[field.name] = None if text == _NULL else pa.scalar(text).cast(field.type).as_py()
        return FileColumns(name, schema, pa.schema([*schema, *fields]), values)


def _number(field: pa.Field) -> bytes:
    """The number that a table of Iceberg gives a column, by which it is known under all its names; or nothing."""
    number: bytes = (field.metadata or {}).get(_NUMBER, b"")
    return number


def _source(field: pa.Field, numbers: Mapping[bytes, str], names: list[str]) -> str | None:
    """The name of a table's column in a file, whose columns have these numbers and names."""
    if numbers and _number(field):
        return numbers.get(_number(field))
    old = (field.metadata or {}).get(OLD_NAMES)
    wanted = [field.name] if old is None else json.loads(old)
    return next((name for name in wanted if name in names), None)


def _renamed_within(table: pa.DataType, file: pa.DataType) -> bool:
    """True if a field of structs within a column has another name or number in a file: Arrow goes by names."""
    if pa.types.is_struct(table) and pa.types.is_struct(file):
        numbers = {field.name: _number(field) for field in file}
        for field in table:
            moved = _number(field) in numbers.values() and numbers.get(field.name) != _number(field)
            if _number(field) and (moved or numbers.get(field.name, b"") not in (b"", _number(field))):
                return True
        pairs = [(field.type, file.field(field.name).type) for field in table if field.name in numbers]
    else:
        pairs = [(table.field(n).type, file.field(n).type) for n in range(min(table.num_fields, file.num_fields))]
    return any(_renamed_within(mine, other) for mine, other in pairs)
