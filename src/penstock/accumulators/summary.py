"""Sorted values with bounds on their ranks: what quantiles are read from.

A value's rank lies between `least`, the weight of surely smaller values, and `most`, the weight of values surely not
larger. Of all values together they are exact; a compressed summary keeps some values, whose bounds stay true.
"""

from dataclasses import dataclass

import numpy as np

from penstock.accumulators.accumulator import Array, Doubles


@dataclass(frozen=True, eq=False)
class Summary:
    """Distinct values in ascending order, their own weights, and bounds on their ranks."""

    values: Array
    weights: Doubles
    least: Doubles
    most: Doubles

    def __len__(self) -> int:
        return len(self.values)

    @property
    def total(self) -> float:
        """The weight of everything that was summarised."""
        return float(self.most[-1]) if len(self) else 0.0

    def compressed(self, count: int) -> "Summary":
        """About `count` of the values, at equal distances in rank, with the smallest and the largest."""
        if len(self) <= count:
            return self
        middle = (self.least + self.most) / 2
        chosen = np.searchsorted(middle, np.linspace(0, self.total, count))
        wanted = np.zeros(len(self), bool)
        wanted[np.minimum(chosen, len(self) - 1)] = wanted[[0, -1]] = True
        kept = np.flatnonzero(wanted)
        return Summary(self.values[kept], self.weights[kept], self.least[kept], self.most[kept])

    def quantiles(self, number: int) -> Array:
        """The number + 1 values at ranks 0, 1 / number, ..., 1, as TensorFlow's quantile summaries choose them."""
        middle = self.least + self.most
        wanted = 2 * (np.arange(number + 1) * self.total / number)
        current = np.maximum(np.searchsorted(middle, wanted, side="right") - 1, 0)
        following = np.minimum(current + 1, len(self) - 1)
        border = self.least[current] + self.weights[current] + self.most[following] - self.weights[following]
        return self.values[np.where((current + 1 < len(self)) & (wanted >= border), following, current)]


def summary_of(values: Array, weights: Doubles | None) -> Summary:
    """The exact summary of these values."""
    if weights is None:
        return exact(*_counted(values))
    distinct, places = np.unique(values, return_inverse=True)
    return exact(distinct, np.bincount(places, weights, len(distinct)).astype(np.float64))


def _counted(values: Array) -> tuple[Array, Doubles]:
    """The distinct values in order, and how often each occurs."""
    ordered = np.sort(values)
    differs = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    return ordered[starts], np.diff(np.append(starts, len(ordered))).astype(np.float64)


def exact(values: Array, weights: Doubles) -> Summary:
    """The summary of all values that there are."""
    most = np.cumsum(weights)
    return Summary(values, weights, most - weights, most)


def merged(one: Summary, other: Summary) -> Summary:
    """The summary of what both have summarised (Greenwald and Khanna)."""
    if not len(one) or not len(other):
        return one if len(one) else other
    values, places = np.unique(np.concatenate([one.values, other.values]), return_inverse=True)
    weights = np.zeros(len(values))
    least, most = np.zeros(len(values)), np.zeros(len(values))
    for part, found in ((one, places[: len(one)]), (other, places[len(one) :])):
        weights[found] += part.weights
        low, high = _bounds(part, values)
        low[found], high[found] = part.least, part.most
        least += low
        most += high
    return Summary(values, weights, least, most)


def _bounds(part: Summary, values: Array) -> tuple[Doubles, Doubles]:
    """The bounds on the ranks of values that lie between those of a summary."""
    place = np.searchsorted(part.values, values)
    before, after = np.maximum(place - 1, 0), np.minimum(place, len(part) - 1)
    low = np.where(place > 0, part.least[before] + part.weights[before], 0.0)
    high = np.where(place < len(part), part.most[after] - part.weights[after], part.total)
    return low, high
