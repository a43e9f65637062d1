"""Mappers from numbers to buckets. Names, arguments and results are those of tft."""

from typing import Any

import numpy as np

from penstock.transform.analyzers import quantiles
from penstock.transform.building import checked_boundaries, checked_buckets, noted, present, results
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
        elementwise: whether each position of an element has separate buckets.
        name: shown in summaries.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.bucketize(columns["x"], 2)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 0 1 1]
    """
    buckets = checked_buckets("bucketize", num_buckets, epsilon)
    return apply_buckets(x, quantiles(x, buckets, epsilon or 0.01, weights, not elementwise, name))


def bucketize_per_key(
    x: Any, key: Any, num_buckets: int, epsilon: float | None = None, weights: Any = None, name: str | None = None
) -> Column:
    """The same among the numbers whose rows have an equal key; -1 for an unknown key.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 3.0, 10.0, 30.0], "k": ["a", "a", "b", "b"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.bucketize_per_key(columns["x"], columns["k"], 2)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 1 0 1]
    """
    buckets = checked_buckets("bucketize_per_key", num_buckets, epsilon)
    learned = results("quantiles_per_key", 2, *present(x, key, weights), num_buckets=buckets)
    return noted("apply_buckets_per_key", x, key, *learned)


def apply_buckets(x: Any, bucket_boundaries: Any, name: str | None = None) -> Column:
    """The number of boundaries that are not larger than each number, as int64: by [[3, 5]], 3 is in bucket 1.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.apply_buckets(columns["x"], [1.5, 4.0])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 1 1 2]
    """
    return noted("apply_buckets", x, _borders("apply_buckets", bucket_boundaries))


def apply_buckets_with_interpolation(x: Any, bucket_boundaries: Any, name: str | None = None) -> Column:
    """The place of each number between the boundaries, from 0 to 1, linear in each bucket.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.apply_buckets_with_interpolation(columns["x"], [2.0, 4.0])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.  0.  0.5 1. ]
    """
    name = "apply_buckets_with_interpolation"
    return noted(name, x, _borders(name, bucket_boundaries))


def _borders(call: str, boundaries: Any) -> Any:
    found = checked_boundaries(call, "bucket_boundaries", boundaries)
    return found if isinstance(found, Column) else np.atleast_2d(found)
