"""Vocabularies in files: text with a token on each line, or TFRecords compressed by gzip with a token in each."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.data.files import TFRecordDataset
from penstock.errors import InvalidArgumentError
from penstock.formats.tfrecord_writer import TFRecordWriter
from penstock.transform.sites import user_line

RECORDS_SUFFIX = ".tfrecord.gz"
"""At the end of the names of files that hold records, as in tft."""

_FORMATS = ("text", "tfrecord_gzip")
_AT_ONCE = 1 << 16


def holds_records(call: str, file_format: str) -> bool:
    """Whether this is the format with a record for each token.

    Raises:
        InvalidArgumentError: another format.
    """
    if file_format not in _FORMATS:
        raise InvalidArgumentError(
            f"{user_line()}: {call}(file_format=...) takes 'text' or 'tfrecord_gzip', got {file_format!r}"
        )
    return file_format == "tfrecord_gzip"


def write_tokens(path: Path, lines: Iterable[list[bytes]], records: bool) -> int:
    """Write a file; returns how many tokens it holds."""
    size = 0
    if records:
        with TFRecordWriter(path, "GZIP") as writer:
            for part in lines:
                for line in part:
                    writer.write(line)
                size += len(part)
        return size
    with open(path, "wb") as file:
        for part in lines:
            file.write(b"".join(line + b"\n" for line in part))
            size += len(part)
    return size


def read_tokens(path: str, records: bool) -> list[bytes]:
    """What stands on each line or in each record, in order."""
    if records:
        return [record for part in _records(path) for record in part]
    return Path(path).read_bytes().split(b"\n")[:-1]


def count_tokens(path: str, records: bool) -> int:
    """How many tokens a file of the user's holds."""
    if records:
        return sum(map(len, _records(path)))
    count, last = 0, b"\n"
    with open(path, "rb") as file:
        while data := file.read(1 << 24):
            count += data.count(b"\n")
            last = data[-1:]
    return count + (last != b"\n")


def _records(path: str | os.PathLike[str]) -> Iterator[list[bytes]]:
    with iter(TFRecordDataset(os.fspath(path), "GZIP").batch(_AT_ONCE)) as batches:
        for batch in batches:
            yield batch.tolist()
