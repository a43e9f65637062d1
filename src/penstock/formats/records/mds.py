"""Shards of MosaicML Streaming (MDS): samples of columns, after the offsets at which they begin.

number of samples                   4 bytes, little-endian, as all other numbers
where each sample begins and ends   4 bytes each, one more than there are samples
names and encodings of the columns  JSON, up to where the first sample begins
each sample                         the sizes of the columns that have no fixed one, 4 bytes each; then the columns
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError, StorageError
from penstock.formats.compression import compression_of
from penstock.formats.file_errors import by_library
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat
from penstock.formats.opening import open_plain
from penstock.formats.ranges import RangedFile, UnpackedFile, open_ranges
from penstock.formats.records.record_files import IndexedFile
from penstock.paths import has_protocol, within_directory
from penstock.spec import TensorSpec

_INDEX: Final = "index.json"
_NUMBER_NAMES: Final = [f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)]
_NUMBERS: Final = {name: np.dtype(name) for name in _NUMBER_NAMES if name != "float8"} | {"int": np.dtype(np.int64)}
_ARRAY_DTYPES: Final = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8"} | {
    65: "i8",
    66: "f8",
}
_VALUES: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "jpeg": bytes,
    "png": bytes,
    "str": bytes.decode,
    "json": bytes.decode,
}


class _Head(msgspec.Struct):
    """The description of the columns in the head of a shard."""

    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None]


_head_of = msgspec.json.Decoder(_Head).decode


@dataclass(frozen=True)
class _Column:
    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True)
class _Shard(IndexedFile):
    columns: list[_Column]


class MdsFiles(OpenFileFormat[_Shard]):
    """The samples of shards as dictionaries of their columns.

    Args:
        columns: the names of those that are read; None for all.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        self.columns = None if columns is None else list(columns)

    def spec(self, name: str) -> Any:
        chosen = [one for one in self.opened(name).columns if self._reads(one)]
        if any(one.encoding.startswith("ndarray") for one in chosen):
            return None
        return {one.name: TensorSpec((), _NUMBERS.get(one.encoding, np.dtype(object))) for one in chosen}

    def read(self, name: str, rows: Rows) -> Any:
        shard = self.opened(name)
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        lengths = shard.edges[numbers + 1] - shard.edges[numbers]
        data = shard.file.read(shard.edges[numbers], shard.edges[numbers + 1])
        content = np.frombuffer(data, np.uint8)
        at = np.cumsum(lengths) - lengths
        ends = at + lengths
        varying = [one for one in shard.columns if one.size is None]
        fits = lengths >= 4 * len(varying)
        _check(fits, name, numbers)
        sizes = {}
        for one in varying:
            sizes[one.name] = _windows(content, at, 4).view("<u4").astype(np.int64)
            at = at + 4
        found = {}
        for one in shard.columns:
            size = sizes.get(one.name, np.full(len(at), one.size or 0))
            width = _NUMBERS[one.encoding].itemsize if one.encoding in _NUMBERS else size
            _check((at + size <= ends) & (size == width), name, numbers)
            if self._reads(one):
                found[one.name] = _values(one, data, content, at, size, f"{name!r}, sample {int(numbers[0])} or behind")
            at = at + size
        _check(at == ends, name, numbers)
        return found

    def _reads(self, column: _Column) -> bool:
        return self.columns is None or column.name in self.columns

    def open(self, name: str) -> _Shard:
        file = open_ranges(name)
        try:
            return self._shard(name, file)
        except StorageError:
            if not (compression := compression_of(_part(file, 0, min(8, file.size)))):
                raise
            return self._shard(name, UnpackedFile(name, compression))

    def _shard(self, name: str, file: RangedFile) -> _Shard:
        with by_library(f"{name!r} cannot be read as a shard of MDS", StorageError):
            count = int(np.frombuffer(_part(file, 0, 4), "<u4")[0])
            edges = np.frombuffer(_part(file, 4, 4 * (count + 1)), "<u4").astype(np.int64)
            begin = 4 * (count + 2)
            head = _head_of(_part(file, begin, int(edges[0]) - begin))
            names = dict.fromkeys(head.column_names)
            columns = [_Column(*one) for one in zip(names, head.column_encodings, head.column_sizes, strict=True)]
        if edges[-1] != file.size or (np.diff(edges) < 0).any():
            raise StorageError(
                f"{name!r} is damaged or cut: its samples end at byte {edges[-1]}, and it has {file.size}"
            )
        missing = [one for one in self.columns or () if one not in [column.name for column in columns]]
        if missing:
            raise InvalidArgumentError(
                f"MdsDataset(columns=...): {name!r} has no column {missing[0]!r}; its columns are "
                f"{[column.name for column in columns]}"
            )
        for column in filter(self._reads, columns):
            kind = column.encoding.partition(":")[0]
            if kind not in _NUMBERS and kind not in _VALUES and kind != "ndarray":
                raise InvalidArgumentError(
                    f"MdsDataset: the column {column.name!r} of {name!r} is encoded as {column.encoding!r}, which is "
                    f"not read, unlike {sorted([*_NUMBERS, *_VALUES, 'ndarray'])}: skip it by columns=[...]"
                )
        for column in columns:
            width = _NUMBERS[column.encoding].itemsize if column.encoding in _NUMBERS else column.size
            if column.size is not None and column.size != width:
                raise StorageError(
                    f"{name!r} is damaged: its column {column.name!r} of {column.encoding} takes {column.size} bytes"
                )
        return _Shard(file, edges, columns)


