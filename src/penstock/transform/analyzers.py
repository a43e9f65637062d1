"""Analyzers learn from all rows. Their names, arguments and results are those of TensorFlow Transform.

Each returns the learned value, as a number or an array without rows, to compute with columns. With
`reduce_instance_dims=False` each position of an element has a separate result. In all of them a `name` is shown in
summaries.
"""

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.transform.building import checked_boundaries, checked_buckets, present, results
from penstock.transform.symbols import Column

_MOST_BINS = 1 << 24


def min(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:  # tft's name
    """The smallest number.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] - ps.transform.min(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0. 1. 2. 5.]
    """
    return _extrema(x, reduce_instance_dims, name)[0]


def max(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """The largest number.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] / ps.transform.max(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.17 0.33 0.5  1.  ]
    """
    return _extrema(x, reduce_instance_dims, name)[1]


def _extrema(x: Any, reduce_instance_dims: bool, name: str | None) -> tuple[Column, ...]:
    return results("min_and_max", 2, x, elementwise=not reduce_instance_dims, name=name)


def sum(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """The sum: int64 or uint64 of integers, exactly; float32 of float16; otherwise the dtype of the column.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] / ps.transform.sum(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.08 0.17 0.25 0.5 ]
    """
    return results("sum", 1, x, elementwise=not reduce_instance_dims, name=name)[0]


def size(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """Return how many values there are, as int64.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] * ps.transform.size(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [ 4.  8. 12. 24.]
    """
    return results("size", 1, x, elementwise=not reduce_instance_dims, name=name)[0]


def mean(x: Any, reduce_instance_dims: bool = True, name: str | None = None, output_dtype: Any = None) -> Column:
    """The mean of the finite numbers, in the dtype of floats, and in float32 of integers.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] - ps.transform.mean(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-2. -1.  0.  3.]
    """
    return moments(x, reduce_instance_dims, output_dtype, name)[0]


def var(x: Any, reduce_instance_dims: bool = True, name: str | None = None, output_dtype: Any = None) -> Column:
    """The variance of the finite numbers, by their number, not by one less.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] / ps.transform.var(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.29 0.57 0.86 1.71]
    """
    return moments(x, reduce_instance_dims, output_dtype, name)[1]


def moments(x: Any, reduce_instance_dims: bool, output_dtype: Any, name: str | None = None) -> tuple[Column, ...]:
    """Mean and variance."""
    dtype = None if output_dtype is None else np.dtype(output_dtype).str
    return results("mean_and_var", 2, x, elementwise=not reduce_instance_dims, dtype=dtype, name=name)


def quantiles(
    x: Any,
    num_buckets: int,
    epsilon: float,
    weights: Any = None,
    reduce_instance_dims: bool = True,
    name: str | None = None,
) -> Column:
    """The num_buckets - 1 boundaries between buckets of equal weight: float32 of shape (1, num_buckets - 1).

    Args:
        x: numbers; NaN is ignored.
        num_buckets: the number of buckets.
        epsilon: the largest error of a rank that you can bear. The error here is 0 for up to 524,288 distinct values,
            and at most 0.001 of more, whatever you ask for.
        weights: of the numbers.
        reduce_instance_dims: whether all positions of an element share their boundaries; otherwise each has a row.
        name: shown in summaries.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.apply_buckets(columns["x"], ps.transform.quantiles(columns["x"], 2, 0.01))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 0 1 1]
    """
    buckets = checked_buckets("quantiles", num_buckets, epsilon)
    inputs = present(x, weights)
    return results("quantiles", 1, *inputs, num_buckets=buckets, elementwise=not reduce_instance_dims, name=name)[0]


def histogram(
    x: Any, boundaries: Any = None, categorical: bool | None = False, name: str | None = None
) -> tuple[Column, Column]:
    """Return how many values there are in each bin, and the boundaries of the bins, or the categories.

    Args:
        x: numbers, or strings or integers if categorical.
        boundaries: a list of them; or how many, at equal distances from the smallest to the largest number; None for 11
            from 0 to 1.
        categorical: count equal values instead.
        name: shown in summaries.

    Returns:
        The counts, one for each bin, and the boundaries as one row. Numbers beyond the boundaries count in the
        outermost bins. With `categorical`: the counts, and the categories in order.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.5, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     counts, _ = ps.transform.histogram(columns["x"], boundaries=[0, 2, 4, 8])
        ...     return {"y": columns["x"][:, None] * counts}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"][0])
        [1. 2. 1.]
    """
    if categorical:
        keys, counts = results("count_per_key", 2, x, name=name)
        return counts, keys
    if boundaries is None:
        borders: Any = np.arange(11, dtype=np.float32) / np.float32(10)
    elif isinstance(boundaries, (int, np.integer)):
        boundaries = check_integer("histogram", "boundaries", boundaries, minimum=1)
        if boundaries > _MOST_BINS:
            raise InvalidArgumentError(
                f"histogram(boundaries=...) takes at most {_MOST_BINS} of them, got {boundaries}"
            )
        least, most = _extrema(x, True, None)
        steps = np.arange(boundaries, dtype=np.float32) / np.float32(boundaries - 1 or 1)
        borders = least.astype(np.float32) + (most.astype(np.float32) - least.astype(np.float32)) * steps
    else:
        borders = checked_boundaries("histogram", "boundaries", boundaries)
        borders = borders if isinstance(borders, Column) else borders.astype(np.float32).reshape(-1)
    rows = (borders - np.float32(0.0001))[None] if not isinstance(borders, Column) else borders - np.float32(0.0001)
    counts = results("histogram", 1, x, rows, name=name)[0]
    return counts, counts._recorder.column(rows)


def count_per_key(
    key: Any, key_vocabulary_filename: str | None = None, name: str | None = None
) -> tuple[Column, Column]:
    """The distinct keys in order, and how often each occurs.

    Args:
        key: strings or integers.
        key_vocabulary_filename: not needed here: counts of any number of keys are learned.
        name: shown in summaries.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"word": ["a", "b", "a"], "times": [1, 1, 10]}
        >>> def preprocess(columns):
        ...     _, counts = ps.transform.count_per_key(columns["word"])
        ...     return {"y": columns["times"][:, None] * counts}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].tolist())
        [[2, 1], [2, 1], [20, 10]]
    """
    del key_vocabulary_filename
    keys, counts = results("count_per_key", 2, key, name=name)
    return keys, counts


def covariance(x: Any, dtype: Any, name: str | None = None) -> Column:
    """The covariances of the positions of vectors, by the number of rows, not by one less.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> rows = {"v": [[1.0, 4.0], [2.0, 2.0], [3.0, 0.0]]}
        >>> def preprocess(columns):
        ...     return {"y": columns["v"] @ ps.transform.covariance(columns["v"], np.float32)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [[-4.67  9.33]
         [-1.33  2.67]
         [ 2.   -4.  ]]
    """
    return results("covariance", 2, x, output_dim=None, dtype=np.dtype(dtype).str, name=name)[0]


def pca(x: Any, output_dim: int, dtype: Any, name: str | None = None) -> Column:
    """The `output_dim` directions of the largest variances, as the columns of a matrix: `x @` it projects rows.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> rows = {"v": [[1.0, 4.0], [2.0, 2.0], [3.0, 0.0]]}
        >>> def preprocess(columns):
        ...     return {"y": columns["v"] @ ps.transform.pca(columns["v"], 1, np.float32)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [[ 3.13]
         [ 0.89]
         [-1.34]]
    """
    dim = check_integer("pca", "output_dim", output_dim, minimum=1)
    return results("covariance", 2, x, output_dim=dim, dtype=np.dtype(dtype).str, name=name)[1]


def tukey_location(
    x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None
) -> Column:
    """The location of the Tukey HH distribution with the L-moments of the numbers.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] - ps.transform.tukey_location(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.41 -0.41  0.59  3.59]
    """
    return tukey(x, reduce_instance_dims, output_dtype, name)[0]


def tukey_scale(x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None) -> Column:
    """The scale of that distribution.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] / ps.transform.tukey_scale(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.72 1.44 2.16 4.33]
    """
    return tukey(x, reduce_instance_dims, output_dtype, name)[1]


def tukey_h_params(
    x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None
) -> tuple[Column, Column]:
    """Return how long its left and its right tail are; 0 for the tails of a normal distribution.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 20.0]}
        >>> def preprocess(columns):
        ...     return {"y": columns["x"] + ps.transform.tukey_h_params(columns["x"])[1]}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [ 1.91  2.91  3.91 20.91]
    """
    _, _, left, right = tukey(x, reduce_instance_dims, output_dtype, name)
    return left, right


def tukey(x: Any, reduce_instance_dims: bool, output_dtype: Any, name: str | None) -> tuple[Column, ...]:
    """Location, scale, left and right."""
    dtype = None if output_dtype is None else np.dtype(output_dtype).str
    return results("tukey", 4, x, elementwise=not reduce_instance_dims, dtype=dtype, name=name)
