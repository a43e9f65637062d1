"""Mappers from numbers to buckets. Names, arguments and results are those of tft."""

from typing import Any

import numpy as np

from penstock.transform.analyzers import quantiles
from penstock.transform.building import checked_buckets, noted, present, results
from penstock.transform.symbols import Column


def bucketize(
    x: Any,
    num_buckets: int,
    epsilon: float | None = None,
    weights: Any = None,
    elementwise: bool = False,
    name: str | None = None,
) -> Column:
    """The number of each number's bucket, among buckets of equal weight, as int64.

    Args:
        x: numbers.
        num_buckets: the number of buckets.
        epsilon: see `quantiles`.
        weights: of the numbers.
        elementwise: whether each position of an element has buckets of its own.
        name: shown in summaries.
    """
    buckets = checked_buckets("bucketize", num_buckets, epsilon)
    return apply_buckets(x, quantiles(x, buckets, epsilon or 0.01, weights, not elementwise, name))


def bucketize_per_key(
    x: Any, key: Any, num_buckets: int, epsilon: float | None = None, weights: Any = None, name: str | None = None
) -> Column:
    """The same among the numbers whose rows have an equal key; -1 for an unknown key."""
    buckets = checked_buckets("bucketize_per_key", num_buckets, epsilon)
    learned = results("quantiles_per_key", 2, *present(x, key, weights), num_buckets=buckets)
    return noted("apply_buckets_per_key", x, key, *learned)


def apply_buckets(x: Any, bucket_boundaries: Any, name: str | None = None) -> Column:
    """The number of boundaries that are not larger than each number, as int64: by [[3, 5]], 3 is in bucket 1."""
    return noted("apply_buckets", x, _borders(bucket_boundaries))


def apply_buckets_with_interpolation(x: Any, bucket_boundaries: Any, name: str | None = None) -> Column:
    """The place of each number between the boundaries, from 0 to 1, linear in each bucket."""
    return noted("apply_buckets_with_interpolation", x, _borders(bucket_boundaries))


def _borders(boundaries: Any) -> Any:
    return boundaries if isinstance(boundaries, Column) else np.atleast_2d(np.asarray(boundaries))
