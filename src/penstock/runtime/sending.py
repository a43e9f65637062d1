"""Pickles for other processes: functions of the main program by value, mapped files by name."""

import io
import os
import pickle
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
import numpy as np

from penstock.errors import StorageError

_NAME_IN_SPAWNED = "__mp_main__"


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Writes an array that shows a mapped file as a place in the file, to be mapped again, read-only, where it is read.

    Its content would be private memory of every process. A map with `mode="c"` is sent by value, as what was written
    into it is in no file. Functions keep the names of their files, for errors: cloudpickle leaves them out since 3.1.3.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_of_file, (value.co_filename, *self.dispatch_table[CodeType](value))
        mapped = place_in_file(value) if isinstance(value, np.ndarray) else None
        return super().reducer_override(value) if mapped is None else (_map_again, mapped)


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """A value as bytes.

    What the main program defines goes by value, also in processes that others have spawned: there, as in the workers of
    a DataLoader, the main program is a module that no other process can import.
    """
    main = sys.modules.get(_NAME_IN_SPAWNED)
    if main is not None:
        cloudpickle.register_pickle_by_value(main)
    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


def loads(content: bytes) -> Any:
    """Return what `dumps` wrote.

    Raises:
        StorageError: a file that was mapped is not here.
    """
    return pickle.loads(content)


def _code_of_file(name: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=name)


_Place = tuple[str, int, int, int, int, np.dtype[Any], tuple[int, ...], tuple[int, ...]]


def place_in_file(array: np.ndarray[Any, Any]) -> _Place | None:
    """Return where the bytes of an array are in the file that it shows, with the file's size; None if it shows none."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.mode == "c" or root.filename is None or array.size == 0:
        return None
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(min(step, 0) for step in steps)
    nbytes = before + sum(max(step, 0) for step in steps) + array.itemsize
    start = root.offset + array.ctypes.data - root.ctypes.data - before
    path = os.path.abspath(root.filename)
    try:
        size = os.stat(path).st_size
    except OSError:
        return None
    return (
        (path, size, start, nbytes, before, array.dtype, array.shape, array.strides) if start + nbytes <= size else None
    )


def _map_again(
    path: str,
    size: int,
    start: int,
    nbytes: int,
    before: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    try:
        found = os.stat(path).st_size
        if found != size:
            raise OSError(f"it has {found} bytes here, and {size} where it was mapped")
        memory = np.memmap(path, np.uint8, "r", start, (nbytes,))
    except OSError as error:
        raise StorageError(
            f"a memory map of {path} cannot be made in this process: {error}. It is sent as the name of its file: put "
            "the file there on every machine, or give np.array(...) of it, a copy of which every process gets"
        ) from error
    return np.ndarray(shape, dtype, memory, before, strides)
