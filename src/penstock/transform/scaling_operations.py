"""Operations that scale numbers by learned values."""

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.transform.columns import Array, in_rows_of, places_among
from penstock.transform.operations import elementwise, spread
from penstock.transform.tukey import inverse_tukey_hh


def z_score(column: Any, mean: Any, variance: Any) -> Any:
    """(column - mean) / deviation; the difference alone where there is no deviation."""

    def scaled(values: Array, mean: Array, variance: Array) -> Any:
        rest = values.astype(mean.dtype, copy=False) - mean
        deviation = np.sqrt(variance)
        if np.ndim(deviation) == 0:
            return rest / deviation if deviation != 0 else rest
        return np.divide(rest, deviation, out=rest.copy(), where=deviation != 0)

    return elementwise("scale_to_z_score", scaled, column, mean, variance)


def min_max(column: Any, least: Any, most: Any, *, output_min: float, output_max: float) -> Any:
    """The place between the smallest and the largest number; the sigmoid where these are equal."""

    def scaled(values: Array, least: Array, most: Array) -> Any:
        values = values.astype(np.float32, copy=False)
        rest = values - least
        width = np.broadcast_to(most - least, rest.shape) if np.ndim(most) else most - least
        if np.all(width > 0):
            share = rest / width
        else:
            sigmoid = (1 / (1 + np.exp(-values))).astype(np.float32)
            share = np.divide(rest, width, out=sigmoid, where=width > 0)
        return share * np.float32(output_max - output_min) + np.float32(output_min)

    return elementwise("scale_by_min_max", scaled, column, least, most)


def gaussian(column: Any, location: Any, scale: Any, left: Any, right: Any, variance: Any) -> Any:
    """Numbers whose long tails are undone, as far as Tukey's HH distribution describes them."""

    def scaled(values: Array, *learned: Array) -> Array:
        location, scale, left, right, variance = learned
        rest = values.astype(location.dtype, copy=False) - location
        deviation = np.broadcast_to(np.where((left > 0) | (right > 0), scale, np.sqrt(variance)), rest.shape)
        standard = np.divide(rest, deviation, out=rest.copy(), where=deviation != 0)
        return inverse_tukey_hh(standard, left, right)

    return elementwise("scale_to_gaussian", scaled, column, location, scale, left, right, variance)


def by_key(column: Any, key: Any, keys: pa.LargeBinaryArray, results: Array) -> Any:
    """Return the learned value of each row's key, for each of its numbers; 0 for an unseen key."""
    names = key if results.ndim > 1 else spread("per key", column, key)[1]
    found = np.concatenate([results, np.zeros((1, *results.shape[1:]), results.dtype)])[places_among(keys, names)]
    return in_rows_of(column, found)  # of each position of an element, or of all of them


def density(column: Any, counts: Any, boundaries: Any, *, categorical: bool) -> Any:
    """The share of rows in each number's bin, by the width of the bin unless values are categories."""
    shares = (counts / max(counts.sum(), 1)).astype(np.float32)
    if categorical:
        if isinstance(boundaries, pa.Array):
            places = places_among(boundaries, column)
        else:
            order = np.argsort(boundaries)
            near = np.minimum(np.searchsorted(boundaries, column, sorter=order), len(boundaries) - 1)
            places = np.where(boundaries[order[near]] == column, order[near], -1)
    else:
        borders = boundaries.reshape(-1)
        shares = shares / ((borders[-1] - borders[0]) / np.float32(len(shares)))
        values = column.astype(np.float32)
        places = np.where(np.isnan(values), 0, np.searchsorted(borders[1:-1], values, side="left"))
    return np.where(places < 0, np.float32(0), shares[np.maximum(places, 0)])
