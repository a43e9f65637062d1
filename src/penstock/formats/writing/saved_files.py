"""The rows of datasets saved in other formats: the rows of the format's reader, restored as they were saved."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, StorageError
from penstock.formats import tables
from penstock.formats.decoded_rows import joined
from penstock.formats.file_format import FileFormat, Rows
from penstock.formats.records import npy
from penstock.formats.records.array_record import ArrayRecordFiles
from penstock.formats.records.example import parse_example
from penstock.formats.records.megatron import MegatronFiles
from penstock.formats.records.npy import NpyFiles
from penstock.formats.records.record_files import RecordFiles
from penstock.formats.records.tar import KEY, TarSamples
from penstock.formats.records.tfrecord import TFRecords
from penstock.formats.writing.leaves import ONLY, Column, SavedLeaf, names_of, steps_of
from penstock.formats.writing.manifest import Manifest
from penstock.formats.writing.row_files import RowFiles
from penstock.formats.writing.tar_shards import members_of
from penstock.spec import LeafSpec, TensorSpec
from penstock.structure import LEAF, Structure


class SavedFiles(FileFormat):
    """The rows of a saved dataset, in the structure and with the dtypes that were saved.

    Args:
        manifest: the description of the dataset.
        directory: where its files are.
    """

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self.format = manifest.format
        self.structure = manifest.structure
        self.leaves = manifest.leaves
        self.files = {str(directory / name): about for name, about in manifest.files.items()}
        self._open()

    def _open(self) -> None:
        try:
            make = _READERS[self.format]
        except KeyError:
            raise StorageError(f"this penstock knows no format {self.format!r} of saved datasets") from None
        self._inner, self._columns = make(self.structure or LEAF, self.leaves)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_inner", "_columns")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def name(self) -> str:
        return self.format

    @property
    def memory(self) -> str:  # type: ignore[override]  # it depends on the files
        return self._inner.memory

    @property
    def has_lengths(self) -> bool:  # type: ignore[override]  # it depends on the files
        return self._inner.has_lengths

    def lengths(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        return self._inner.lengths(name, rows)

    def count(self, name: str) -> int:
        rows, size = self.files[name]
        try:
            found = os.stat(name).st_size
        except OSError as error:
            raise StorageError(f"{name!r} of a saved dataset cannot be read: {error.strerror or error}") from error
        if found != size:
            raise StorageError(f"{name!r} is not as it was saved: it had {size} bytes, and has {found}")
        return rows

    def spec(self, name: str) -> Any:
        return None if self.structure is None else self.structure.unflatten([leaf.spec for leaf in self.leaves])

    def read(self, name: str, rows: Rows) -> Any:
        columns, structure = self.read_columns(name, rows)
        return structure.unflatten(columns)

    def read_columns(self, name: str, rows: Rows) -> tuple[list[Column], Structure]:
        assert self.structure is not None  # since there are rows
        if self._columns is None:
            return self._inner.read_columns(name, rows)[0], self.structure
        return self._restored(*self._inner.read_columns(name, rows)), self.structure

    def read_pieces(self, pieces: Sequence[tuple[str, Rows]]) -> tuple[list[Column], Structure] | None:
        assert self.structure is not None
        if self._columns is None:
            found = self._inner.read_pieces(pieces)
            return found and (found[0], self.structure)
        try:
            parts = [self._inner.read_columns(*piece) for piece in pieces]
            columns = list(map(joined, zip(*(columns for columns, _ in parts), strict=True)))
            return self._restored(columns, parts[0][1]), self.structure
        except (ElementError, StorageError):  # said by reading one file alone
            return None

    def _restored(self, columns: list[Column], structure: Structure) -> list[Column]:
        """The columns of the leaves, from those that the format's reader gives."""
        assert self._columns is not None
        values = self._columns(structure.unflatten(columns))
        return [leaf.restored(value) for leaf, value in zip(self.leaves, values, strict=True)]


_Columns = Callable[[Any], list[Column]] | None
"""Turns the rows of a format's reader into the columns of the leaves; None for a reader that returns these."""


def _parquet(structure: Structure, leaves: Sequence[SavedLeaf]) -> tuple[FileFormat, _Columns]:
    steps = [path or (ONLY,) for path in steps_of(structure)]

    def columns(rows: Any) -> list[Column]:
        return [_at(rows, path) for path in steps]

    return tables.parquet.ParquetFiles(), columns


def _at(rows: Any, path: Sequence[str]) -> Column:
    for step in path:
        rows = rows[step]
    return np.asarray(rows)


def _npy(structure: Structure, leaves: Sequence[SavedLeaf]) -> tuple[FileFormat, _Columns]:
    names = names_of(structure)
    alone = structure.kind == "leaf"
    return NpyFiles(), lambda rows: [rows] if alone else [rows[name] for name in names]


def _examples(structure: Structure, leaves: Sequence[SavedLeaf]) -> _Columns:
    if structure.kind == "leaf" and leaves[0].kind == "bytes":
        return lambda records: [records]
    names = names_of(structure)
    features = {name: _feature(leaf) for name, leaf in zip(names, leaves, strict=True)}

    def columns(records: Any) -> list[Column]:
        found: Mapping[str, Any] = parse_example(records, features)
        return [_decoded(found[name]) if leaf.kind == "text" else found[name] for name, leaf in zip(names, leaves)]

    return columns


def _feature(leaf: SavedLeaf) -> LeafSpec:
    kind = leaf.spec.dtype.kind if leaf.kind == "numbers" else "O"
    dtype: Any = {"O": object, "f": np.float32}.get(kind, np.int64)
    return TensorSpec(leaf.spec.shape, dtype)


def _decoded(column: Column) -> Column:
    """Bytes as strings."""
    if column.ndim == 1 and len(column) and isinstance(column[0], np.ndarray):
        return np.fromiter(map(_decoded, column), object, len(column))
    found = np.empty(column.shape, object)
    found.flat[:] = [value.decode() for value in column.flat]
    return found


def _tar(structure: Structure, leaves: Sequence[SavedLeaf]) -> tuple[FileFormat, _Columns]:
    examples = tuple(_like(leaf) for leaf in leaves)
    members = members_of(structure, [leaf.kind for leaf in leaves], examples)
    samples = TarSamples(tuple(name for name in members if name != KEY), False)

    def columns(rows: Any) -> list[Column]:
        return [_members(rows[name], name, leaf) for name, leaf in zip(members, leaves, strict=True)]

    return RecordFiles(samples), columns


def _like(leaf: SavedLeaf) -> Column:
    """A column of one row of a leaf."""
    axes = [1 if length is None else length for length in leaf.spec.shape]
    return np.empty((1, *axes), leaf.spec.dtype)


def _members(column: Column, name: str, leaf: SavedLeaf) -> Column:
    if leaf.kind == "bytes" or name == KEY:
        return column
    if leaf.kind == "text":
        return _decoded(column)
    decode: Callable[[bytes], Any] = npy.load if name.rpartition(".")[2] == "npy" else int
    return np.fromiter((decode(content) for content in column), object, len(column))


_READERS: Final[dict[str, Callable[[Structure, Sequence[SavedLeaf]], tuple[FileFormat, _Columns]]]] = {
    "array_record": lambda structure, leaves: (ArrayRecordFiles(), _examples(structure, leaves)),
    "megatron": lambda structure, leaves: (MegatronFiles(), None),
    "npy": _npy,
    "parquet": _parquet,
    "penstock": lambda structure, leaves: (RowFiles(), None),
    "tar": _tar,
    "tfrecord": lambda structure, leaves: (RecordFiles(TFRecords()), _examples(structure, leaves)),
}
