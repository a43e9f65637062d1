"""Mutual information between a token and the labels of its rows, as tft computes it."""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_LEAST_SHARE = 1e-6


def mutual_information(together: Doubles, min_diff_from_avg: float | None, adjusted: bool) -> Doubles:
    """The mutual information of each token and the labels, in bits, times the weight of all rows.

    Args:
        together: the weight of each token, a row, with each label, a column; in the first row that of all rows with the
            label, in the first column that of all rows with the token.
        min_diff_from_avg: labels count as unrelated whose weight is closer to what chance would give; None for 2 of a
            few rows to 25 of a million.
        adjusted: subtract what chance would give.
    """
    total, labels, tokens, together = together[0, 0], together[0, 1:], together[1:, 0], together[1:, 1:]
    if min_diff_from_avg is None:
        min_diff_from_avg = int(min(25, max(2, (total - 10_000) / 990_000 * 23 + 2)))
    shares = np.clip(together / tokens[:, None], _LEAST_SHARE, 1 - _LEAST_SHARE)
    weights = shares * tokens[:, None]
    by_chance = tokens[:, None] * labels / total
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = weights * np.log2(weights / by_chance)
    related = (labels > 0) & (np.abs(by_chance - weights) >= min_diff_from_avg)
    if adjusted:
        expected = np.zeros(parts.shape)
        for row, column in zip(*np.nonzero(related), strict=True):
            expected[row, column] = _expected(float(total), float(tokens[row]), float(labels[column]))
        parts = parts - expected
    informative = np.where(related, parts, 0.0).sum(axis=1)
    return np.where(np.round(tokens) == np.round(total), 0.0, informative)


@lru_cache(1 << 16)
def _expected(total: float, token: float, label: float) -> float:
    """The part of the mutual information that is expected of a token and a label that have nothing to do."""
    shift = -math.log2(token) - math.log2(label) + math.log2(total)
    result = probability = 0.0
    for weight, share in _hypergeometric(total, token, label):
        if weight:
            result += weight * (shift + math.log2(weight)) * share
        probability += share
    return result / probability


def _hypergeometric(total: float, token: float, label: float) -> Iterator[tuple[int, float]]:
    """Return the probability that a token and a label meet this often by chance."""
    first, last = round(max(0.0, token + label - total)), round(min(token, label))
    above = sum(math.lgamma(part + 1) for part in (token, label, total - token, total - label))
    left = (total, first, token - first, label - first, total - token - label + first)
    below = sum(math.lgamma(max(part, 0) + 1) for part in left)
    for weight in range(first, last + 1):
        yield weight, math.exp(above - below)
        if weight != last:
            below += math.log(weight + 1) - math.log(token - weight) - math.log(label - weight)
            below += math.log(total - token - label + weight + 1)
