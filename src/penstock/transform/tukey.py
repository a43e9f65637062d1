"""Tukey's HH distributions: numbers with long tails on both sides, by their L-moments (Headrick and Pant, 2012).

The searches and their limits are those of tensorflow_transform/gaussianization.py, so that the parameters are the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.transform.columns import Array

_STEPS = 20
_SEARCH_STEPS = 10
_CLOSE = 1e-6
_LEAST_KURTOSIS = 0.1226017
"""The L-kurtosis of a normal distribution, below which there are no long tails."""


def tukey_parameters(count: float, l1: float, l2: float, l3: float, l4: float) -> tuple[float, float, float, float]:
    """Location, scale, and the parameters of the left and the right tail, of the first four L-moments."""
    known = l2 > 0 and count > 3
    left, right = _tails(l3 / l2 if known else 0.0, l4 / l2 if known else 0.0)
    mean, spread = _mean_and_scale(left, right)
    scale = l2 / spread if l2 > 0 else 1.0
    return l1 - scale * mean, scale, left, right


def _mean_and_scale(left: float, right: float) -> tuple[float, float]:
    share = 1.0 / np.sqrt(2.0 * np.pi)
    mean = share * (1.0 / (left - 1.0) + 1.0 / (1.0 - right))
    roots = np.sqrt(2.0 - left), np.sqrt(2.0 - right)
    above = roots[0] + roots[1] - left * roots[0] - right * roots[1]
    below = (left - 1.0) * (right - 1.0) * np.sqrt((left - 2.0) * (right - 2.0))
    return mean, share * above / below


def _skewness_and_kurtosis(left: float, right: float) -> Array:
    def skewness_part(one: float, other: float) -> float:
        return float(12 * np.sqrt(2.0 - one) * (other - 2.0) * (other - 1.0) * np.arctan(1.0 / np.sqrt(2.0 - one)))

    def root_part(h: float) -> float:
        return float(h * np.sqrt(2.0 - h) - np.sqrt(2.0 - h))

    roots = root_part(left) + root_part(right)
    skewness = (
        skewness_part(left, right) - np.pi * (left - right) * (left - 2.0) * (right - 2.0) - skewness_part(right, left)
    ) / (2 * np.pi * np.sqrt((left - 2.0) * (right - 2.0)) * roots)
    product = np.sqrt((left - 4.0) * (left - 2.0) * (left - 1.0) * (right - 2.0))
    outer = np.sqrt((left - 4.0) * (left - 1.0))
    first = right * product - 2.0 * outer
    second = left * (left - 3.0) * outer + product
    third = (
        30.0 * (left - 1.0) * np.sqrt((left - 4.0) * (left - 2.0) * (right - 2.0) / (left - 1.0)) * (right - 1.0)
    ) * np.arctan(np.sqrt(1.0 + 2.0 / (left - 4.0)))
    fourth = 30.0 * (left - 2) * outer * (left - 1.0) * np.arctan(np.sqrt(1.0 + 2.0 / (right - 4.0)))
    below = np.pi * np.sqrt((4.0 - left) * (2.0 - left) * (1.0 - left)) * roots
    return np.array([skewness, (6.0 * np.pi * (first - second) + third + fourth) / below])


def _search(error: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    for _ in range(_SEARCH_STEPS + 1):
        middle = (low + high) / 2.0
        found = error(middle)
        if found < 0.0:
            low = middle
        else:
            high = middle
        if abs(found) < _CLOSE or high - low < _CLOSE:
            break
    return low, high


def _tails(skewness: float, kurtosis: float) -> tuple[float, float]:
    """The parameters of both tails, by searching for one and then the other until both moments are met."""
    if kurtosis < _LEAST_KURTOSIS:
        return 0.0, 0.0
    wanted = np.array([abs(skewness), min(kurtosis, 1.0 - 1e-5)])

    def error(h: float, delta: float) -> Any:
        return _skewness_and_kurtosis(h - delta, h) - wanted

    h = float(3.0 - 1.0 / np.cos(np.pi / 15.0 * (wanted[1] - 6.0)))
    least, most = [h, 0.0], [1.0 - 1e-7, h]
    delta, before = 0.0, (0.0, 0.0)
    for _ in range(_STEPS):
        met = float(error(h, most[1])[0]) > 0.0
        if met:
            delta = most[1] = _search(lambda x: float(error(h, x)[0]), least[1], most[1])[1]  # noqa: B023  # called at once
        else:
            delta = least[1] = most[1]
        low, high = _search(lambda x: float(error(x, delta)[1]), least[0], most[0])  # noqa: B023
        if met:
            h = most[0] = high
            delta = least[1] = _search(lambda x: float(error(h, x)[0]), least[1], most[1])[0]  # noqa: B023
            h = least[0] = _search(lambda x: float(error(x, delta)[1]), least[0], most[0])[0]  # noqa: B023
        else:
            h = least[0] = most[1] = low
        moved = abs(h - before[0]), abs(delta - before[1])
        before = h, delta
        if (np.abs(error(h, delta)) < _CLOSE).all() or max(moved) < _CLOSE:
            break
    return (h - delta, h) if skewness >= 0 else (h, h - delta)


def _lambert_w(x: Array) -> Array:
    """Lambert's W for positive numbers, by eight steps of Newton's method."""
    slope = (np.e - 1.0) / (np.exp(2) - 1.0)
    with np.errstate(all="ignore"):
        logarithm = np.log(x)
        large = logarithm + (1.0 / logarithm - 1.0) * np.log(logarithm)
    w = np.where(x < 1 / np.e, x, np.where(x < np.e, slope * x + (1 - slope) / np.e, large)).astype(x.dtype)
    for _ in range(8):
        exponential = np.exp(w)
        w = w - (w * exponential - x) / (exponential + w * exponential)
    return w


def inverse_tukey_hh(values: Array, left: Array, right: Array) -> Array:
    """Standard numbers of an HH distribution as those of a normal one."""

    def one_side(x: Array, h: Array) -> Array:
        product = h * np.square(x)
        tail = product >= 1e-7
        safe = np.where(tail, product, np.asarray(1, product.dtype))
        divisor = np.where(h > 0, h, np.asarray(1, product.dtype))
        return np.where(tail, np.sqrt(_lambert_w(safe) / divisor), x).astype(x.dtype)

    return np.where(values < 0, -one_side(-values, left), one_side(values, right))
