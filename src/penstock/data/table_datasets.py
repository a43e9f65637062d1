"""Datasets of the rows of tables: text files of CSV and JSON lines, and tables that have versions.

The latter are planned by their own libraries, and read at one version.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from penstock.data.arguments import check_encoding, user_site
from penstock.data.block import object_column
from penstock.data.dataset import Dataset
from penstock.data.file_datasets import (
    Files,
    check_columns,
    dataset_of_names,
    files_by_index,
    first_with_rows,
    stream_or_index,
)
from penstock.data.operators.sources import PlannedNames
from penstock.data.tensorflow import CSV
from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.extras import load
from penstock.formats import tables
from penstock.formats.compression import check_compression
from penstock.formats.file_errors import by_library
from penstock.formats.file_format import FileFormat
from penstock.formats.tables.table_records import TableRecords, arrow_types
from penstock.other_names import other_keywords
from penstock.structure import LEAF


@other_keywords(CSV)
def CsvDataset(  # noqa: N802  # as TensorFlow has it
    files: Files,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    *,
    header: bool | Sequence[str] = True,
    label: str | None = None,
    delimiter: str = ",",
    mask_nulls: bool | Sequence[str] | None = None,
    null_values: Sequence[str] | None = None,
    encoding: str = "utf-8",
    compression_type: str | None = None,
) -> Dataset[Any]:
    r"""The rows of CSV files as dictionaries, one file after the other; of files not compressed by their numbers.

    Arrow's reader decodes them. Lines end as on Unix, Windows or old Macs. Values in quotes can hold line breaks; empty
    lines are passed over. Columns without a given type get the one that the first MiB of the first file with rows
    shows: int64, float64, bool, dates and times, or strings. A guess keeps values as written: integers beyond int64 are
    uint64, numbers with leading zeros are strings, and what a type would change further on is an error. An empty value
    is an empty string in columns of strings, and a null in others.

    Where rows begin is found in one pass when the dataset is made, as for `ps.FilesDataset(files, "text")`, so a
    shuffle is one of all rows. Compressed files are read as streams.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        columns: those to read; None for all.
        types: of columns, by name: what NumPy takes for a dtype, `str`, or a type of Arrow.
        header: whether the first line of each file names the columns, which must be the same ones in all. A list gives
            names for files without such a line; with False they are "f0", "f1" and so on.
        label: the column that makes each row a pair of the others and itself, as models are trained on.
        delimiter: the character between values.
        mask_nulls: columns in which nulls become zeros, with a column "x_is_valid" of booleans beside each; True for
            all. A null elsewhere is an error.
        null_values: the values that mean null in columns that are not of strings, such as ["?", ""]; None for Arrow's
            usual ones: nothing, "NA", "N/A", "null", "NaN" and others like them.
        encoding: of the text, by a name that Python knows, such as "latin-1" or "cp1252"; not UTF-16 and its kind, of
            which commas and line ends are no single bytes.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case.

    Raises:
        StorageError: a file is missing, or cannot be read, or has another header.
        ElementError: while iterating, a row with too many or too few values, or with one that does not fit its column.
            It says which line of which file. Iterating continues behind it.
        InvalidArgumentError: a column that is not there, or has integers beyond 64 bits and no given type; an unknown
            encoding, or a pattern or list without files.
        InvalidTypeError: a value that is no type, or files that are no names.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
        >>> _ = path.write_text('name,petals,red\nrose,5,true\n"violet,\nsweet",5,false\n')
        >>> for row, red in CsvDataset(path, types={"petals": "int32"}, label="red"):
        ...     print(repr(row["name"]), int(row["petals"]), bool(red))
        'rose' 5 True
        'violet,\nsweet' 5 False
    """
    call = "CsvDataset"
    masks = check_columns(call, columns, mask_nulls)
    if len(delimiter.encode()) != 1 or delimiter in '"\n\r':
        raise InvalidArgumentError(f"{call}(delimiter=...) takes one character, got {delimiter!r}")
    if not isinstance(header, bool) and (isinstance(header, str) or not all(isinstance(name, str) for name in header)):
        raise InvalidTypeError(f"{call}(header=...) takes a bool or a list of names, got {header!r}")
    if isinstance(null_values, str) or not all(isinstance(text, str) for text in null_values or ()):
        raise InvalidTypeError(f"{call}(null_values=...) takes a list of strings, got {null_values!r}")
    check_encoding(call, encoding)
    kinds = arrow_types(call, types)

    def found(name: str, compression: str, without_rows: bool) -> TableRecords | None:
        return tables.csv_records.csv_records(
            call,
            name,
            compression,
            columns=columns,
            types=kinds,
            header=header if isinstance(header, bool) else list(header),
            delimiter=delimiter,
            mask_nulls=masks,
            label=label or "",
            null_values=None if null_values is None else tuple(null_values),
            encoding=encoding,
            without_rows=without_rows,
        )

    return _tables(call, files, compression_type, found)


def JsonLinesDataset(  # noqa: N802  # as the others
    files: Files,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    *,
    label: str | None = None,
    mask_nulls: bool | Sequence[str] | None = None,
    compression_type: str | None = None,
) -> Dataset[Any]:
    r"""The objects of JSON lines as dictionaries, one file after the other; of files not compressed by their numbers.

    Arrow's reader decodes them. Columns without a given type get the one that the first MiB of the first file with
    objects shows; objects become dictionaries, arrays arrays, and arrays of objects arrays of dictionaries. Integers
    beyond int64 are uint64. A key missing in an object is a null; a key that only later objects have is an error,
    unless `types` or `columns` names it.
    Lines of spaces alone are passed over.

    Where lines begin is found in one pass when the dataset is made, as for `ps.FilesDataset(files, "text")`, so a
    shuffle is one of all rows. Compressed files are read as streams.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        columns: those to read, others are skipped; None for all that the first MiB has.
        types: of columns, by name: what NumPy takes for a dtype, `str`, or a type of Arrow.
        label: the column that makes each row a pair of the others and itself, as models are trained on.
        mask_nulls: columns in which nulls become zeros, empty strings or empty lists, with a column "x_is_valid" of
            booleans beside each; True for all. A null elsewhere is an error, but in lists of objects.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case.

    Raises:
        StorageError: a file is missing, or cannot be read.
        ElementError: while iterating, a line that is no JSON object, or has a key or a value that does not fit. It says
            which line of which file. Iterating continues behind it.
        InvalidArgumentError: a column that is not there, is always null, or has integers that no type holds; a pattern
            without files.
        InvalidTypeError: a value that is no type, or files that are no names.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.jsonl"
        >>> _ = path.write_text('{"name": "rose", "petals": [5, 6]}\n{"name": "violet", "petals": [5]}\n')
        >>> for row in JsonLinesDataset(path):
        ...     print(row["name"], row["petals"].tolist())
        rose [5, 6]
        violet [5]
    """
    call = "JsonLinesDataset"
    masks = check_columns(call, columns, mask_nulls)
    kinds = arrow_types(call, types)

    def found(name: str, compression: str, _: bool) -> TableRecords | None:
        return tables.json_records.json_records(
            call, name, compression, columns=columns, types=kinds, mask_nulls=masks, label=label or ""
        )

    return _tables(call, files, compression_type, found)


def _tables(
    call: str, files: Files, compression_type: str | None, found: Callable[[str, str, bool], TableRecords | None]
) -> Dataset[Any]:
    """Return the rows of files, whose columns and types follow from the first file that has rows."""
    compression = check_compression(call, compression_type)
    names = dataset_of_names(call, files)

    def told(name: str, without_rows: bool) -> TableRecords | None:
        with by_library(f"{call}: {name!r} cannot be read", StorageError):
            records = found(name, compression, without_rows)
            if records is not None:
                records.schema.empty_table()  # keys that are not UTF-8 are damage
        return records

    records = first_with_rows(call, names, told)
    return stream_or_index(call, names, records, compression)


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
