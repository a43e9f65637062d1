"""Datasets of the rows of text files that hold tables: CSV and JSON lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.data.arguments import check_encoding
from penstock.data.dataset import Dataset
from penstock.data.file_datasets import Files, check_columns, dataset_of_names, first_with_rows, stream_or_index
from penstock.data.tensorflow import CSV
from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats import tables
from penstock.formats.compression import check_compression
from penstock.formats.file_errors import by_library
from penstock.formats.tables.table_records import TableRecords, arrow_types
from penstock.other_names import other_keywords


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
        compression_type: None or "" for none; "GZIP", "ZLIB", "XZ" or "ZSTD", in any case.

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
        compression_type: None or "" for none; "GZIP", "ZLIB", "XZ" or "ZSTD", in any case.

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
