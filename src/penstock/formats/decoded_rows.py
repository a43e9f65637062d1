"""Rows that were decoded together, of which all datasets of a process keep those that were used last."""

from collections.abc import Iterable, Sequence
from itertools import chain
from sys import getsizeof
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.runtime.memory import output

CACHE_BYTES: Final = 1 << 28
"""The size up to which all datasets of a process together keep the rows that were decoded last."""
_IN_USE: Final = 256
"""Datasets that are read in turn would otherwise decode large groups again for every block."""

Decoded = TypeVar("Decoded")


class DecodedRows(DatasetCache[tuple[str, int], Decoded]):
    """Decoded groups of rows of one dataset, by the name of the file and the number of the group in it."""

    bound = ProcessBound(lambda: CACHE_BYTES, _IN_USE)


def joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The rows of several columns of one leaf, at least one; each may have rows of another length, or of several."""
    if len(columns) == 1:
        return columns[0]
    first = columns[0]
    rows = sum(map(len, columns))
    if len({(column.dtype == object, column.shape[1:]) for column in columns}) > 1:
        arrays = (column if column.dtype == object else map(np.asarray, column) for column in columns)
        return np.fromiter(chain.from_iterable(arrays), object, rows)
    if any(column.dtype != first.dtype for column in columns):
        return np.concatenate(columns)
    out = output((rows, *first.shape[1:]), first.dtype)
    return np.concatenate(columns, out=out) if out is not None else np.concatenate(columns, dtype=first.dtype)


def bytes_of(columns: Iterable[npt.NDArray[Any]]) -> int:
    """About the number of bytes that columns hold."""
    return sum(map(_bytes_of, columns))


def _bytes_of(column: npt.NDArray[Any]) -> int:
    if column.dtype.kind != "O" or type(column) is not np.ndarray:  # Arrow's values, of which no row is made yet
        return column.nbytes
    entries = column[:: max(1, len(column) // 100)]  # a sample shows about how large they are
    sizes = [entry.nbytes if isinstance(entry, np.ndarray) else getsizeof(entry) for entry in entries]
    return column.nbytes + int(np.mean(sizes or [0]) * len(column))
