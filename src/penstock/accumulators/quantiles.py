"""Quantiles: exact of a few values, within a stated error of many."""

import math

import numpy as np

from penstock.accumulators.accumulator import Accumulator, Array, Doubles, State
from penstock.accumulators.summary import Summary, exact, merged, summary_of

EXACT_VALUES = 1 << 19
"""Limit of distinct values up to which all quantiles are exact."""

KEPT_VALUES = 1 << 13
"""How many values a compressed summary keeps. The error in rank grows by half a KEPT_VALUES-th with each level of
merges, of which there are log2(values / EXACT_VALUES): it is below 0.001 of the whole for eight billion values."""

Part = tuple[Array, Doubles | None]
"""Values and their weights; None where all weigh 1."""


class Quantiles(Accumulator):
    """Summaries of values from which quantiles are read.

    Values are kept until more than EXACT_VALUES are distinct. Then summaries of about equal numbers of values are
    merged in pairs, and compressed, as a binary counter counts. Nothing is drawn at random: the same blocks give the
    same result.

    Example:
        >>> quantiles = Quantiles()
        >>> quantiles.add(np.arange(5.0)); quantiles.add(np.arange(5.0, 10.0))
        >>> quantiles.result(2).tolist()
        [0.0, 5.0, 9.0]
    """

    def __init__(self) -> None:
        self._pending: list[Part] = []
        self._waiting = 0
        self._levels: dict[int, Summary] = {}

    def add(self, column: Array, weights: Array | None = None) -> None:
        """Add numbers, each with its weight. NaN, and numbers without weight, are ignored."""
        values = column.reshape(-1)
        heavy = None if weights is None else np.broadcast_to(weights, column.shape).reshape(-1).astype(np.float64)
        kept = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
        kept = kept if heavy is None else kept & (heavy > 0)
        if not kept.all():
            values, heavy = values[kept], None if heavy is None else heavy[kept]
        for start in range(0, len(values), EXACT_VALUES):
            part = slice(start, start + EXACT_VALUES)
            self._wait((values[part], None if heavy is None else heavy[part]))

    def _wait(self, part: Part) -> None:
        """Keep values until too many of them are distinct."""
        self._pending.append(part)
        self._waiting += len(part[0])
        if self._waiting <= 2 * EXACT_VALUES:
            return
        together = _summary(self._pending)
        if self.exact and len(together) <= EXACT_VALUES:
            self._pending, self._waiting = [(together.values, together.weights)], len(together)
            return
        self._pending, self._waiting = [], 0
        self._carry(0, together.compressed(KEPT_VALUES))

    def _carry(self, level: int, summary: Summary) -> None:
        while (same := self._levels.pop(level, None)) is not None:
            summary = merged(same, summary).compressed(KEPT_VALUES)
            level += 1
        self._levels[level] = summary

    def merge(self, other: "Quantiles") -> None:
        for level in sorted(other._levels):
            self._carry(level, other._levels[level])
        for part in other._pending:
            self._wait(part)

    def summary(self) -> Summary:
        """One summary of everything."""
        found = _summary(self._pending)
        for level in sorted(self._levels):
            found = merged(found, self._levels[level])
        return found

    @property
    def exact(self) -> bool:
        """Return whether all values are still there."""
        return not self._levels

    def result(self, number: int) -> Array | None:
        """The number + 1 quantiles that divide the values into parts of equal weight; None of no values."""
        summary = self.summary()
        return summary.quantiles(number) if len(summary) else None

    def l_moments(self) -> tuple[float, float, float, float, float]:
        """The number of values, and their first four L-moments: mean, scale, and third and fourth, unscaled."""
        summary = self.summary()
        if not len(summary):
            return 0.0, 0.0, 0.0, 0.0, 0.0
        return _l_moments(summary.values.astype(np.float64), np.diff(_ends(summary), prepend=0.0))

    def state(self) -> State:
        light = [values for values, weights in self._pending if weights is None]
        heavy = [[values, weights] for values, weights in self._pending if weights is not None]
        levels = [[level, vars(self._levels[level])] for level in sorted(self._levels)]
        return {"light": light, "heavy": heavy, "levels": levels}

    def load(self, state: State) -> None:
        self._pending = [(values, None) for values in state["light"]]
        self._pending += [(values, weights) for values, weights in state["heavy"]]
        self._waiting = sum(len(values) for values, _ in self._pending)
        self._levels = {level: Summary(**part) for level, part in state["levels"]}


def _summary(parts: list[Part]) -> Summary:
    """The exact summary of all these values."""
    light = [values for values, weights in parts if weights is None]
    found = [(values, weights) for values, weights in parts if weights is not None]
    if light:
        counted = summary_of(np.concatenate(light), None)
        if not found:
            return counted
        found.append((counted.values, counted.weights))
    if not found:
        return exact(np.zeros(0), np.zeros(0))
    values, weights = (np.concatenate(column) for column in zip(*found, strict=True))
    return summary_of(values, weights)


def _ends(summary: Summary) -> Doubles:
    """Return the end of each value's weight: the middle between bounds that differ, and the total for the last."""
    ends = (summary.least + summary.weights + summary.most) / 2
    ends[-1] = summary.total
    return np.maximum.accumulate(ends)


def _l_moments(values: Doubles, weights: Doubles) -> tuple[float, float, float, float, float]:
    """The L-moments of sorted values that occur `weights` times, by probability weighted moments.

    Values are taken from their middle, which changes the first moment only, so that large numbers do not cancel.
    """
    count = math.fsum(weights)
    middle = float(values[len(values) // 2])
    rest = values - middle
    before = np.cumsum(weights) - weights
    moments = []
    for order in range(4):
        # The sum of binomial(rank, order) over the ranks of equal values, as a difference of binomials of order + 1.
        sums = _binomial(before + weights, order + 1) - _binomial(before, order + 1)
        all_samples = (order + 1) * float(_binomial(np.array([count]), order + 1)[0])
        moments.append(float(np.sum(rest * sums)) / all_samples if count > order else 0.0)
    b0, b1, b2, b3 = moments
    second = 2 * b1 - b0 if count > 1 else 0.0
    third = 6 * b2 - 6 * b1 + b0 if count > 2 else 0.0
    fourth = 20 * b3 - 30 * b2 + 12 * b1 - b0 if count > 3 else 0.0
    return count, b0 + middle, second, third, fourth


def _binomial(number: Doubles, order: int) -> Doubles:
    """The binomial coefficients of `number` over `order`."""
    result = np.ones(len(number))
    for place in range(order):
        result = result * (number - place) / (place + 1)
    return result