def shards_of(directory: str) -> list[str]:
    """The shards that the index of a directory names, in its order; those compressed where no others are.

    Raises:
        StorageError: there is no index.
    """
    names = []
    with by_library(
        f"MdsDataset: {directory!r} is a directory without an {_INDEX} that names its shards", StorageError
    ):
        with open_plain(os.path.join(directory, _INDEX)) as file:
            about = json.load(file)
        for shard in about["shards"]:
            plain = within_directory(directory, shard["raw_data"]["basename"])
            packed = shard.get("zip_data") if has_protocol(directory) or not os.path.exists(plain) else None
            names.append(within_directory(directory, packed["basename"]) if packed else plain)
    return names


def _part(file: RangedFile, begin: int, length: int) -> bytes:
    if length < 0 or begin + length > file.size:
        raise ValueError(f"it has {file.size} bytes, and its head would end at byte {begin + length}")
    return file.read(np.array([begin]), np.array([begin + length]))


def _check(good: npt.NDArray[np.bool_], name: str, numbers: npt.NDArray[np.int64]) -> None:
    if not good.all():
        raise StorageError(
            f"{name!r}, sample {int(numbers[np.argmin(good)])}: its columns do not fill it: it is damaged"
        )


def _windows(content: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], size: int) -> npt.NDArray[Any]:
    """`size` bytes from each of these offsets on."""
    return np.ndarray((len(content) - size + 1,), f"V{size}", content, strides=(1,))[begins]


def _values(
    column: _Column,
    data: bytes,
    content: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    where: str,
) -> npt.NDArray[Any]:
    kind, _, details = column.encoding.partition(":")
    if kind in _NUMBERS:
        dtype = _NUMBERS[kind]
        return _windows(content, begins, dtype.itemsize).view(dtype.newbyteorder("<"))
    values = np.empty(len(begins), object)
    with by_library(f"{where}: the column {column.name!r} is damaged", StorageError):
        for row, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist())):
            value = data[begin : begin + size]
            values[row] = _array(value, details) if kind == "ndarray" else _VALUES[kind](value)
    return values


def _array(value: bytes, details: str) -> npt.NDArray[Any]:
    """An array whose dtype and shape are given, or precede its values."""
    dtype, _, given = details.partition(":")
    at = 0
    if not dtype:
        dtype, at = _ARRAY_DTYPES[value[0]], 1
    if given:
        shape = tuple(map(int, given.split(",")))
    else:
        axes, width = value[at] >> 2, 1 << (value[at] & 3)
        shape = tuple(np.frombuffer(value, f"<u{width}", axes, at + 1).tolist())
        at += 1 + axes * width
    return np.frombuffer(value[at:], np.dtype(dtype).newbyteorder("<")).reshape(shape)
