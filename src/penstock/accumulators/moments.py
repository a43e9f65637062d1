"""Counts, means and variances."""

from collections.abc import Sequence

import numpy as np

from penstock.accumulators.accumulator import Accumulator, Array, Doubles, State, elements, place_shape

_AT_ONCE = 1 << 14
"""Count of numbers that fit into a processor's cache together with their distances from the mean."""


class Moments(Accumulator):
    """The count, the mean and the variance of all finite numbers, or of each position of an element.

    Args:
        elementwise: whether each position of an element has its own.
        finite: ignore numbers that are NaN or infinite; otherwise the results are NaN too.

    Example:
        >>> moments = Moments(elementwise=False)
        >>> moments.add(np.array([1.0, 3.0, np.nan])); moments.add(np.array([5.0]))
        >>> int(moments.count), float(moments.mean), float(moments.variance.round(4))
        (3, 3.0, 2.6667)
    """

    def __init__(self, elementwise: bool, finite: bool = True) -> None:
        self._elementwise = elementwise
        self._finite = finite
        self.count: Doubles = np.zeros(())
        self.mean: Doubles = np.zeros(())
        self._squares: Doubles = np.zeros(())

    def add(self, column: Array) -> None:
        """Add the numbers of a column, except NaN and infinite ones."""
        if column.size == 0:
            return
        values = elements(column, self._elementwise)
        for start in range(0, values.shape[-1], _AT_ONCE):
            part = values[:, start : start + _AT_ONCE].astype(np.float64, copy=False)
            self._add(part, place_shape(column, self._elementwise))

    def _add(self, values: Doubles, shape: tuple[int, ...]) -> None:
        """Add rows of numbers, one for each position."""
        with np.errstate(invalid="ignore", over="ignore"):
            total = values.sum(axis=-1)
        count = np.full(len(values), float(values.shape[-1]))
        if self._finite and not np.isfinite(total).all():
            finite = np.isfinite(values)
            values, count = np.where(finite, values, 0.0), finite.sum(axis=-1).astype(np.float64)
            total = values.sum(axis=-1)
        mean = total / np.maximum(count, 1)
        rest = values - mean[:, None]
        if count.sum() < values.size:
            rest[~finite] = 0
        rest *= rest  # no BLAS, whose threads wait for each other on busy machines
        self._take(count.reshape(shape), mean.reshape(shape), rest.sum(axis=-1).reshape(shape))

    def _take(self, *others: Doubles) -> None:
        self.count, self.mean, self._squares = together((self.count, self.mean, self._squares), others)

    def merge(self, other: "Moments") -> None:
        self._take(other.count, other.mean, other._squares)

    @property
    def variance(self) -> Doubles:
        """The mean squared distance from the mean; 0 where nothing was added."""
        return np.asarray(self._squares / np.maximum(self.count, 1))

    def state(self) -> State:
        return {"count": np.asarray(self.count), "mean": np.asarray(self.mean), "squares": np.asarray(self._squares)}

    def load(self, state: State) -> None:
        self.count, self.mean, self._squares = state["count"], state["mean"], state["squares"]


def together(one: Sequence[Doubles], other: Sequence[Doubles]) -> tuple[Doubles, Doubles, Doubles]:
    """The count, mean and sum of squared distances of the numbers of two, by the formula of Chan, Golub and LeVeque.

    It squares no number that is far from the mean.
    """
    count, mean, squares = one
    total = count + other[0]
    share = np.divide(other[0], total, out=np.zeros(np.shape(total)), where=total > 0)
    distance = other[1] - mean
    return total, mean + distance * share, squares + other[2] + distance * distance * count * share
