"""Positions of rows, and those among them that are in the same part: a file, a window, an epoch."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = range | npt.NDArray[np.int64]
"""Positions: a range where they are evenly spaced (rows are views), else an array of int64 (rows are copies)."""

_SHORT = 1 << 16
"""Range of numbers that fit into the short integers that NumPy sorts by their digits, ten times as fast as others."""


def as_positions(positions: range | npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Positions as an int64 array. NumPy alone would visit a range number by number."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return np.asarray(positions, dtype=np.int64)


def shifted(indices: Indices, by: int) -> Indices:
    """The positions plus `by`."""
    if isinstance(indices, range):
        return range(indices.start + by, indices.stop + by, indices.step)
    return indices + by


def strided(indices: Indices, first: int, step: int) -> Indices:
    """The positions times `step`, plus `first`."""
    if isinstance(indices, range):
        start, stride = first + indices.start * step, indices.step * step
        return range(start, start + len(indices) * stride, stride)
    return indices * step + first


def compact(positions: npt.NDArray[np.int64]) -> Indices:
    """Return positions, at least one, which rise, as a range if there is none between them that is not among them."""
    first, last = int(positions[0]), int(positions[-1])
    return range(first, last + 1) if last - first + 1 == len(positions) else positions


def by_part(
    indices: range | npt.NDArray[Any], numbers: npt.NDArray[np.integer[Any]]
) -> Iterator[tuple[int, npt.NDArray[np.intp], Any]]:
    """Positions sorted by the part that each is in: the number of a part, which of the positions are in it, and these.

    Args:
        indices: the positions, or what else is to be sorted. Of a range each part is a range too: all positions that
            are between two of its entries must be in it.
        numbers: of the part of each, from 0 on.

    Example:
        >>> [(part, which.tolist(), rows) for part, which, rows in by_part(range(3, 7), np.array([0, 0, 1, 1]))]
        [(0, [0, 1], range(3, 5)), (1, [2, 3], range(5, 7))]
    """
    if len(numbers) and not (numbers != numbers[0]).any():  # as it is for most batches
        yield int(numbers[0]), np.arange(len(numbers)), indices
        return
    if isinstance(indices, range):
        order = np.arange(len(numbers))
    else:
        short = len(numbers) > 0 and int(numbers.max()) < _SHORT
        order = np.argsort(numbers.astype(np.uint16) if short else numbers, kind="stable")
    parts = numbers[order]
    edges = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(order)]
    for start, stop in pairwise(edges):
        if start < stop:
            which = order[start:stop]
            rows = indices[int(which[0]) : int(which[-1]) + 1] if isinstance(indices, range) else indices[which]
            yield int(parts[start]), which, rows
