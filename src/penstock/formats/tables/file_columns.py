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
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pd

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.tables.arrow_columns import values_of
from penstock.formats.tables.table_records import arrow_types

_NUMBER: Final = b"PARQUET:field_id"
OLD_NAMES: Final = b"names"
"""The key of a field's metadata with a list of its names in files that do not number their columns, in JSON."""
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
        self.renamed = any(source not in (None, column) for column, source in self._sources.items()) or any(
            source is None and column in schema.names for column, source in self._sources.items()
        )
        self._values = {
            field.name: None if values[field.name] is None else pa.scalar(values[field.name], field.type)
            for field in table
            if field.name in values and self._sources[field.name] is None
        }
        equal = [
            pc.field(column).is_null() if value is None else pc.field(column) == value
            for column, value in self._values.items()
        ]
        self.known: pd.Expression | None = reduce(lambda one, other: one & other, equal) if equal else None

    def in_file(self, columns: list[str]) -> list[str]:
        """The file's names of those of these columns that it has."""
        return [source for column in columns if (source := self._sources.get(column)) is not None]

    def arranged(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows of the file as rows of the table, with these of its columns."""
        columns = []
        for field in schema:
            source, value = self._sources[field.name], self._values.get(field.name)
            if source is not None:
                column = rows[source]
                alike = values_of(column.type) == values_of(field.type)
                columns.append(column if alike else column.cast(field.type))
            else:
                columns.append(pa.nulls(len(rows), field.type) if value is None else pa.repeat(value, len(rows)))
        return pa.table(columns, schema.names)


class PlannedTable(ABC):
    """A table, and what is known of its files without reading them.

    Attributes:
        version: of the table, as an argument that its dataset takes: "version=3".
    """

    version: str = ""

    @abstractmethod
    def columns_in(self, name: str, schema: pa.Schema) -> FileColumns:
        """The columns of the table in a file, which has columns of its own.

        Raises:
            InvalidArgumentError: they are not read.
            StorageError: the file is not one of the table.
        """


@dataclasses.dataclass(frozen=True)
class TableVersion(PlannedTable):
    """A version of a table, as the library of its format plans it.

    Attributes:
        schema: the columns of the table.
        values: of each file's partition, by file and column.
        deleted: the numbers of the rows of files that the table no longer has.
    """

    version: str = dataclasses.field(kw_only=True)
    schema: pa.Schema
    values: Mapping[str, Mapping[str, Any]]
    deleted: Mapping[str, npt.NDArray[np.int64]]

    def columns_in(self, name: str, schema: pa.Schema) -> FileColumns:
        return FileColumns(name, schema, self.schema, self.values[name], self.deleted.get(name))


@dataclasses.dataclass(frozen=True)
class NamedFolders(PlannedTable):
    """Files in folders whose names are values of columns, as in "year=2024/city=Rome/part-0.parquet".

    Attributes:
        types: of these columns, by name.
    """

    types: Mapping[str, pa.DataType]

    @classmethod
    def of(cls, types: Mapping[str, Any]) -> "NamedFolders":
        """The columns of these types, each as NumPy or Arrow names it, or `str`.

        Raises:
            InvalidTypeError: one that they do not have.
        """
        return cls(arrow_types("ParquetDataset", types))

    def columns_in(self, name: str, schema: pa.Schema) -> FileColumns:
        folders = dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)
        values: dict[str, Any] = {}
        fields = []
        for column, kind in self.types.items():
            if column in schema.names or column not in folders:
                found = "the file has such a column itself" if column in schema.names else "no folder is named after it"
                raise InvalidArgumentError(
                    f"ParquetDataset(partitions=...): {name!r} has no folder such as '{column}=...' that gives the "
                    f"column {column!r}: {found}"
                )
            text = unquote(folders[column])
            try:
                values[column] = None if text == _NULL else pa.scalar(text).cast(kind).as_py()
            except pa.ArrowException as error:
                raise StorageError(
                    f"ParquetDataset(partitions=...): {column!r} of {name!r} is no {kind}: {error}"
                ) from error
            fields.append(pa.field(column, kind))
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
