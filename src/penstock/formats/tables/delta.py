"""Tables of Delta Lake at a version: `deltalake` reads their log, and penstock their Parquet files."""

from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.fs as pa_fs

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.file_errors import by_library
from penstock.formats.tables.file_columns import FileColumns, TableVersion
from penstock.paths import has_protocol

_CALL: Final = "DeltaDataset"
_READ: Final = {
    *("deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "columnMapping"),
    *("variantType", "domainMetadata"),
}
"""The features of tables that are read, some only where the table does not use them."""


def planned(given: Any, version: int | None) -> TableVersion:
    """The files of a table at a version, as its log describes them; None for the version that it is at.

    Raises:
        InvalidTypeError: no table, nor the name of one.
        InvalidArgumentError: a table that is at another version, or needs what is not read.
        StorageError: there is no such table, or no such version.
    """
    if isinstance(given, deltalake.DeltaTable):
        if version not in (None, given.version()):
            raise InvalidArgumentError(
                f"{_CALL}(version={version}) got a DeltaTable that is at version {given.version()}: call "
                f"table.load_as_version({version}) before"
            )
        where, version = given.table_uri, given.version()
    elif isinstance(given, str) or hasattr(given, "__fspath__"):
        where = str(given)
    else:
        raise InvalidTypeError(f"{_CALL}(table=...) takes a deltalake.DeltaTable or where one lies, got {given!r:.200}")
    own = given if isinstance(given, deltalake.DeltaTable) else None
    plan = TableVersion.shared(
        f"{_CALL}({where!r}, {version})", lambda: _plan_of(_opened(where, version) if own is None else own)
    )
    return replace(plan, at=lambda other: _plan_of(_opened(where, other)))


def _opened(where: str, version: int | None) -> Any:
    wanted = "" if version is None else f" at version {version}"
    with by_library(f"{_CALL}: the table {where!r} cannot be opened{wanted}", StorageError):
        return deltalake.DeltaTable(where, version=version)


def _plan_of(table: Any) -> TableVersion:
    _check_features(table)
    schema = pa.schema(table.schema().to_arrow())
    with by_library(f"{_CALL}: the table {table.table_uri!r} is damaged at version {table.version()}", StorageError):
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        vectors = pa.table(table.deletion_vectors())
    actions.sort(key=lambda action: (action["modification_time"], action["path"]))  # files that came first, first
    partition = table.metadata().partition_columns
    values = {
        _file(table, action["path"]): {column: action[f"partition.{column}"] for column in partition}
        for action in actions
    }
    deleted = {
        _local(file.as_py()): np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
        for file, kept in zip(*vectors.select(["filepath", "selection_vector"]).columns, strict=True)
    }
    rows = {
        file: action["num_records"] - len(deleted.get(file, ())) for file, action in zip(values, actions, strict=True)
    }
    return TableVersion(schema, values, deleted, f"version={table.version()}", rows)


def with_rows(plan: TableVersion, filter: pd.Expression | None) -> list[str]:
    """The files that may have rows for which a filter is true, by their partitions; one if none has."""
    if filter is None:
        return list(plan.values)
    format, system, empty = pd.ParquetFileFormat(), pa_fs.LocalFileSystem(), pa.schema([])  # nothing is read
    fragments = []
    for name, values in plan.values.items():
        partition = FileColumns(name, empty, pa.schema([plan.schema.field(column) for column in values]), values)
        fragments.append(format.make_fragment(name, system, partition.known))
    with by_library(f"{_CALL}(filter=...) does not fit the table", InvalidArgumentError):
        found = pd.FileSystemDataset(fragments, plan.schema, format, system).get_fragments(filter)
        return [part.path for part in found] or list(plan.values)[:1]


def _check_features(table: Any) -> None:
    """Refuse a table whose rows would be wrong if its files were read as they are.

    Raises:
        InvalidArgumentError: it is one.
    """
    needs = set(table.protocol().reader_features or ()) - _READ
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        needs.add("columnMapping")
    if any(repr(field.type) == 'PrimitiveType("variant")' for field in table.schema().fields):
        needs.add("variantType")
    if needs:
        raise InvalidArgumentError(
            f"{_CALL}: the table {table.table_uri!r} uses {sorted(needs)}, which is not read: have the table's library "
            "read it, and pass on its stream by ps.Dataset.from_arrow_stream"
        )


def _file(table: Any, path: str) -> str:
    """The name of a file of a table, of its path in the log."""
    return _local(path if has_protocol(path) else f"{table.table_uri.rstrip('/')}/{path}")


def _local(uri: str) -> str:
    """A name as files are opened by, of an address."""
    return unquote(uri).removeprefix("file://")
