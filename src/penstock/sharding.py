"""Pure index arithmetic: which rows of a batch go to which replica."""

from dataclasses import dataclass
from itertools import pairwise

from penstock.options import check_integer


def slice_bounds(rows: int, replicas: int) -> list[tuple[int, int]]:
    """The one splitting rule: a batch of `rows` rows cut in order into exactly `replicas` slices.

    Every slice has ceil(rows / replicas) rows, except that the last one with any rows may be shorter and those after it
    are empty.

    Args:
        rows: the number of rows of the batch, at least 0.
        replicas: the number of slices, at least 1.

    Returns:
        One (start, stop) per slice, in order; an empty slice has start == stop.

    Raises:
        InvalidTypeError: an argument that is not an integer.
        InvalidArgumentError: negative `rows`, or `replicas` below 1.

    Example:
        >>> slice_bounds(8, 3), slice_bounds(4, 5)
        ([(0, 3), (3, 6), (6, 8)], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)])
    """
    check_integer("slice_bounds", "rows", rows, minimum=0)
    check_integer("slice_bounds", "replicas", replicas, minimum=1)
    return SliceRule(replicas).bounds(rows)


@dataclass(frozen=True)
class SliceRule:
    """Rule by which the batches of one dataset are cut into slices.

    Attributes:
        slices: how many.
        least: the rows of a slice, where the batch has fewer than that for each: then the last slices have none.
        even: whether the last rows that would make slices unequal are dropped.
    """

    slices: int
    least: int = 0
    even: bool = False

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """One (start, stop) per slice of a batch of `rows` rows, in order."""
        if self.even:
            rows -= rows % self.slices
        size = max(-(-rows // self.slices), self.least)
        edges = [min(position * size, rows) for position in range(self.slices + 1)]
        return list(pairwise(edges))
