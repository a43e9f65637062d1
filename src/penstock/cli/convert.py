"""`penstock convert`."""

import argparse
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock.cli.arguments import Commands, add_command, positive, say
from penstock.cli.example_features import features_of
from penstock.cli.file_kinds import TABLES, columns_in_folders, dataset_of, files_of, kind_of
from penstock.paths import has_protocol
from penstock.printing import in_bytes
from penstock.structure import map_structure

_FORMATS: Final = ("parquet", "tfrecord", "array_record", "tar", "npy", "penstock")
_ENDINGS: Final = {
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".tar": "tar",
    ".npy": "npy",
}
_SAMPLE: Final = 100
_BATCH: Final = 512


def add_convert(commands: Commands) -> None:
    """Add the command to the parser."""
    examples = (
        "Examples: penstock convert people.csv people.parquet;  penstock convert 'train-*.tfrecord' train "
        "--format parquet --shards 64;  penstock convert train.parquet shards --format tar"
    )
    parser = add_command(commands, "convert", _convert, examples)
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a file, a pattern in quotes such as 'data/*.csv', or a directory for all files below it, of one format",
    )
    parser.add_argument("target", metavar="DST", help="a file that does not exist yet, or a directory")
    parser.add_argument("--format", choices=_FORMATS, help="the format of DST, if its name does not say it")
    parser.add_argument("--shards", type=positive, metavar="N", help="write N files, with equally many rows")
    parser.add_argument("--rows-per-shard", type=positive, metavar="N", help="write files of N rows")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="make and write the files of a directory in N processes"
    )
    parser.add_argument(
        "--float32", action="store_true", help="convert float64 to float32, as tf.train.Example and training want it"
    )
    parser.add_argument(
        "--raw", action="store_true", help="leave the records of TFRecord and ArrayRecord files as they are: bytes"
    )
    parser.add_argument(
        "--mask-nulls",
        metavar="COLUMNS",
        default="",
        help="replace missing values in these columns of CSV, JSON lines and Parquet, divided by commas, by zeros and "
        "empty strings, and add a column X_is_valid for each X",
    )


def _convert(options: argparse.Namespace) -> int:
    """Write files of data in another format.

    Files that are read: Parquet, CSV, JSON lines, TFRecord (also with tf.train.Example in it), tar archives of samples
    (WebDataset), ArrayRecord, MDS, NumPy, Arrow and text, and directories that penstock has saved.

    If DST ends as a format does (.parquet, .tfrecord, .array_record, .tar, .npy), it becomes one file. Otherwise, and
    with --shards or --rows-per-shard, it becomes a directory of several files, which ps.Dataset.load reads too. DST
    appears when it is complete. A directory whose conversion was interrupted is continued by the same command; its
    complete parts are in DST.unfinished.
    """
    target = Path(options.target)
    named = _ENDINGS.get(target.suffix)
    format = options.format or named
    if format is None:
        raise ps.InvalidArgumentError(
            f"convert: {options.target!r} does not end as a format that is written ({', '.join(_ENDINGS)}): end it so "
            f"for one file, or add --format for a directory, one of {', '.join(_FORMATS)}"
        )
    if named not in (None, format):
        raise ps.InvalidArgumentError(f"convert: {options.target!r} ends as {named}, and --format says {format}")
    if target.exists():
        raise ps.StorageError(f"convert: {options.target!r} exists: remove it first, or write to another place")
    one_file = target.suffix in _ENDINGS and not options.shards and not options.rows_per_shard
    if one_file and options.workers:
        raise ps.InvalidArgumentError(
            f"convert: --workers is for several files, and {options.target!r} is one: add --shards, at least "
            "as many as there are workers"
        )
    dataset = _source(options.source, options.raw, [name for name in options.mask_nulls.split(",") if name])
    if options.float32:
        dataset = dataset.map(_in_float32)
    if one_file:
        _save_one_file(dataset, target, format)
    else:
        _save_files(dataset, target, format, options)
    files = (
        [target] if one_file else sorted(path for path in target.iterdir() if path.is_file() and path.name[0] != "_")
    )
    size = in_bytes(sum(path.stat().st_size for path in files))
    say(f"wrote {options.target}: {len(files):,} {'file' if len(files) == 1 else 'files'}, {size}")
    return 0


