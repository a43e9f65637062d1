"""Datasets saved as NumPy arrays: one file per shard, whose rows are the elements."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError, InvalidTypeError
from penstock.formats.writing.leaves import Columns, dense, is_ragged, names_of
from penstock.formats.writing.shard_format import ShardWriter
from penstock.spec import LeafSpec
from penstock.structure import Structure

_NUMBERS: Final = "biufcMm"


class NpyShards(ShardWriter):
    """Elements of one leaf become rows of an array; others become rows of a structured array, with a field per leaf."""

    ending = "npy"
    needs_spec = True

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
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

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        super().__init__(directory, number)
        self._row: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        columns = tuple(map(dense, columns))
        found = columns[0]
        if structure.kind != "leaf":
            fields = dict(zip(names_of(structure), columns, strict=True))
            found = np.empty(rows, [(name, column.dtype, column.shape[1:]) for name, column in fields.items()])
            for name, column in fields.items():
                found[name] = column
        row = found.dtype, found.shape[1:]
        if self._row is None:
            self._row = row
            self._file = self.path.open("wb")
            self._file.write(self._header())
        if row != self._row:
            raise ElementError(f"rows of {row[0]} of shape {row[1]} follow rows of {self._row[0]} of {self._row[1]}")
        self._file.write(np.ascontiguousarray(found).reshape(-1).view(np.uint8).data)

    def _header(self) -> bytes:
        assert self._row is not None
        dtype, shape = self._row
        header = io.BytesIO()
        description = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": (self.rows, *shape),
        }
        # NumPy pads the header so that a larger number of rows fits.
        np.lib.format.write_array_header_2_0(header, description)
        return header.getvalue()

    def _end(self) -> list[str]:
        self._file.seek(0)
        self._file.write(self._header())
        return []
