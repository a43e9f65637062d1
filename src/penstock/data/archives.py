"""Datasets of the samples of archives."""

from collections.abc import Sequence
from typing import Any

from penstock.data.dataset import Dataset
from penstock.data.files import Files, files_by_index, first_name, records_of
from penstock.errors import InvalidTypeError
from penstock.formats.files import check_compression
from penstock.formats.indexed.record_files import RecordFiles
from penstock.formats.tar import tar_samples


def TarDataset(  # noqa: N802  # as the others
    files: Files,
    extensions: Sequence[str] | None = None,
    *,
    decode: bool = True,
    compression_type: str | None = None,
) -> Dataset[dict[str, Any]]:
    """The samples of tar archives, as WebDataset has them, one file after the other; by their numbers.

    A sample is neighbouring members whose names are equal up to the first dot of their last part: `n/0001.jpg` and
    `n/0001.cls` are one. It becomes a dictionary of what stands under each extension, and of its key: "__key__",
    "jpg" and "cls". Each sample must have what the first one of the first file has, or the extensions that are named.

    Where samples begin is found in one pass when the dataset is made, as for `ps.FilesDataset(files, "text")`, so a
    shuffle is one of all samples. Compressed archives are read as streams.

    Args:
        files: a name, a pattern with `*`, several, or a dataset of names.
        extensions: those to read, without the first dot, in lower case; None for those of the first sample.
        decode: whether ".txt" and ".json" become strings, ".cls", ".id" and ".index" integers, and ".npy" arrays.
            Everything else is bytes.
        compression_type: None or "" for none; "GZIP" or "ZLIB", in any case.

    Raises:
        StorageError: a file is missing, or is no tar archive; while iterating, an archive is damaged or cut.
        ElementError: while iterating, a sample lacks an extension, or cannot be decoded. It is named, and iterating
            continues behind it.
        InvalidArgumentError: the first sample lacks an extension, or a pattern is without files.
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
    records = tar_samples(call, first_name(call, files), compression, wanted, decode)
    if compression:
        return records_of(call, files, records, compression)
    return files_by_index(call, files, RecordFiles(records))
