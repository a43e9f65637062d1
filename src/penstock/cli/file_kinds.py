"""Kinds of files, told by their first bytes and the ends of their names, and the datasets that read them."""

import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import google_crc32c
import pyarrow as pa

import penstock as ps
from penstock.formats.compression import compression_of
from penstock.formats.matching import is_pattern, matching_files
from penstock.formats.media.example_folder import ImageReader
from penstock.formats.opening import open_bytes
from penstock.formats.records.text_lines import of_utf_16
from penstock.formats.tables.nulls import maskable
from penstock.formats.tables.table_folders import refuse_versions
from penstock.paths import has_protocol

_BEGINNING_BYTES: Final = 1 << 12
_INTEGER: Final = re.compile(r"0|-?[1-9]\d{0,17}")  # as an integer it is written in the same way
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_MAGIC: Final = (
    (b"PAR1", "Parquet"),
    (b"\x83\xafp\xd1\r\x88J?", "ArrayRecord"),
    (b"ARROW1", "Arrow"),
    (_ARROW_STREAM, "Arrow"),
    (b"\x93NUMPY", "NumPy"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\x89HDF", "HDF5"),
    (b"PK\x03\x04", "ZIP"),
)
_IMAGES: Final = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WebP")
_ENDINGS: Final = {
    "parquet": "Parquet",
    "arrow": "Arrow",
    "feather": "Arrow",
    "npy": "NumPy",
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "tif": "TIFF",
    "tiff": "TIFF",
    "webp": "WebP",
    "csv": "CSV",
    "tsv": "TSV",
    "jsonl": "JSON lines",
    "ndjson": "JSON lines",
    "tfrecord": "TFRecord",
    "tfrecords": "TFRecord",
    "tar": "tar",
    "array_record": "ArrayRecord",
    "arrayrecord": "ArrayRecord",
    "mds": "MDS",
}
_WITHOUT_A_SIGN: Final = ("TFRecord", "MDS")
"""Formats whose files are known by their names where their first bytes say nothing."""
_INDEX_OF_MDS: Final = "index.json"
_SAVED: Final = "penstock"
_TEXTS: Final = ("CSV", "TSV", "JSON lines")
_COMPRESSED: Final = (*_TEXTS, "TFRecord", "text", "tar")
"""The kinds that are also read when they are compressed as a whole."""


@dataclass(frozen=True)
class Kind:
    """Kind of a file.

    Attributes:
        name: of the format, as users call it.
        compression: "GZIP" or another, or "" for none.
        expected: the format that the name of the file suggests; "" for none.
    """

    name: str
    compression: str
    expected: str

    @property
    def is_image(self) -> bool:
        """Return whether it holds one image."""
        return self.name in _IMAGES

    @property
    def shown(self) -> str:
        """For the user."""
        return f"{self.name}, {self.compression}" if self.compression else self.name


def kind_of(name: str) -> Kind:
    """The kind of a file.

    Raises:
        StorageError: it cannot be read.
    """
    if _is_saved(name):
        return Kind(_SAVED, "", "")
    reader = open_bytes(name, "")
    try:
        begin = reader.read(_BEGINNING_BYTES)
    finally:
        reader.close()
    compression = compression_of(begin)
    if compression:
        begin = _unpacked(name, compression)
    ending = re.sub(r"\.(gz|bz2|xz|zst)$", "", name.lower()).rpartition(".")[2]
    expected = _ENDINGS.get(ending, "")
    return Kind(_by_content(begin, expected), compression, expected)


def files_of(call: str, given: str) -> list[str]:
    """The names of the files that an argument stands for: a file's, those of a pattern, or all below a directory.

    A directory that is a dataset in penstock's own format counts as a file.

    In a directory, names that begin with a dot or an underscore are skipped, and the index of MDS shards: such files
    describe others.

    Raises:
        InvalidArgumentError: there is none, or they are those of a table with versions.
    """
    if not has_protocol(given) and os.path.isdir(given) and not _is_saved(given):
        below = [path.relative_to(given) for path in sorted(Path(given).rglob("*")) if path.is_file()]
        names = [os.path.join(given, path) for path in below if not any(part[0] in "._" for part in path.parts)]
        if not names:
            raise ps.InvalidArgumentError(f"{call}: there is no file below {given!r}")
        refuse_versions(call, names)
        return _without_index(names)
    if not has_protocol(given) and os.path.exists(given):
        return [given]
    try:
        names = matching_files(call, given)
        if has_protocol(given) and not is_pattern(given):
            return names
    except ps.InvalidArgumentError:
        if not has_protocol(given) or is_pattern(given) or given.startswith(("http://", "https://")):
            raise
        folder = given.rstrip("/")
        parts = {name: name.removeprefix(f"{folder}/").split("/") for name in matching_files(call, f"{folder}/**")}
        names = _without_index(
            [name for name, several in parts.items() if not any(part[0] in "._" for part in several if part)]
        )
    refuse_versions(call, names)
    return names


def _without_index(names: list[str]) -> list[str]:
    """The names without that of the index that names the shards of MDS among them."""
    folders = {name.rpartition("/")[0] for name in names if name.endswith(".mds")}
    indexes = {f"{folder}/{_INDEX_OF_MDS}" for folder in folders}
    return [name for name in names if name not in indexes]


def _is_saved(name: str) -> bool:
    return not has_protocol(name) and os.path.exists(os.path.join(name, "part-00000.rows"))


def _unpacked(name: str, compression: str) -> bytes:
    """The beginning of what a compressed file holds; nothing of a damaged one."""
    reader = open_bytes(name, compression)
    try:
        return reader.read(_BEGINNING_BYTES)[:_BEGINNING_BYTES]
    except ps.StorageError:  # said by who reads it
        return b""
    finally:
        reader.close()


def _by_content(begin: bytes, expected: str) -> str:
    for magic, name in _MAGIC:
        if begin.startswith(magic):
            return name
    if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP":
        return "WebP"
    if begin[257:262] == b"ustar":
        return "tar"
    if _begins_a_record(begin):
        return "TFRecord"
    if b"\0" not in begin and begin.decode("utf-8", "replace").rstrip("\ufffd").count("\ufffd") == 0:
        return expected if expected in _TEXTS else "text"
    if expected in _TEXTS and (b"\0" not in begin or of_utf_16(begin)):  # in another encoding, as its reader says
        return expected
    return expected if expected in _WITHOUT_A_SIGN else "unknown"


def _begins_a_record(begin: bytes) -> bool:
    """Return whether there is the length of a TFRecord with its checksum."""
    if len(begin) < 12:
        return False
    value = google_crc32c.value(begin[:8])
    masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return begin[8:12] == struct.pack("<I", masked)


def dataset_of(
    kind: Kind, names: list[str], mask_nulls: bool | list[str] = False, folders: Mapping[str, type] | None = None
) -> ps.Dataset[Any]:
    """The rows of files of a kind. Several are given for images and tables alone.

    Args:
        kind: theirs.
        names: of the files.
        mask_nulls: the columns of tables that get masks; True for all.
        folders: the columns that are in the names of folders, which are read of Parquet alone.

    Raises:
        PenstockError: they cannot be read.
        InvalidArgumentError: penstock does not read this kind.
    """
    if kind.is_image:
        return ps.Dataset.from_list(names).map(ImageReader(None, 3, {}), ps.AUTOTUNE)
    if kind.compression and kind.name not in _COMPRESSED:
        raise ps.StorageError(
            f"{names[0]!r} is compressed as a whole ({kind.compression}), so that penstock cannot read the {kind.name} "
            "file in it: unpack it"
        )
    if kind.name in TABLES:
        return TABLES[kind.name](names, mask_nulls, kind.compression, folders)
    (name,) = names
    try:
        return _READERS[kind.name](name, kind.compression)
    except KeyError:
        raise ps.InvalidArgumentError(
            f"penstock has no reader for {kind.name} files: ps.Dataset.from_source and from_generator take what "
            "another library reads"
        ) from None


def columns_in_folders(names: list[str]) -> dict[str, type]:
    """The columns that are in the names of folders, as "year" in "year=2024": integers if all of their values are."""
    folders = [dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part) for name in names]
    values = {column: {found.get(column, "") for found in folders} for found in folders for column in found}
    return {
        column: int if all(_INTEGER.fullmatch(value) for value in found) else str for column, found in values.items()
    }


