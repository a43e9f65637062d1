"""Partitioners: into how many shards along the first axis a variable is divided, by TensorFlow's three rules."""

import math
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer


class Partitioner(Protocol):
    """A function from a shape and a dtype to the number of shards along each axis; only the first is divided."""

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> list[int]: ...


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """The same number of shards for every variable, but never more than it has rows.

    Example:
        >>> FixedShardsPartitioner(2)((10, 3), "float32")
        [2, 1]
    """

    num_shards: int

    def __post_init__(self) -> None:
        check_integer("ps.parameter_server.FixedShardsPartitioner", "num_shards", self.num_shards, minimum=1)

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> list[int]:
        """The number of shards along each axis."""
        return _along_first(shape, min(self.num_shards, shape[0]))


@dataclass(frozen=True)
class MinSizePartitioner:
    """Cuts into shards of about `min_shard_bytes` or more, at most `max_shards`.

    Example:
        >>> MinSizePartitioner(min_shard_bytes=4, max_shards=2)((6, 1), "float32")
        [2, 1]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1

    def __post_init__(self) -> None:
        check_integer("ps.parameter_server.MinSizePartitioner", "min_shard_bytes", self.min_shard_bytes, minimum=1)
        check_integer("ps.parameter_server.MinSizePartitioner", "max_shards", self.max_shards, minimum=1)

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> list[int]:
        """The number of shards along each axis."""
        most = math.ceil(_size(shape, dtype) / self.min_shard_bytes)
        return _along_first(shape, min(shape[0], self.max_shards, most))


@dataclass(frozen=True)
class MaxSizePartitioner:
    """As few shards as possible, of at most `max_shard_bytes` unless that takes more than `max_shards` of them.

    Example:
        >>> MaxSizePartitioner(max_shard_bytes=4)((6, 1), "float32")
        [6, 1]
    """

    max_shard_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        check_integer("ps.parameter_server.MaxSizePartitioner", "max_shard_bytes", self.max_shard_bytes, minimum=1)
        if self.max_shards is not None:
            check_integer("ps.parameter_server.MaxSizePartitioner", "max_shards", self.max_shards, minimum=1)

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> list[int]:
        """The number of shards along each axis."""
        row_bytes = _size(shape[1:], dtype)
        rows = max(1, self.max_shard_bytes // row_bytes) if row_bytes else max(1, shape[0])
        return _along_first(shape, min(math.ceil(shape[0] / rows), self.max_shards or shape[0]))


def row_bounds(shape: tuple[int, ...], dtype: npt.DTypeLike, partitioner: Partitioner | None) -> list[tuple[int, int]]:
    """The first row of each shard, and the row after its last. Sizes differ by one row at most, the first are larger.

    A scalar, and what no partitioner divides, is one shard.

    Raises:
        InvalidTypeError: the partitioner does not give an integer for each axis.
        InvalidArgumentError: it divides another axis than the first, or that into less than one shard or more than it
            has rows.
    """
    if not shape:
        return [(0, 1)]
    count = 1 if partitioner is None else _count(partitioner, shape, partitioner(shape, dtype))
    size, larger = divmod(shape[0], count)
    ends = [(number + 1) * size + min(number + 1, larger) for number in range(count)]
    return list(zip([0, *ends], ends, strict=False))


def _count(partitioner: Partitioner, shape: tuple[int, ...], answer: Any) -> int:
    """Return how many shards a partitioner wants, which may be a function of the user's."""
    expected = f"variable_partitioner: {partitioner!r:.200} must give a number of shards for each axis of {shape}"
    try:
        counts = list(map(index, answer))
    except TypeError:
        raise InvalidTypeError(f"{expected}, in a list, got {answer!r:.200}") from None
    if len(counts) != len(shape) or any(count != 1 for count in counts[1:]) or not 1 <= counts[0] <= max(1, shape[0]):
        raise InvalidArgumentError(
            f"{expected}: from 1 to {max(1, shape[0])} along the first, and 1 along the others, got {counts}"
        )
    return counts[0]


def _along_first(shape: tuple[int, ...], shards: int) -> list[int]:
    return [max(1, shards), *[1 for _ in shape[1:]]]


def _size(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * int(np.dtype(dtype).itemsize)
