"""Datasets of the rows of tables that have versions: planned by their own libraries, and read at one version."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from penstock.data.arguments import user_site
from penstock.data.block import object_column
from penstock.data.dataset import Dataset
from penstock.data.file_datasets import check_columns, files_by_index
from penstock.data.operators.sources import PlannedNames
from penstock.errors import InvalidArgumentError, StorageError
from penstock.extras import load
from penstock.formats import tables
from penstock.formats.file_format import FileFormat
from penstock.structure import LEAF


@cache
def _library(module: str, extra: str, name: str) -> Any:
    """A module of `formats/tables` that needs the package of an extra."""
    return load(f"penstock.formats.tables.{module}", extra, f"ps.{name}")


def DeltaDataset(  # noqa: N802  # as the other readers
    table: Any,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    *,
    filter: Any = None,
    mask_nulls: bool | Sequence[str] | None = None,
) -> Dataset[dict[str, Any]]:
    """The rows of a table of Delta Lake at one version, as dictionaries; any row is read by its number.

    It needs the extra `delta`. `deltalake` reads the table's log, and penstock its Parquet files, as
    `ps.ParquetDataset` does. Deleted rows are left out, columns of partitions are added, and columns that a file lacks
    are null there. Files come in the order in which they were added.

    The version is part of the dataset, so of its states and checkpoints: a state of another one is refused.

    Args:
        table: where the table lies, or a `deltalake.DeltaTable`, which is read at the version that it is at.
        version: of the table; None for the newest one when the dataset is made.
        columns: those to read; None for all.
        types: what columns are converted to, by name, as for `ps.ParquetDataset`.
        filter: an expression of Arrow's, such as `pyarrow.compute.field("age") >= 18`, over any columns: other rows
            are skipped. Files whose partitions rule it out are not opened.
        mask_nulls: columns in which nulls become zeros, with a column "x_is_valid" beside each; True for all.

    Raises:
        StorageError: there is no such table or version, or a file of it is gone, as after a vacuum.
        InvalidArgumentError: a table with a feature that is not read, such as renamed columns; one without rows; a
            column or a filter that does not fit.
        InvalidTypeError: no table, or a column of a type that NumPy does not have.
        MissingExtraError: the package is not installed.

    Example:
        >>> dataset = DeltaDataset("s3://bucket/people", version=12, columns=["name"])  # doctest: +SKIP
        >>> dataset.shuffle(seed=1).batch(32)  # doctest: +SKIP
    """
    call = "DeltaDataset"
    masks = check_columns(call, columns, mask_nulls)
    delta = _library("delta", "delta", call)
    plan = delta.planned(table, version)
    files = tables.parquet.ParquetFiles(columns, filter, masks, types, call=call, table=plan)
    return _rows_of(call, delta.with_rows(plan, filter), files, getattr(table, "table_uri", str(table)))


def IcebergDataset(  # noqa: N802  # as the other readers
    table: Any,
    snapshot_id: int | None = None,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    *,
    filter: Any = None,
    mask_nulls: bool | Sequence[str] | None = None,
) -> Dataset[dict[str, Any]]:
    """The rows of a table of Iceberg at one snapshot, as dictionaries; any row is read by its number.

    It needs the extra `iceberg`. `pyiceberg` plans which files are read, and penstock reads them, as
    `ps.ParquetDataset` does. Deleted rows are left out, by lists of positions and by deletion vectors. Columns have the
    names and types of the snapshot, whatever they were called when a file was written, and are null where a file lacks
    them.

    The snapshot is part of the dataset, so of its states and checkpoints: a state of another one is refused.

    Args:
        table: what a catalogue of pyiceberg gives, `catalog.load_table("db.people")`.
        snapshot_id: of the table; None for the newest one that the table knows.
        columns: those to read; None for all.
        types: what columns are converted to, by name, as for `ps.ParquetDataset`.
        filter: one of pyiceberg's, such as "age >= 18" or `pyiceberg.expressions.GreaterThanOrEqual("age", 18)`: other
            rows are skipped, and files without such rows are not opened.
        mask_nulls: columns in which nulls become zeros, with a column "x_is_valid" beside each; True for all.

    Raises:
        StorageError: a file of the table is gone or is no Parquet, or rows were deleted by equality, which pyiceberg
            does not plan.
        InvalidArgumentError: no such snapshot, a table without rows, a column or a filter that does not fit, or structs
            whose fields were renamed.
        InvalidTypeError: no table, or a column of a type that NumPy does not have.
        MissingExtraError: the package is not installed.

    Example:
        >>> table = catalog.load_table("db.people")  # doctest: +SKIP
        >>> IcebergDataset(table, columns=["name"], filter="age >= 18").shuffle(seed=1).batch(32)  # doctest: +SKIP
    """
    call = "IcebergDataset"
    masks = check_columns(call, columns, mask_nulls)
    plan, kept = _library("iceberg", "iceberg", call).planned(table, snapshot_id, filter)
    files = tables.parquet.ParquetFiles(columns, kept, masks, types, call=call, table=plan)
    return _rows_of(call, list(plan.values), files, ".".join(table.name()))


def LanceDataset(  # noqa: N802  # as the other readers
    data: Any,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    *,
    filter: str | None = None,
    mask_nulls: bool | Sequence[str] | None = None,
) -> Dataset[dict[str, Any]]:
    """The rows of a Lance data set at one version, as dictionaries; any row is read by its number.

    It needs the extra `lance`, whose `take` reads the rows, a block at a time. The version is part of the dataset, so
    of its states and checkpoints: a state of another one is refused.

    Args:
        data: where the data set lies, or a `lance.LanceDataset`, which is read at the version that it is at, and goes
            to data workers with its storage options.
        version: of the data; None for the newest one when the dataset is made.
        columns: those to read; None for all.
        filter: an expression of SQL, such as "age >= 18", over any columns: other rows are skipped. Its columns are
            read once when the dataset is made; 8 bytes are kept for each row that it selects.
        mask_nulls: columns in which nulls become zeros, with a column "x_is_valid" beside each; True for all.

    Raises:
        StorageError: there is no such data set or version; while iterating, rows cannot be read.
        InvalidArgumentError: a column or a filter that does not fit.
        InvalidTypeError: no data set, or a column of a type that NumPy does not have.
        MissingExtraError: the package is not installed.

    Example:
        >>> LanceDataset("people.lance", version=3, filter="age >= 18").shuffle(seed=1).batch(32)  # doctest: +SKIP
    """
    call = "LanceDataset"
    masks = check_columns(call, columns, mask_nulls)
    rows = _library("lance_rows", "lance", call).LanceRows(data, version, columns, masks)
    dataset = _rows_of(call, [os.fspath(rows.dataset.uri)], rows, rows.dataset.uri)
    return dataset if filter is None else dataset.select(rows.kept(filter))


def _rows_of(call: str, names: list[str], format: FileFormat, table: str) -> Dataset[Any]:
    """The rows of the files of a table at a version."""
    if not names:
        raise InvalidArgumentError(
            f"{call}: the table {table!r} has no rows at {format.version}, or none that the filter keeps"
        )
    planned = PlannedNames("files", (object_column(names),), LEAF, len(names), site=user_site())
    try:
        return files_by_index(call, Dataset(planned), format)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise StorageError(
            f"{call}: a file of the table {table!r} at {format.version} is gone, as after a vacuum or when snapshots "
            f"expired: read a newer version ({error})"
        ) from error
