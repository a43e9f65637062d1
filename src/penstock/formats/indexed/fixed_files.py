"""Files whose rows have one size, so that a multiplication finds any: records of bytes, and arrays of NumPy."""

import io
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats import npy
from penstock.formats.fixed_records import FixedRecords
from penstock.formats.indexed.file_format import Rows
from penstock.formats.indexed.open_files import OpenFileFormat, size_of
from penstock.formats.ranges import RangedFile, open_ranges
from penstock.spec import TensorSpec

_ZIP: Final = b"PK"
_NPY_HEADER: Final = 1 << 16
"""As much of a file as a header takes at most, but for arrays of hundreds of fields."""


@dataclass(frozen=True)
class _FixedRows:
    """The rows of an open file: how many, of what, and where the first begins."""

    file: RangedFile
    count: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def open_size(self) -> int:
        return size_of(self.file)


class FixedFiles(OpenFileFormat[_FixedRows]):
    """The bytes of records of one length."""

    def __init__(self, records: FixedRecords) -> None:
        super().__init__()
        self.records = records

    def spec(self, name: str) -> Any:
        return TensorSpec((), object)

    def read(self, name: str, rows: Rows) -> Any:
        values = _values(self.opened(name), rows)
        return np.fromiter((value.tobytes() for value in values), object, len(values))

    def open(self, name: str) -> _FixedRows:
        file = open_ranges(name)
        size, around = self.records.record_bytes, self.records.header_bytes + self.records.footer_bytes
        count, rest = divmod(file.size - around, size)
        if count < 0 or rest:
            raise StorageError(
                f"{name!r} has {file.size} bytes, which are no whole number of records of {size} bytes and {around} "
                "around them: it is cut, or its records have another length"
            )
        return _FixedRows(file, count, self.records.header_bytes, np.dtype(np.uint8), (size,))


class NpyFiles(OpenFileFormat[_FixedRows]):
    """The rows of arrays that `numpy.save` has written, one array in each file. Fields become a dictionary."""

    def spec(self, name: str) -> Any:
        rows = self.opened(name)
        if rows.dtype.fields is None:
            return TensorSpec(rows.shape, rows.dtype)
        fields = {field: np.empty((), rows.dtype)[field] for field in rows.dtype.names or ()}
        return {field: TensorSpec(rows.shape + value.shape, value.dtype) for field, value in fields.items()}

    def read(self, name: str, rows: Rows) -> Any:
        values = _values(self.opened(name), rows)
        return values if values.dtype.names is None else {field: values[field] for field in values.dtype.names}

    def open(self, name: str) -> _FixedRows:
        file = open_ranges(name)
        head = io.BytesIO(file.read(np.array([0]), np.array([min(_NPY_HEADER, file.size)])))
        try:
            shape, by_columns, dtype = npy.read_header(head)
        except ValueError as error:
            several = head.getvalue().startswith(_ZIP)
            advice = ": it is an archive of several (.npz): save each by np.save" if several else f": {error}"
            raise StorageError(f"{name!r} cannot be read as an array of NumPy (.npy){advice}") from error
        if dtype.hasobject:
            raise StorageError(
                f"{name!r} holds Python objects, which are not loaded: save numbers or strings of one width"
            )
        if not shape or (by_columns and len(shape) > 1):
            what = (
                "is stored by columns (Fortran's order): save np.ascontiguousarray(array)" if shape else "has no rows"
            )
            raise StorageError(f"{name!r}: its array of shape {shape} {what}")
        expected = head.tell() + dtype.itemsize * math.prod(shape)
        if file.size < expected:
            raise StorageError(
                f"{name!r} is cut: its array of {dtype}{shape} takes {expected} bytes, and there are {file.size}"
            )
        return _FixedRows(file, shape[0], head.tell(), dtype, shape[1:])


def _values(of: _FixedRows, rows: Rows) -> npt.NDArray[Any]:
    size = of.dtype.itemsize * math.prod(of.shape)
    numbers = np.array(rows[:: max(1, len(rows) - 1)]) if isinstance(rows, range) else rows  # of a range, its ends
    begins = of.offset + numbers * size
    ends = begins + size
    data = of.file.read(begins[:1], ends[-1:]) if isinstance(rows, range) else of.file.read(begins, ends)
    return np.frombuffer(data, of.dtype, len(rows) * math.prod(of.shape)).reshape(len(rows), *of.shape)
