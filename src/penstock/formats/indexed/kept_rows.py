"""Rows that were decoded together, of which those that were used last are kept."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.runtime.memory import output

CACHE_BYTES: Final = 1 << 28
"""What was decoded last is kept up to this size together; the very last whatever its size."""

Kept = TypeVar("Kept")


class KeptRows(Generic[Kept]):
    """What became of groups of rows, by the name of a file and the number of a group in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[Kept, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, int]) -> Kept | None:
        """What is kept of a group; None if nothing is."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: tuple[str, int], value: Kept, size: int) -> None:
        """Keep a group of this many bytes."""
        with self._lock:
            self._bytes += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, size
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]


def joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The rows of several columns of one leaf, at least one; each may have rows of another length, or of several."""
    if len(columns) == 1:
        return columns[0]
    if len({column.shape[1:] for column in columns}) == 1:
        dtype = columns[0].dtype
        alike = all(column.dtype == dtype for column in columns)
        shape = (sum(map(len, columns)), *columns[0].shape[1:])
        return np.concatenate(columns, out=output(shape, dtype) if alike else None)
    return np.fromiter(chain.from_iterable(columns), object, sum(map(len, columns)))


def bytes_of(columns: Iterable[npt.NDArray[Any]]) -> int:
    """About how many bytes columns hold."""
    return sum(map(_bytes_of, columns))


def _bytes_of(column: npt.NDArray[Any]) -> int:
    if column.dtype.kind != "O":
        return column.nbytes
    entries = column[:: max(1, len(column) // 100)]  # a sample tells about how large they are
    sizes = [entry.nbytes if isinstance(entry, np.ndarray) else len(entry) + 50 for entry in entries]
    return column.nbytes + int(np.mean(sizes or [0]) * len(column))
