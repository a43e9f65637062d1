"""NumPy's files of arrays (.npy), read by one thread at a time.

NumPy reads their headers with Python's parser, which in Python 3.11 fails now and then where several threads use it:
"AST constructor recursion depth mismatch".
"""

import io
import math
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import StorageError
from penstock.formats.file_format import Rows
from penstock.formats.open_files import OpenFileFormat
from penstock.formats.ranges import open_ranges
from penstock.formats.records.fixed_records import FixedRows
from penstock.spec import TensorSpec

_ZIP: Final = b"PK"
_NPY_HEADER: Final = 1 << 16
"""The bytes of a file that a header takes at most, but for arrays of hundreds of fields."""
_lock = threading.Lock()


def read_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape, the order (True for columns) and the dtype of an array; the file is then where its values begin.

    Raises:
        ValueError: it is no such file.
    """
    with _lock:
        try:
            major, _ = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(_in_ascii(file) if major > 2 else file)
            if min(shape, default=0) < 0:
                raise ValueError(f"it has the shape {shape}")
            if not dtype.itemsize:
                raise ValueError(f"its values, of {dtype!r}, have no bytes")
            return shape, by_columns, dtype
        except Exception as error:  # of Python's parser too, which gets any bytes
            raise ValueError(str(error) or type(error).__name__) from error


def _in_ascii(file: io.BytesIO) -> io.BytesIO:
    """A header of version 3, in UTF-8, as one of version 2, which NumPy would read as Latin-1."""
    text = file.read(int.from_bytes(file.read(4), "little")).decode().encode("ascii", "backslashreplace")
    return io.BytesIO(len(text).to_bytes(4, "little") + text)


def load(content: bytes) -> npt.NDArray[Any]:
    """The array of a file with this content.

    Raises:
        ValueError: it is no such file, is cut, or holds Python objects.
    """
    file = io.BytesIO(content)
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    size, held = dtype.itemsize * math.prod(shape), len(content) - file.tell()
    if held < size:
        raise ValueError(f"it is cut: its array of {dtype}{shape} takes {size} bytes, and there are {held}")
    return np.ndarray(shape, dtype, content, file.tell(), order="F" if by_columns else "C").copy("K")


class NpyFiles(OpenFileFormat[FixedRows]):
    """The rows of arrays that `numpy.save` has written, one array in each file. Fields become a dictionary."""

    def spec(self, name: str) -> Any:
        rows = self.opened(name)
        if rows.dtype.fields is None:
            return TensorSpec(rows.shape, rows.dtype)
        fields = {field: np.empty((), rows.dtype)[field] for field in rows.dtype.names or ()}
        return {field: TensorSpec(rows.shape + value.shape, value.dtype) for field, value in fields.items()}

    def read(self, name: str, rows: Rows) -> Any:
        values = self.opened(name).read(rows)
        return values if values.dtype.names is None else {field: values[field] for field in values.dtype.names}

    def open(self, name: str) -> FixedRows:
        file = open_ranges(name)
        head = io.BytesIO(file.read(np.array([0]), np.array([min(_NPY_HEADER, file.size)])))
        try:
            shape, by_columns, dtype = read_header(head)
        except ValueError as error:
            several = head.getvalue().startswith(_ZIP)
            advice = ": it is an archive of several (.npz): save each by np.save" if several else f": {error}"
            raise StorageError(f"{name!r} cannot be read as an array of NumPy (.npy){advice}") from error
        if dtype.hasobject:
            raise StorageError(
                f"{name!r} holds Python objects, which are not loaded: save numbers or strings of one width"
            )
        if not shape:
            raise StorageError(f"{name!r}: its array of shape {shape} has no rows")
        expected = head.tell() + dtype.itemsize * math.prod(shape)
        if file.size < expected:
            raise StorageError(
                f"{name!r} is cut: its array of {dtype}{shape} takes {expected} bytes, and there are {file.size}"
            )
        return FixedRows(file, shape[0], head.tell(), dtype, shape[1:], by_columns and len(shape) > 1)
