"""Datasets of the samples of archives and shards that other loaders have."""

import os
from collections.abc import Sequence
from typing import Any

from penstock.data.dataset import Dataset
from penstock.data.file_datasets import (
    Files,
    check_columns,
    dataset_of_names,
    files_by_index,
    first_with_rows,
    stream_or_index,
)
from penstock.errors import InvalidTypeError
from penstock.formats.compression import check_compression
from penstock.formats.records.array_record import ArrayRecordFiles
from penstock.formats.records.mds import MdsFiles, shards_of
from penstock.formats.records.tar import tar_samples
from penstock.paths import has_protocol


def TarDataset(  # noqa: N802  # as the others
    files: Files, extensions: Sequence[str] | None = None, *, decode: bool = True, compression_type: str | None = None
) -> Dataset[dict[str, Any]]:
    """The samples of tar archives, as WebDataset has them, one file after the other; by their numbers.

    A sample is neighbouring members whose names are equal up to the first dot of their last part: `n/0001.jpg` and
    `n/0001.cls` are one. It becomes a dictionary of its key and the content of each extension: "__key__",
    "jpg" and "cls". Each sample must have exactly the extensions of the first sample of the first file, or
    else those that are named; others are then skipped. If a file holds several archives in a row, all are read.

    Where samples begin is found in one pass when the dataset is made, as for `ps.FilesDataset(files, "text")`, so a
    shuffle is one of all samples. Compressed archives are read as streams.

    Args:
        files: a name, a pattern with `*` or `{000..127}`, several, or a dataset of names.
        extensions: those to read, without the first dot, in lower case; None for those of the first sample. Of
            "jpg;png" a sample must have one: the first that it has gets that name.
        decode: whether ".txt" and ".json" become strings, ".cls", ".id" and ".index" integers, and ".npy" arrays.
            Everything else is bytes.
        compression_type: None or "" for none; "GZIP", "ZLIB", "BZ2", "XZ" or "ZSTD", in any case.

    Raises:
        StorageError: a file is missing, or is no tar archive; while iterating, an archive is damaged or cut.
        ElementError: while iterating, a sample lacks an extension, has one more than the first sample, or cannot be
            decoded. It is named, and iterating continues behind it.
        InvalidArgumentError: no sample has an extension that is named, or a pattern is without files.
        InvalidTypeError: something else than names.

    Example:
        >>> import io, pathlib, tarfile, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "flowers.tar"
        >>> contents = {"rose.jpg": b"...", "rose.cls": b"3", "lily.jpg": b"..", "lily.cls": b"5"}
        >>> with tarfile.open(path, "w") as archive:
        ...     for name, content in contents.items():
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(content)
        ...         archive.addfile(member, io.BytesIO(content))
        >>> samples = TarDataset(path)
        >>> len(samples), samples[1]["__key__"], int(samples[1]["cls"]), samples[1]["jpg"]
        (2, 'lily', 5, b'..')
    """
    call = "TarDataset"
    if isinstance(extensions, str):
        raise InvalidTypeError(f"{call}(extensions=...) takes a list of them, got a string")
    compression = check_compression(call, compression_type)
    wanted = None if extensions is None else tuple(extensions)
    names = dataset_of_names(call, files)
    records = first_with_rows(
        call, names, lambda name, last: tar_samples(call, name, compression, wanted, decode, last)
    )
    return stream_or_index(call, names, records, compression)


def MdsDataset(files: Files, columns: Sequence[str] | None = None) -> Dataset[dict[str, Any]]:  # noqa: N802  # as the others
    """The samples of shards that MosaicML Streaming has written (MDS), as dictionaries; any is read by its number.

    Their numbers, strings, bytes and arrays are read, JSON as strings, images as bytes. Shards that are compressed are
    unpacked into the directory for temporary files when they are opened; up to 64 are kept there.

    Args:
        files: a directory with the `index.json` that names the shards (a remote one ends in "/"), or the shards: a
            name, a pattern with `*`, several, or a dataset of names.
        columns: those to read; None for all.

    Raises:
        StorageError: a file is missing, or is no shard, or a directory has no index; while iterating, a sample is
            damaged.
        InvalidArgumentError: a column that is not there, or is encoded in another way; a pattern without files.
        InvalidTypeError: something else than names.

    Example:
        >>> import json, pathlib, struct, tempfile
        >>> about = {"column_names": ["word"], "column_encodings": ["str"], "column_sizes": [None]}
        >>> head = json.dumps(about).encode()
        >>> begin = 16 + len(head)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "shard.00000.mds"
        >>> shard = struct.pack("<4I", 2, begin, begin + 8, begin + 16) + head
        >>> _ = path.write_bytes(shard + struct.pack("<I4sI4s", 4, b"rose", 4, b"lily"))
        >>> MdsDataset(path)[1]
        {'word': 'lily'}
    """
    call = "MdsDataset"
    check_columns(call, columns)
    if isinstance(files, (str, os.PathLike)) and _is_directory(os.fspath(files)):
        files = shards_of(os.fspath(files))
    return files_by_index(call, files, MdsFiles(columns))


def _is_directory(name: str) -> bool:
    """Return whether a name is that of a directory of shards; a remote one ends in "/"."""
    return name.endswith("/") if has_protocol(name) else os.path.isdir(name)


def ArrayRecordDataset(files: Files) -> Dataset[bytes]:  # noqa: N802  # as the others
    """The records of ArrayRecord files as bytes, one file after the other; any record is read by its number.

    It needs the extra `array-record`. Records of a group are compressed together: for shuffling write files with
    `group_size:1`.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names. Remote files are copied to the directory for
            temporary files while they are open.

    Raises:
        StorageError: a file is missing, or is no ArrayRecord file; while iterating, a record is damaged.
        InvalidArgumentError: a pattern without files.
        InvalidTypeError: something else than names.
        MissingExtraError: the package is not installed.

    Example:
        >>> dataset = ArrayRecordDataset("train-*.array_record")  # doctest: +SKIP
        >>> dataset.shuffle(seed=1).batch(32)  # doctest: +SKIP
    """
    return files_by_index("ArrayRecordDataset", files, ArrayRecordFiles())
