"""Datasets of the records of files."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from penstock.data.arguments import check_encoding, user_site
from penstock.data.block import object_column
from penstock.data.dataset import Dataset
from penstock.data.node import Node
from penstock.data.operators.indexed_files import IndexedFiles
from penstock.data.operators.read_files import ReadFiles
from penstock.data.operators.sources import FileNames, Listing
from penstock.data.tensorflow import FILES
from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats import tables
from penstock.formats.compression import check_compression
from penstock.formats.file_format import FileFormat, difference
from penstock.formats.matching import expanded, is_pattern, matching_files
from penstock.formats.opening import check_exists, size_of
from penstock.formats.records.fixed_records import FixedFiles, FixedRecords
from penstock.formats.records.record_files import RecordFiles
from penstock.formats.records.record_format import RecordFormat
from penstock.formats.records.text_lines import TextLines
from penstock.formats.records.tfrecord import TFRecords
from penstock.formats.registry import format_of
from penstock.formats.tables.table_folders import refuse_versions
from penstock.other_names import other_keywords
from penstock.paths import has_protocol, local_path
from penstock.runtime.progress import Progress
from penstock.statistics import process
from penstock.structure import LEAF, flatten

_COUNTING_THREADS: Final = 32
"""More than the cores: some threads wait for a disk or a server while others count."""

Told = TypeVar("Told")

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Dataset


@other_keywords(FILES)
def TextLineDataset(  # noqa: N802  # as TensorFlow has it
    files: Files, compression_type: str | None = None, *, encoding: str = "utf-8"
) -> Dataset[str]:
    r"""The lines of text files as strings, one file after the other.

    A line ends with "\n" or "\r\n", which are not part of it; the last line of a file needs no end. Empty lines are
    elements.

    Args:
        files: a name, several, or a dataset of names. A dataset of (name, start, stop) reads lines start to stop - 1 of
            a file.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case.
        encoding: of the text, by a name that Python knows, such as "latin-1"; not UTF-16 and its kind.

    Raises:
        StorageError: a file is missing; while iterating, a file that a dataset names is missing, or a file cannot be
            read. Iterating then continues with the next file.
        ElementError: while iterating, a line that is not in the encoding. Iterating continues with the next line.
        InvalidArgumentError: another compression type or encoding.
        InvalidTypeError: something else than names.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "poem.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("rose\nviolet\n")
        >>> list(TextLineDataset(path).map(str.upper))
        ['ROSE', 'VIOLET']
    """
    check_encoding("TextLineDataset", encoding)
    return records_of("TextLineDataset", files, TextLines(encoding), compression_type)


@other_keywords(FILES)
def TFRecordDataset(files: Files, compression_type: str | None = None) -> Dataset[bytes]:  # noqa: N802  # as TensorFlow has it
    r"""The records of TFRecord files as bytes, one file after the other. Both checksums of every record are verified.

    Args:
        files: a name, several, or a dataset of names. A dataset of (name, start, stop) reads records start to stop - 1
            of a file.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case.

    Raises:
        StorageError: a file is missing; while iterating, a file that a dataset names is missing, or a record is
            damaged. If only the record's data is damaged, iterating continues with the next record, otherwise with the
            next file.
        InvalidArgumentError: another compression type.
        InvalidTypeError: something else than names.

    Example:
        >>> import os, tempfile
        >>> import penstock as ps
        >>> path = os.path.join(tempfile.mkdtemp(), "numbers.tfrecord")
        >>> with ps.TFRecordWriter(path) as writer:
        ...     for number in range(3):
        ...         writer.write(bytes([number]))
        >>> list(TFRecordDataset([path, path]).batch(4))[1].tolist()
        [b'\x01', b'\x02']
    """
    return records_of("TFRecordDataset", files, TFRecords(), compression_type)


@other_keywords(FILES)
def FixedLengthRecordDataset(  # noqa: N802  # as TensorFlow has it
    files: Files,
    record_bytes: int,
    header_bytes: int = 0,
    footer_bytes: int = 0,
    *,
    compression_type: str | None = None,
) -> Dataset[bytes]:
    r"""The records of files in which all have one length, as bytes; of files not compressed by their numbers.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        record_bytes: how long each record is.
        header_bytes: how much at the beginning of each file belongs to no record.
        footer_bytes: how much at its end.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case. Such files are read
            as streams.

    Raises:
        StorageError: a file is missing, or holds no whole number of records; of compressed files while iterating.
        InvalidArgumentError: lengths that cannot be, another compression type, or a pattern without files.
        InvalidTypeError: something else than names.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pixels.rgb"
        >>> _ = path.write_bytes(b"v1" + bytes(range(9)))
        >>> dataset = FixedLengthRecordDataset(path, record_bytes=3, header_bytes=2)
        >>> len(dataset), dataset[2]
        (3, b'\x06\x07\x08')
    """
    call = "FixedLengthRecordDataset"
    if record_bytes < 1 or header_bytes < 0 or footer_bytes < 0:
        raise InvalidArgumentError(
            f"{call} takes record_bytes of at least 1, and header_bytes and footer_bytes of at least 0, got "
            f"{record_bytes}, {header_bytes} and {footer_bytes}"
        )
    records = FixedRecords(record_bytes, header_bytes, footer_bytes)
    return stream_or_index(call, files, records, compression_type, FixedFiles(records))


def ParquetDataset(  # noqa: N802  # as the others
    files: Files,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Any] | None = None,
    *,
    filter: Any = None,
    mask_nulls: bool | Sequence[str] | None = None,
    partitions: Mapping[str, Any] | None = None,
) -> Dataset[dict[str, Any]]:
    """The rows of Parquet files as dictionaries, one file after the other; any row is read by its number.

    So a shuffle above it is one of all rows, and nothing is read to skip rows, to resume, or for the rows of other
    workers. The least that is decoded is a row group; those read last are kept, up to 256 MiB by all datasets of a
    process together. For shuffling write files with row groups of a few thousand rows: `explain()` says what a row at
    random costs.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        columns: those to read; None for all.
        types: what columns are converted to, by name: what NumPy takes for a dtype, `str`, or a type of Arrow. Decimals
            and times of day need one, since NumPy has none for them. Numbers that do not fit are errors.
        filter: an expression of Arrow's, such as `pyarrow.compute.field("age") >= 18`, over any columns: other rows are
            skipped. Its columns are read once when the dataset is made, but for row groups that their statistics rule
            out.
        mask_nulls: columns in which nulls become zeros, empty strings or empty lists, with a column "x_is_valid" of
            booleans beside each; True for all. A null elsewhere is an error, but in lists of objects.
        partitions: columns that stand in the names of folders, as in "year=2024/part-0.parquet", with their types:
            `{"year": int}`.

    Raises:
        StorageError: a file is missing, is no Parquet file, or has other columns than the first one; while iterating, a
            row group is damaged. Its rows fail, and iterating continues behind them.
        InvalidArgumentError: a column that is not there, a filter that does not fit, a pattern without files, or one of
            files of a table with versions, such as Delta's.
        InvalidTypeError: a value that is no type, a column of a type that NumPy does not have, or files that are no
            names.

    Example:
        >>> import os, tempfile
        >>> import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
        >>> path = os.path.join(tempfile.mkdtemp(), "people.parquet")
        >>> pq.write_table(pa.table({"age": [31, 17, 54], "name": ["Ada", "Bob", "Cid"]}), path)
        >>> dataset = ParquetDataset(path, ["name"], filter=pc.field("age") >= 18)
        >>> len(dataset), list(dataset)
        (2, [{'name': 'Ada'}, {'name': 'Cid'}])
    """
    masks = check_columns("ParquetDataset", columns, mask_nulls)
    folders = tables.file_columns.NamedFolders(partitions) if partitions else None
    format = tables.parquet.ParquetFiles(columns, filter, masks, types, table=folders)
    names = dataset_of_names("ParquetDataset", files)
    for listing in names.node.walk():
        if isinstance(listing, Listing):
            refuse_versions("ParquetDataset", listing.columns[0])
    return files_by_index("ParquetDataset", names, format)


def FilesDataset(files: Files, format: str | FileFormat) -> Dataset:  # noqa: N802  # as the others
    r"""The rows of files of a format, one file after the other; any row is read by its number.

    "text" and "tfrecord" give the elements of `ps.TextLineDataset` and `ps.TFRecordDataset`, in the same order, of
    files that are not compressed. Nothing in such files says where a record begins, so each is read once when the
    dataset is made. That index of a larger file is kept in the user's cache directory (`$PENSTOCK_CACHE`, or
    `~/.cache/penstock`), and is made again when the file's size or time of change differs.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        format: what reads them, or its name: "megatron", "npy", "parquet", "text", "tfrecord", or one that
            `ps.files.register_format` gave. "npy" reads the rows of arrays that `numpy.save` has written.

    Raises:
        StorageError: a file is missing, cannot be read, or has other rows than the first one; while iterating, a row is
            damaged, or a file has changed. Iterating continues behind the row.
        InvalidArgumentError: no such format, or a pattern without files.
        InvalidTypeError: something else than names, or than a format.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "poem.txt"
        >>> _ = path.write_text("rose\nviolet\nsugar\n")
        >>> lines = FilesDataset(path, "text")
        >>> len(lines), lines[2], list(lines.shuffle(seed=3))
        (3, 'sugar', ['rose', 'sugar', 'violet'])
    """
    return files_by_index("FilesDataset", files, format_of(format))


def files_by_index(call: str, files: Files, format: FileFormat) -> Dataset:
    """The dataset of the rows of files, each of which was looked into."""
    names = names_of(call, files)
    if not names.indexable or names.cardinality < 0 or names.varies:
        raise InvalidArgumentError(
            f"{call} takes names that are known and in one order, got {names.where()}: give it a list of them, and "
            "shuffle its rows"
        )
    given = list(dict.fromkeys(_name_of(one) for one in Dataset(names)))
    if not given:
        raise _no_files(call)
    counts: dict[str, int] = {}
    kinds: dict[str, Any] = {}
    with (
        process.start(process.FILES),
        ThreadPoolExecutor(min(_COUNTING_THREADS, max(1, len(given))), "penstock-files") as pool,
        Progress(f"{call}: looking into files", len(given), unit="files") as progress,
    ):
        on_each = pool.map if len(given) > 1 else map  # starting a thread costs as much as looking into a file
        step = max(1, len(given) // (4 * _COUNTING_THREADS))  # handing over one small file costs as much, too
        parts = [given[start : start + step] for start in range(0, len(given), step)]

        def look_into(names: list[str]) -> list[tuple[int, Any]]:
            # Both of one file after the other, as few are kept open.
            return [(format.count(name), format.kind(name)) for name in names]

        for part, found in zip(parts, on_each(look_into, parts), strict=True):
            for name, (count, kind) in zip(part, found, strict=True):
                counts[name], kinds[name] = count, kind
            progress.add(len(part))
    for name in given:
        if kinds[name] != kinds[given[0]]:
            raise StorageError(f"{call}: {difference(call, (given[0], kinds[given[0]]), (name, kinds[name]))}")
    options = files.options() if isinstance(files, Dataset) else None
    sizes = {name: size_of(name) for name in counts}
    return Dataset(IndexedFiles(names, call, format, counts, sizes, site=user_site()), options)


def first_with_rows(call: str, files: Dataset, found: Callable[[str, bool], Told | None]) -> Told:
    """Return the description of the rows by the first file that has rows.

    Args:
        call: the name of the user's call.
        files: their names.
        found: describes the rows of a file; None if it has none. The flag is True if no file has rows: then a
            description by one without rows is accepted.

    Raises:
        InvalidArgumentError: there is no file.
        StorageError: no file describes rows.
    """
    seen: dict[str, None] = {}
    with process.start(process.FILES), iter(files) as names:
        for name in map(_name_of, names):
            if name in seen:  # names may repeat without end
                break
            seen[name] = None
            if (told := found(name, False)) is not None:
                return told
    for name in seen:
        if (told := found(name, True)) is not None:
            return told
    if not seen:
        raise _no_files(call)
    others = f", nor does any other of {len(seen)} files" if len(seen) > 1 else ""
    raise StorageError(f"{call}: {next(iter(seen))!r} holds no row that tells what rows are{others}")


def _no_files(call: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{call} takes at least one file, got none: the list of names is empty")


def _name_of(element: Any) -> str:
    """The name of a file, of a name or (name, start, stop)."""
    return str(element[0] if isinstance(element, tuple) else element)


def records_of(call: str, files: Files, record_format: RecordFormat, compression_type: str | None) -> Dataset:
    """The stream of the records of files."""
    compression = check_compression(call, compression_type)
    names = names_of(call, files)
    options = files.options() if isinstance(files, Dataset) else None
    return Dataset(ReadFiles(names, call, record_format, compression, site=user_site()), options)


def stream_or_index(
    call: str, files: Files, records: RecordFormat, compression_type: str | None, format: FileFormat | None = None
) -> Dataset:
    """The records of files by their numbers; where they are compressed, as a stream."""
    if check_compression(call, compression_type):
        return records_of(call, files, records, compression_type)
    return files_by_index(call, files, format or RecordFiles(records))


def check_columns(
    call: str, columns: Sequence[str] | None, mask_nulls: bool | Sequence[str] | None = None
) -> bool | tuple[str, ...]:
    """Check the names of columns; return those whose nulls are masked, or True for all."""
    if isinstance(columns, str) or isinstance(mask_nulls, str):
        arguments = "columns=...) takes" if mask_nulls is None else "columns=..., mask_nulls=...) take"
        raise InvalidTypeError(f"{call}({arguments} lists of names, got a string")
    if columns is not None and not columns:
        raise InvalidArgumentError(f"{call}(columns=...) takes at least one column, got none")
    return mask_nulls if isinstance(mask_nulls, bool) else tuple(mask_nulls or ())


def dataset_of_names(call: str, files: Files) -> Dataset:
    """The dataset of the names of files, which can be read more than once."""
    return files if isinstance(files, Dataset) else Dataset(names_of(call, files))


def names_of(call: str, files: Files) -> Node:
    """The node of the names of files."""
    if isinstance(files, Dataset):
        if files.node.spec is not None and not _may_name_files(files.node.spec):
            raise InvalidTypeError(f"{call} takes a dataset of file names, got one of {files.node.spec}")
        return files.node
    several: Any = [files] if isinstance(files, (str, os.PathLike)) else files
    if isinstance(several, (bytes, dict)) or not isinstance(several, Iterable):
        raise InvalidTypeError(f"{call} takes a file name, several, or a ps.Dataset of them, got {files!r}")
    given = [_name(call, name) for name in several]
    names = [name for one in given for name in _matching(call, one)]
    if not names:
        raise _no_files(call)
    with process.start(process.FILES):
        for name in names:
            check_exists(call, name)
    kind = FileNames if names == given else Listing
    return kind("files", (object_column(names),), LEAF, len(names), site=user_site())


def _name(call: str, name: Any) -> str:
    path = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(path, str):
        raise InvalidTypeError(f"{call} takes file names as strings or paths, got {name!r}")
    return str(path) if has_protocol(path) else local_path(path)


def _matching(call: str, name: str) -> list[str]:
    """The files that a name means: a pattern's, or those of its braces, unless there is a file of that very name."""
    if not has_protocol(name) and os.path.exists(name):
        return [name]
    return [file for one in expanded(name) for file in (matching_files(call, one) if is_pattern(one) else [one])]


def _may_name_files(spec: Any) -> bool:
    leaves, structure = flatten(spec)
    ranged = structure.is_flat_tuple and len(leaves) == 3 and all(leaf.dtype.kind in "iu" for leaf in leaves[1:])
    return (structure == LEAF or ranged) and leaves[0].shape == () and leaves[0].dtype.kind in "OU"
