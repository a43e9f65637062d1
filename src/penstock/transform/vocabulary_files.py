"""Vocabularies in files: text with a token on each line, or TFRecords compressed by gzip with a token in each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.data.arguments import user_site
from penstock.data.file_datasets import TFRecordDataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.writing.tfrecord_writer import TFRecordWriter

RECORDS_SUFFIX = ".tfrecord.gz"
"""At the end of the names of files that hold records, as in tft."""

_FORMATS = ("text", "tfrecord_gzip")
_RECORDS_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 1 << 24
_SPACE = b"__SPACE__"
"""A token of one space, as tft writes it behind a frequency and a space."""
_MOST_CHECKED = 1 << 20
"""Files with more tokens are checked when they are opened for looking up."""


def holds_records(call: str, file_format: str) -> bool:
    """Return whether this is the format with a record for each token.

    Raises:
        InvalidArgumentError: another format.
    """
    if file_format not in _FORMATS:
        raise InvalidArgumentError(
            f"{user_site()}: {call}(file_format=...) takes 'text' or 'tfrecord_gzip', got {file_format!r}"
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


def check_reserved(reserved_tokens: Sequence[str], records: bool) -> list[str]:
    """Tokens for the first places of a file.

    Raises:
        InvalidTypeError: something else than strings.
        InvalidArgumentError: one that occurs twice, or that no line of a text can hold: the indices of all others would
            be those of other tokens.
    """
    where = f"{user_site()}: vocabulary(reserved_tokens=...)"
    if isinstance(reserved_tokens, (str, bytes)) or not isinstance(reserved_tokens, (Sequence, np.ndarray)):
        raise InvalidTypeError(f"{where} takes a list of strings, got {reserved_tokens!r:.100}")
    for number, token in enumerate(reserved_tokens):
        if not isinstance(token, str):
            raise InvalidTypeError(f"{where} takes strings, got {token!r:.100}")
        if not records and (not token or "\n" in token or "\r" in token):
            raise InvalidArgumentError(
                f"{where}: a line of a text cannot hold {token!r}: use file_format='tfrecord_gzip', or another token"
            )
        if token in reserved_tokens[:number]:
            raise InvalidArgumentError(f"{where} takes each token once, got {token!r} twice")
    return list(map(str, reserved_tokens))


def with_frequencies(tokens: list[bytes], frequencies: list[Any], records: bool) -> list[bytes]:
    """Lines or records with the frequency of each token.

    Raises:
        InvalidArgumentError: a token that would be read as another one.
    """
    if not records and _SPACE in tokens:
        raise InvalidArgumentError(
            f"vocabulary(store_frequency=True): {_SPACE.decode()!r} stands for a token of one space in the file, and "
            "is a token of the data: use file_format='tfrecord_gzip', or filter it out"
        )
    shown = tokens if records else [_SPACE if token == b" " else token for token in tokens]
    return [b"%s %s" % (str(count).encode(), token) for token, count in zip(shown, frequencies, strict=True)]


def read_tokens(path: str, records: bool, with_frequency: bool = False) -> list[bytes]:
    """The token of each line or record, in order."""
    tokens = [token for part in _parts(path, records) for token in part]
    if not with_frequency:
        return tokens
    tokens = [token.partition(b" ")[2] for token in tokens]
    return tokens if records else [b" " if token == _SPACE else token for token in tokens]


def count_tokens(path: str, records: bool) -> int:
    """Return how many tokens a file of the user's holds.

    Raises:
        InvalidArgumentError: an empty line, or a token that occurs twice.
    """
    size = sum(map(len, _parts(path, records)))
    if size <= _MOST_CHECKED:
        tokens = read_tokens(path, records)
        if not records and b"" in tokens:
            line = tokens.index(b"") + 1
            raise InvalidArgumentError(f"vocabulary={path!r}: line {line} is empty, it must hold a token")
        if len({*tokens}) < size:
            repeated = [token for token, count in Counter(tokens).items() if count > 1]
            raise InvalidArgumentError(f"vocabulary={path!r}: every token must occur once, repeated: {repeated[:10]}")
    return size


def _parts(path: str, records: bool) -> Iterator[list[bytes]]:
    """The lines or records of a file, some megabytes at a time."""
    if records:
        with iter(TFRecordDataset(path, "GZIP").batch(_RECORDS_AT_ONCE)) as batches:
            yield from (batch.tolist() for batch in batches)
        return
    with open(path, "rb") as file:
        while lines := file.readlines(_BYTES_AT_ONCE):
            yield [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]
