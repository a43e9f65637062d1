"""Elements by their positions: select takes those that are given, sample draws them, each by its weight."""

import hashlib
from dataclasses import field
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Column, Indices
from penstock.data.node import Node, Run, SameElements, derived
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.positions import as_positions, strided
from penstock.printing import in_bytes
from penstock.rng import mix, uniform_positions

_PIECE_ROWS = 1 << 16
"""So many positions, of a memory-mapped file perhaps, are looked at or computed at a time, to take little memory."""


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
        return strided(indices, self.rows.start, self.rows.step)


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


class Sample(SameElements, name="sample"):
    """`count` elements of the input, drawn anew in each epoch.

    Attributes:
        held: the edges between the shares of the rows, or their weights.
    """

    varies = True
    draws_random = True
    count: int
    seed: int | None
    held: Column = field(repr=False)

    @derived
    def cardinality(self) -> int:
        return self.count

    def arguments(self) -> list[str]:
        return [f"{self.count:,} of {self.input.cardinality:,}", *([f"seed={self.seed}"] if self.seed else [])]

    @property
    def identity(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed, "held": self._digest, "kind": type(self).__name__}

    @cached_property
    def _digest(self) -> str:
        return hashlib.blake2b(self.held.data, digest_size=8).hexdigest()

    def key(self, run: Run, epoch: int) -> int:
        """Return the random key of one epoch's draws."""
        return mix(run.key(self, self.seed), epoch)


class SampleWithReplacement(Sample):
    """Every draw is of all rows: the row in whose share of [0, 1) a random number falls."""

    @property
    def memory(self) -> str:
        return f"holds {in_bytes(self.held.nbytes)}"

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        if not len(indices):
            return as_positions(indices)
        places = uniform_positions(self.key(run, epoch), indices) * self.held[-1]
        order = places.argsort()  # a search that goes forward finds most of its memory in the cache
        rows = np.empty(len(places), np.int64)
        rows[order] = np.searchsorted(self.held, places[order], side="right")
        return np.minimum(rows, self._last)

    @cached_property
    def _last(self) -> int:
        """The last row with a weight: rounding may bring a place to the upper edge of its share."""
        return int(np.searchsorted(self.held, self.held[-1], side="left"))


class SampleWithoutReplacement(Sample):
    """No row comes twice in an epoch.

    Each row waits for a random time, which is shorter on average the larger its weight, and rows come in the order of
    these times (Efraimidis and Spirakis, 2006): each draw is by the weights of the rows that are left. The order of an
    epoch is computed when the first of its rows is read.
    """

    @property
    def memory(self) -> str:
        return f"holds {in_bytes(self.held.nbytes + np.min_scalar_type(len(self.held)).itemsize * self.count)}"

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        return as_positions(self._order_of(self.key(run, epoch))[as_positions(indices)])

    @cached_property
    def _order_of(self) -> Any:
        return lru_cache(maxsize=1)(partial(_order, self.held, self.count))


def _order(weights: Column, count: int, key: int) -> Column:
    """Return the first rows in the order of their times, as numbers of as few bytes as they need."""
    rows = len(weights)
    # The number of a row takes the low bits of its time: sorting values is far faster than sorting an index.
    row_bits = np.uint64((1 << rows.bit_length()) - 1)
    words = np.empty(rows, np.uint64)
    for start in range(0, rows, _PIECE_ROWS):
        stop = min(start + _PIECE_ROWS, rows)
        times = -np.log1p(-uniform_positions(key, range(start, stop)))
        with np.errstate(divide="ignore", invalid="ignore"):  # rows without weight come after all others
            times /= weights[start:stop]
        words[start:stop] = (times.view(np.uint64) & ~row_bits) | np.arange(start, stop, dtype=np.uint64)
    if count < rows:
        words.partition(count)
    first = words[:count]
    first.sort()
    return (first & row_bits).astype(np.min_scalar_type(rows))


def sample_of(node: Node, weights: Any, num: int | None, replacement: bool, seed: int | None, site: str) -> Sample:
    """Return the node of `sample`, from its arguments.

    Raises:
        InvalidTypeError: `weights` is not an array of numbers along one axis.
        InvalidArgumentError: a weight that is negative, NaN or infinite; another number of weights than rows; no weight
            above 0; more draws without replacement than rows that have a weight.
    """
    shares = np.asarray(weights)
    if shares.ndim != 1 or (shares.dtype.kind not in "biuf" and shares.size):
        raise InvalidTypeError(
            f"sample(weights=...) takes numbers along one axis, got {shares.dtype} of shape {shares.shape}"
        )
    length = node.cardinality
    if len(shares) != length:
        raise InvalidArgumentError(
            f"sample(weights=...) takes a weight for each of the {length:,} rows of {node.where()}, got "
            f"{len(shares):,}: make them of the same rows, as by dataset.map(lambda row: ...)"
        )
    shares = shares.astype(np.float64, copy=False)
    wrong = np.flatnonzero(~((shares >= 0) & np.isfinite(shares)))
    if len(wrong):
        raise InvalidArgumentError(
            f"sample(weights=...) takes finite weights of at least 0, got {shares[wrong[0]]} for row {wrong[0]:,} of "
            f"{node.where()}{f' and {len(wrong) - 1:,} more such weights' if len(wrong) > 1 else ''}: give a row that "
            "shall not come a weight of 0"
        )
    weighed = int(np.count_nonzero(shares))
    least = 0 if num is None else check_integer("sample", "num", num, minimum=0)
    if not weighed and (length or least):
        raise InvalidArgumentError(
            f"sample(weights=...) takes at least one weight above 0, and all {length:,} rows of {node.where()} have 0"
        )
    if not replacement and least > weighed:
        raise InvalidArgumentError(
            f"sample(num={num:,}, replacement=False) draws each row once, and {weighed:,} of the {length:,} rows of "
            f"{node.where()} have a weight above 0: draw fewer, or with replacement"
        )
    largest = shares.max(initial=0) or 1.0
    if replacement:
        count = length if num is None else least
        return SampleWithReplacement(node, count, seed, np.cumsum(shares / largest), site=site)
    count = weighed if num is None else least
    smaller = (shares / largest).astype(np.float32)
    smaller[(smaller == 0) & (shares > 0)] = np.finfo(np.float32).smallest_subnormal  # a row with a weight comes
    return SampleWithoutReplacement(node, count, seed, smaller, site=site)