def _source(given: str, raw: bool, mask_nulls: list[str]) -> ps.Dataset[Any]:
    """The rows of files of one format, or of a saved dataset."""
    if not has_protocol(given) and (Path(given) / "_dataset.json").exists():
        return ps.Dataset.load(given)
    names = files_of("convert", given)
    kinds: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = kind_of(name)
        kinds.setdefault((found.name, found.compression), []).append(name)
    if len(kinds) > 1:
        named = ", ".join(f"{kind} ({several[0]!r})" for (kind, _), several in kinds.items())
        raise ps.InvalidArgumentError(f"convert: {given!r} has files of several formats: {named}; name those of one")
    ((name, compression),) = kinds
    if mask_nulls and name not in TABLES:
        raise ps.InvalidArgumentError(f"convert: --mask-nulls is for files of {', '.join(TABLES)}, got {name}")
    if name in TABLES:
        folders = columns_in_folders(names)
        if folders and name != "Parquet":
            say(f"columns in names of folders are read of Parquet alone: {[*folders]} left out")
        return dataset_of(kind_of(names[0]), names, mask_nulls, folders)
    if name in _RECORDS:
        records: ps.Dataset[Any] = _RECORDS[name](names, compression)
        return records if raw else _parsed(records)
    if name in _BY_INDEX and not compression:
        return _BY_INDEX[name](names)
    if kind_of(names[0]).is_image:
        raise ps.InvalidArgumentError(
            f"convert: {given!r} holds images: ps.Dataset.from_image_folder reads them, and save writes the dataset"
        )
    dataset, *others = (dataset_of(kind_of(name), [name]) for name in names)
    for other in others:
        dataset = dataset.concatenate(other)
    return dataset


def _parsed(records: ps.Dataset[bytes]) -> ps.Dataset[Any]:
    """The features of records that are Examples; other records as they are."""
    features = features_of([bytes(record) for record in records.take(_SAMPLE)])
    if features is None:
        return records
    parse: Callable[[Any], Any] = partial(ps.parse_example, features=features)
    rows = records.batch(_BATCH).map(parse).unbatch()
    count = records.cardinality()
    return rows.assert_cardinality(count) if count >= 0 else rows


def _save_files(dataset: ps.Dataset[Any], target: Path, format: str, options: argparse.Namespace) -> None:
    shards, rows = options.shards, options.rows_per_shard
    if not options.workers:
        dataset.save(target, format=format, shards=shards, rows_per_shard=rows)
        return
    with ps.service.local(options.workers) as service:
        ps.service.distributed_save(dataset, target, service.target, format, shards, rows_per_shard=rows)


def _save_one_file(dataset: ps.Dataset[Any], target: Path, format: str) -> None:
    parts = target.with_name(f"{target.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)  # of a conversion that was killed just before its end
    dataset.save(parts, format=format, rows_per_shard=1 << 60)
    try:
        files = [path for path in parts.iterdir() if path.name.startswith("part-") and path.stat().st_size]
        if not files:
            raise ps.InvalidArgumentError("convert: there is no row, and so no file")
        os.replace(files[0], target)
    finally:
        shutil.rmtree(parts)


def _in_float32(*row: Any) -> Any:
    return map_structure(_narrowed, row[0] if len(row) == 1 else row)


def _narrowed(leaf: Any) -> Any:
    return leaf.astype(np.float32) if getattr(leaf, "dtype", None) == np.float64 else leaf


def _tfrecords(names: list[str], compression: str) -> ps.Dataset[bytes]:
    return ps.TFRecordDataset(names, compression) if compression else ps.FilesDataset(names, "tfrecord")


_RECORDS: Final[Mapping[str, Callable[[list[str], str], ps.Dataset[bytes]]]] = {
    "TFRecord": _tfrecords,
    "ArrayRecord": lambda names, _: ps.ArrayRecordDataset(names),
}
_BY_INDEX: Final[Mapping[str, Callable[[list[str]], ps.Dataset[Any]]]] = {
    "MDS": lambda names: ps.MdsDataset(names),
    "NumPy": lambda names: ps.FilesDataset(names, "npy"),
    "tar": lambda names: ps.TarDataset(names),
    "text": lambda names: ps.FilesDataset(names, "text"),
}
