"""Datasets saved as NumPy arrays: one file per shard, whose rows are the elements."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError, InvalidTypeError
from penstock.formats.writing.leaves import Column, Columns, dense, is_ragged, names_of
from penstock.formats.writing.shard_format import ShardFormat, ShardWriter, shard_path
from penstock.spec import LeafSpec
from penstock.structure import Structure

_NUMBERS: Final = "biufcMm"


class NpyShards(ShardFormat):
    """Elements of one leaf become rows of an array; others become rows of a structured array, with a field per leaf."""

    name = "npy"
    needs_spec = True

    def check(self, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        super().check(structure, specs, columns)
        names_of(structure)
        for path, spec, column in zip(structure.paths(), specs, columns, strict=True):
            if spec.dtype.kind == "V":  # bfloat16 and its kind, of which NumPy's files keep the bytes alone
                raise InvalidTypeError(
                    f"arrays of NumPy have no type for {spec.dtype}, of {path or 'the element'}: convert it by map, "
                    "such as to float32, or save in penstock's own format"
                )
            if spec.dtype.kind not in _NUMBERS or None in spec.shape or is_ragged(dense(column)):
                raise InvalidTypeError(
                    f"arrays of NumPy hold numbers in one shape, got {spec} of {path or 'the element'}: encode it by "
                    "map, or save in another format"
                )

    def writer(self, directory: Path, number: int, specs: Sequence[LeafSpec]) -> "NpyShardWriter":
        return NpyShardWriter(shard_path(directory, number, "npy"))


class NpyShardWriter(ShardWriter):
    """Writes one file. The header has the number of rows, so it is written again at the end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file: Any = None
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = ()

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        columns = tuple(map(dense, columns))
        alone = structure.kind == "leaf"
        shape = columns[0].shape[1:] if alone else ()
        dtype = columns[0].dtype if alone else _dtype(structure, columns)
        if self._dtype is None:
            self._dtype, self._shape = dtype, shape
            self._file = self.path.open("wb")
            self._file.write(self._header())
        if (dtype, shape) != (self._dtype, self._shape):
            raise ElementError(f"rows of {dtype} of shape {shape} follow on rows of {self._dtype} of {self._shape}")
        self._file.write(_bytes_of(columns[0] if alone else _together(dtype, structure, columns, rows)))

    def _header(self) -> bytes:
        assert self._dtype is not None
        header = io.BytesIO()
        description = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self.rows, *self._shape),
        }
        # NumPy pads the header so that a larger number of rows fits.
        np.lib.format.write_array_header_2_0(header, description)
        return header.getvalue()

    def _end(self) -> list[str]:
        self._file.seek(0)
        self._file.write(self._header())
        return []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _dtype(structure: Structure, columns: Columns) -> np.dtype[Any]:
    fields = zip(names_of(structure), columns, strict=True)
    return np.dtype([(name, column.dtype, column.shape[1:]) for name, column in fields])


def _together(dtype: np.dtype[Any], structure: Structure, columns: Columns, rows: int) -> Column:
    found = np.empty(rows, dtype)
    for name, column in zip(names_of(structure), columns, strict=True):
        found[name] = column
    return found


def _bytes_of(array: Column) -> Any:
    whole = np.ascontiguousarray(array)
    return whole.view(np.uint8).data if whole.size else b""
