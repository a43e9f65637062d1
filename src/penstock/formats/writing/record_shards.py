"""Datasets saved as records of bytes, in TFRecord and ArrayRecord files: elements of several leaves as Examples."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidTypeError
from penstock.extras import load
from penstock.formats.records.offsets import write_edges
from penstock.formats.records.tfrecord import TFRecords, frame, masked_checksums
from penstock.formats.writing.example_writer import check_feature, serialize_examples
from penstock.formats.writing.leaves import Columns, is_ragged, names_of
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure

_HEAD_BYTES: Final = 12


class RecordShards(ShardWriter):
    """Elements that are bytes become records as they are, all others `tf.train.Example` records."""

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        super().check(structure, specs, columns)
        _records(columns, structure)


class TFRecordShards(RecordShards):
    """Uncompressed TFRecord files, with an index of where their records begin."""

    ending = "tfrecord"

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self._lengths: list[npt.NDArray[np.int64]] = []

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        if self._file is None:
            self._file = self.path.open("wb")
        found = _records(columns, structure).to_pylist()
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        known = {length: frame(bytes(length))[:_HEAD_BYTES] for length in set(lengths.tolist())}
        parts: list[bytes] = [b""] * (3 * len(found))
        parts[0::3] = [known[length] for length in lengths.tolist()]
        parts[1::3] = found
        parts[2::3] = masked_checksums(found).view("V4").tolist()
        self._file.write(b"".join(parts))
        self._lengths.append(lengths + _HEAD_BYTES + 4)

    def _end(self) -> list[str]:
        self.close()
        edges = np.cumsum(np.concatenate(([0], *self._lengths)), dtype=np.int64)
        return [write_edges(self.path, TFRecords().layout, edges)]


@cache
def _array_record_writer() -> Any:
    library = load("array_record.python.array_record_module", "array-record", 'save(format="array_record")')
    return library.ArrayRecordWriter  # or the error that names the missing package


def array_record_shards() -> type["ArrayRecordShards"]:
    """The format, where its package is installed."""
    _array_record_writer()
    return ArrayRecordShards


class ArrayRecordShards(RecordShards):
    """ArrayRecord files with groups of one record, so that each record can be read on its own."""

    ending = "array_record"

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        if self._file is None:
            self._file = _array_record_writer()(str(self.path), "group_size:1")
        for record in _records(columns, structure).to_pylist():
            self._file.write(record)


def _records(columns: Columns, structure: Structure) -> pa.LargeBinaryArray:
    """Rows as records.

    Raises:
        InvalidTypeError: rows are not bytes, and do not fit into an Example.
    """
    if structure.kind == "leaf":
        if columns[0].dtype == object and columns[0].ndim == 1 and set(map(type, columns[0])) == {bytes}:
            return pa.array(columns[0].tolist(), pa.large_binary())
        if columns[0].dtype == object or columns[0].dtype.kind in "US":
            if is_ragged(columns[0]):
                raise InvalidTypeError(
                    "records hold bytes, or dictionaries of features, got arrays whose shapes differ: give them a name "
                    'by map(lambda x: {"x": x}), or save in another format'
                )
            raise InvalidTypeError(
                "records hold bytes, or dictionaries of features, got strings: encode them by map(str.encode)"
            )
    names = names_of(structure)
    for name, column in zip(names, columns, strict=True):
        check_feature(name, column)
    return serialize_examples(dict(zip(names, columns, strict=True)))