def _arrow(names: list[str], mask_nulls: bool | list[str], *_: Any) -> ps.Dataset[Any]:
    table = pa.concat_tables(map(_arrow_table, names))
    masks = maskable(table.column_names) if mask_nulls is True else mask_nulls or True
    try:
        return ps.Dataset.from_arrow(table, mask_nulls=masks)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # names that are not UTF-8, also in Arrow's errors
        raise ps.StorageError(f"{names[0]!r} cannot be read as an Arrow file: {error}") from error


def _arrow_table(name: str) -> pa.Table:
    """The rows of a file or of a stream that was written to one."""
    try:
        with pa.PythonFile(ps.files.open_file(name)) if has_protocol(name) else pa.memory_map(name) as source:
            begin = source.read(len(_ARROW_STREAM))
            source.seek(0)
            table = (pa.ipc.open_stream if begin == _ARROW_STREAM else pa.ipc.open_file)(source).read_all()
            table.validate(full=True)  # Arrow follows offsets wherever they lead
            return table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ps.StorageError(f"{name!r} cannot be read as an Arrow file: {error}") from error


def _csv(delimiter: str) -> "_TableReader":
    return lambda names, masks, compression, _: ps.CsvDataset(
        names, mask_nulls=masks, delimiter=delimiter, compression_type=compression
    )


_TableReader = Callable[[list[str], bool | list[str], str, Mapping[str, type] | None], ps.Dataset[Any]]
TABLES: Final[dict[str, _TableReader]] = {
    "Arrow": _arrow,
    "CSV": _csv(","),
    "TSV": _csv("\t"),
    "JSON lines": lambda names, masks, compression, _: ps.JsonLinesDataset(
        names, mask_nulls=masks, compression_type=compression
    ),
    "Parquet": lambda names, masks, _, folders: ps.ParquetDataset(names, mask_nulls=masks, partitions=folders),
}
"""Readers of kinds whose nulls can be masked; they get what `dataset_of` does, and the compression."""
_READERS: Final[dict[str, Callable[[str, str], ps.Dataset[Any]]]] = {
    "ArrayRecord": lambda name, _: ps.ArrayRecordDataset(name),
    "MDS": lambda name, _: ps.MdsDataset(name),
    _SAVED: lambda name, _: ps.Dataset.load(name),
    "NumPy": lambda name, _: ps.FilesDataset(name, "npy"),
    "TFRecord": lambda name, compression: ps.TFRecordDataset(name, compression),
    "text": lambda name, compression: ps.TextLineDataset(name, compression),
    "tar": lambda name, compression: ps.TarDataset(name, compression_type=compression),
}
