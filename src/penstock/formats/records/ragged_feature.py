"""Features of `tf.train.Example` whose values are divided into rows by other features of the same record."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidTypeError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """A division of values into rows, by the numbers that a feature has."""

    key: str
    described: ClassVar[str]

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        """The places at which each row of `count` values begins, and the last one ends.

        Raises:
            ElementError: the numbers do not divide this number of values.
        """
        raise NotImplementedError

    def checked(self, numbers: Numbers, count: int) -> Numbers:
        """The `bounds`, checked."""
        bounds = self.bounds(numbers, count)
        good = len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == count and bool((np.diff(bounds) >= 0).all())
        if not good:
            raise ElementError(f"the {self.described} {numbers[:20].tolist()} do not divide {count} values into rows")
        return bounds


@dataclass(frozen=True)
class RowSplits(Partition):
    """A division by the places at which each row begins, and then the last one ends."""

    described = "row splits"

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        return numbers if len(numbers) else np.zeros(1, np.int64)


@dataclass(frozen=True)
class RowLengths(Partition):
    """A division by the length of each row."""

    described = "row lengths"

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        return np.append(0, np.cumsum(numbers))


@dataclass(frozen=True)
class RowStarts(Partition):
    """A division by the places at which each row begins."""

    described = "starts of rows"

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        return np.append(numbers, count)


@dataclass(frozen=True)
class RowLimits(Partition):
    """A division by the places at which each row ends."""

    described = "limits of rows"

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        return np.append(0, numbers)


@dataclass(frozen=True)
class ValueRowIds(Partition):
    """A division by the number of each value's row."""

    described = "row numbers"

    def bounds(self, numbers: Numbers, count: int) -> Numbers:
        if len(numbers) != count or (np.diff(numbers, prepend=0) < 0).any():
            return numbers[:0]  # which divides nothing
        rows = int(numbers[-1]) + 1 if count else 0
        return np.searchsorted(numbers, np.arange(rows + 1), side="left").astype(np.int64)


@dataclass(frozen=True)
class UniformRowLength:
    """A division into rows of one length."""

    length: int

    def checked(self, numbers: Numbers, count: int) -> Numbers:
        """The places at which each row begins, and the last one ends.

        Raises:
            ElementError: this number of values does not fill rows.
        """
        if self.length < 1 or count % self.length:
            raise ElementError(f"{count} values do not fill rows of {self.length}")
        return np.arange(0, count + 1, self.length)


@dataclass(frozen=True)
class RaggedFeature:
    """Values of any number, divided into rows, as by `tf.io.RaggedFeature`.

    A record gives an object array with one array for each row; with several partitions, of which the first is the
    outermost, the rows are object arrays of rows again. Without any it gives an array of values.

    Args:
        dtype: of the values; `object` for bytes.
        value_key: the feature that has the values; None for the one by whose name this one is asked for.
        partitions: of `RaggedFeature.RowSplits(key)`, `RowLengths(key)`, `RowStarts(key)`, `RowLimits(key)` and
            `ValueRowIds(key)`, each with the name of a feature of integers, and `UniformRowLength(length)`.

    Raises:
        InvalidTypeError: other partitions than these.

    Example:
        >>> import penstock as ps
        >>> ps.tfrecord.RaggedFeature("float32", "values", [ps.tfrecord.RaggedFeature.RowLengths("lengths")]).partitions
        (RowLengths(key='lengths'),)
    """

    dtype: npt.DTypeLike
    value_key: str | None = None
    partitions: Any = ()

    RowSplits: ClassVar[Callable[[str], Partition]] = RowSplits
    RowLengths: ClassVar[Callable[[str], Partition]] = RowLengths
    RowStarts: ClassVar[Callable[[str], Partition]] = RowStarts
    RowLimits: ClassVar[Callable[[str], Partition]] = RowLimits
    ValueRowIds: ClassVar[Callable[[str], Partition]] = ValueRowIds
    UniformRowLength: ClassVar[Callable[[int], UniformRowLength]] = UniformRowLength

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        partitions = tuple(self.partitions)
        for partition in partitions:
            if not isinstance(partition, (Partition, UniformRowLength)):
                raise InvalidTypeError(
                    f"RaggedFeature(partitions=...) takes RaggedFeature.RowSplits(key) or another, got {partition!r}"
                )
        object.__setattr__(self, "partitions", partitions)

    @property
    def keys(self) -> list[str | None]:
        """The names of the features that divide, one for each partition; None for one that needs none."""
        return [getattr(partition, "key", None) for partition in self.partitions]

    def divided(self, values: npt.NDArray[Any], numbers: list[Numbers]) -> npt.NDArray[Any]:
        """The rows of one record.

        Args:
            values: those of the record.
            numbers: those of each partition.

        Raises:
            ElementError: the numbers do not divide the values.
        """
        for partition, given in reversed(list(zip(self.partitions, numbers, strict=True))):
            bounds = partition.checked(given, len(values)).tolist()
            rows = np.empty(len(bounds) - 1, object)
            for number, (start, stop) in enumerate(pairwise(bounds)):
                rows[number] = values[start:stop]
            values = rows
        return values
