"""select: the elements at given positions."""

import hashlib
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Column, Indices
from penstock.data.node import Node, Run, SameElements, derived
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.positions import as_positions
from penstock.printing import in_bytes

_PIECE_ROWS = 1 << 22
"""The most numbers of a memory-mapped file that are in memory while they are checked."""


class Select(SameElements, name="select"):
    """The elements of the input at the positions `rows`, in that order."""

    rows: range | Column = field(repr=False)

    @derived
    def cardinality(self) -> int:
        return len(self.rows)

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        ends, rows = self.input.group_ends, as_positions(self.rows)
        return None if ends is None or (rows[1:] < rows[:-1]).any() else np.searchsorted(rows, ends)

    @property
    def memory(self) -> str:
        return "" if isinstance(self.rows, range) else f"holds {in_bytes(self.rows.nbytes)}"

    def arguments(self) -> list[str]:
        return [f"{len(self.rows):,} of {self.input.cardinality:,}"]

    @property
    def identity(self) -> dict[str, Any]:
        return {"rows": self._digest}

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for start in range(0, len(self.rows), _PIECE_ROWS):
            digest.update(as_positions(self.rows[start : start + _PIECE_ROWS]).tobytes())
        return digest.hexdigest()

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        if not isinstance(self.rows, range):
            return as_positions(self.rows[as_positions(indices)])
        first, step = self.rows.start, self.rows.step
        if isinstance(indices, range):
            start, stride = first + indices.start * step, indices.step * step
            return range(start, start + len(indices) * stride, stride)
        return indices * step + first


def checked_rows(node: Node, indices: Any) -> range | Column:
    """Return the positions passed to `select`, checked.

    Raises:
        InvalidTypeError: `indices` is not an array of integers along one axis.
        InvalidArgumentError: a position is negative, or beyond the end.
    """
    length = node.cardinality
    if isinstance(indices, slice):
        if length < 0:
            raise InvalidArgumentError(f"select: {node.where()} never ends: pass positions instead of a slice")
        return range(*indices.indices(length))
    rows = np.asarray(indices)
    if rows.size == 0 and not isinstance(indices, np.ndarray):
        rows = rows.astype(np.int64)  # an empty list has no integer type
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        found = f"{rows.dtype} of shape {rows.shape}{': np.flatnonzero(mask) gives them' * (rows.dtype == bool)}"
        raise InvalidTypeError(f"select(indices=...) takes integers along one axis, or a slice, got {found}")
    for start in range(0, len(rows), _PIECE_ROWS):
        piece = rows[start : start + _PIECE_ROWS]
        wrong = np.flatnonzero((piece < 0) | (piece >= length) if length >= 0 else piece < 0)
        if len(wrong):
            has = "has no end" if length < 0 else f"has {length:,} elements"
            raise InvalidArgumentError(
                f"select(indices=...) takes positions from 0 on in {node.where()}, which {has}: got {piece[wrong[0]]} "
                f"as number {start + int(wrong[0]):,} of the indices"
            )
    return rows if isinstance(indices, np.memmap) else rows.copy()
