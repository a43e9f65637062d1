"""Datasets of the records of files."""

import os
from collections.abc import Iterable
from typing import Any

from penstock.data.arguments import user_site
from penstock.data.block import object_column
from penstock.data.dataset import Dataset
from penstock.data.node import Node
from penstock.data.operators.files import ReadFiles
from penstock.data.operators.sources import Slices
from penstock.data.tensorflow import FILES
from penstock.errors import InvalidTypeError
from penstock.formats.files import check_compression, check_exists, has_protocol
from penstock.formats.records import RecordFormat
from penstock.formats.text_lines import TextLines
from penstock.formats.tfrecord import TFRecords
from penstock.paths import local_path
from penstock.structure import LEAF, flatten
from penstock.tensorflow_names import tensorflow_keywords

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Dataset


@tensorflow_keywords(FILES)
def TextLineDataset(files: Files, compression_type: str | None = None) -> Dataset[str]:  # noqa: N802  # as TensorFlow has it
    r"""The lines of text files as strings, one file after the other.

    A line ends with "\n" or "\r\n", which are not part of it; the last line of a file needs no end. Empty lines are
    elements.

    Args:
        files: a name, several, or a dataset of names. A dataset of (name, start, stop) reads lines start to stop - 1 of
            a file.
        compression_type: None or "" for none; "GZIP" or "ZLIB", in any case.

    Raises:
        StorageError: a file is missing; while iterating, a file that a dataset names is missing, or a file cannot be
            read. Iterating then continues with the next file.
        ElementError: while iterating, a line that is not UTF-8. Iterating continues with the next line.
        InvalidArgumentError: another compression type.
        InvalidTypeError: something else than names.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "poem.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("rose\nviolet\n")
        >>> list(TextLineDataset(path).map(str.upper))
        ['ROSE', 'VIOLET']
    """
    return _records("TextLineDataset", files, TextLines(), compression_type)


@tensorflow_keywords(FILES)
def TFRecordDataset(files: Files, compression_type: str | None = None) -> Dataset[bytes]:  # noqa: N802  # as TensorFlow has it
    r"""The records of TFRecord files as bytes, one file after the other. Both checksums of every record are verified.

    Args:
        files: a name, several, or a dataset of names. A dataset of (name, start, stop) reads records start to stop - 1
            of a file.
        compression_type: None or "" for none; "GZIP" or "ZLIB", in any case.

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
    return _records("TFRecordDataset", files, TFRecords(), compression_type)


def _records(call: str, files: Files, record_format: RecordFormat, compression_type: str | None) -> Dataset:
    compression = check_compression(call, compression_type)
    names = _names(call, files)
    options = files.options() if isinstance(files, Dataset) else None
    return Dataset(ReadFiles(names, call, record_format, compression, site=user_site()), options)


def _names(call: str, files: Files) -> Node:
    """The node of the names of files."""
    if isinstance(files, Dataset):
        if files.node.spec is not None and not _may_name_files(files.node.spec):
            raise InvalidTypeError(f"{call} takes a dataset of file names, got one of {files.node.spec}")
        return files.node
    several: Any = [files] if isinstance(files, (str, os.PathLike)) else files
    if isinstance(several, (bytes, dict)) or not isinstance(several, Iterable):
        raise InvalidTypeError(f"{call} takes a file name, several, or a ps.Dataset of them, got {files!r}")
    names = [_name(call, name) for name in several]
    for name in names:
        check_exists(call, name)
    return Slices("files", (object_column(names),), LEAF, len(names), site=user_site())


def _name(call: str, name: Any) -> str:
    path = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(path, str):
        raise InvalidTypeError(f"{call} takes file names as strings or paths, got {name!r}")
    return str(path) if has_protocol(path) else local_path(path)


def _may_name_files(spec: Any) -> bool:
    leaves, structure = flatten(spec)
    ranged = structure.is_flat_tuple and len(leaves) == 3 and all(leaf.dtype.kind in "iu" for leaf in leaves[1:])
    return (structure == LEAF or ranged) and leaves[0].shape == () and leaves[0].dtype.kind in "OU"
