"""Analyzers: what is learned from all rows. Their names, arguments and results are those of TensorFlow Transform.

Each returns what was learned, as a number or an array without rows, to compute with columns. With
`reduce_instance_dims=False` each position of an element has a result of its own. In all of them a `name` is shown in
summaries.
"""

from typing import Any

import numpy as np

from penstock.options import check_integer
from penstock.transform.building import checked_buckets, present, results
from penstock.transform.symbols import Column


def min(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:  # tft's name
    """The smallest number."""
    return _extrema(x, reduce_instance_dims, name)[0]


def max(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """The largest number."""
    return _extrema(x, reduce_instance_dims, name)[1]


def _extrema(x: Any, reduce_instance_dims: bool, name: str | None) -> tuple[Column, ...]:
    return results("min_and_max", 2, x, elementwise=not reduce_instance_dims, **named(name))


def sum(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """The sum: int64 or uint64 of integers, exactly; float32 of float16; otherwise the dtype of the column."""
    return results("sum", 1, x, elementwise=not reduce_instance_dims, **named(name))[0]


def size(x: Any, reduce_instance_dims: bool = True, name: str | None = None) -> Column:
    """How many values there are, as int64."""
    return results("size", 1, x, elementwise=not reduce_instance_dims, **named(name))[0]


def mean(x: Any, reduce_instance_dims: bool = True, name: str | None = None, output_dtype: Any = None) -> Column:
    """The mean of the finite numbers, in the dtype of floats, and in float32 of integers."""
    return moments(x, reduce_instance_dims, output_dtype, name)[0]


def var(x: Any, reduce_instance_dims: bool = True, name: str | None = None, output_dtype: Any = None) -> Column:
    """The variance of the finite numbers, by their number, not by one less."""
    return moments(x, reduce_instance_dims, output_dtype, name)[1]


def moments(x: Any, reduce_instance_dims: bool, output_dtype: Any, name: str | None = None) -> tuple[Column, ...]:
    """Mean and variance."""
    dtype = None if output_dtype is None else np.dtype(output_dtype).str
    return results("mean_and_var", 2, x, elementwise=not reduce_instance_dims, dtype=dtype, **named(name))


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
        x: numbers; NaN is left out.
        num_buckets: the number of buckets.
        epsilon: the largest error of a rank that you can bear. The error here is 0 for up to 524,288 distinct values,
            and at most 0.001 of more, whatever you ask for.
        weights: of the numbers.
        reduce_instance_dims: whether all positions of an element share their boundaries; otherwise each has a row.
        name: shown in summaries.
    """
    buckets = checked_buckets("quantiles", num_buckets, epsilon)
    inputs = present(x, weights)
    return results("quantiles", 1, *inputs, num_buckets=buckets, elementwise=not reduce_instance_dims, **named(name))[0]


def histogram(
    x: Any, boundaries: Any = None, categorical: bool | None = False, name: str | None = None
) -> tuple[Column, Column]:
    """How many values there are in each bin, and the boundaries of the bins, or the categories.

    Args:
        x: numbers, or strings or integers if categorical.
        boundaries: a list of them; or how many, at equal distances from the smallest to the largest number; None for 11
            from 0 to 1.
        categorical: count equal values instead.
        name: shown in summaries.
    """
    if categorical:
        keys, counts = results("count_per_key", 2, x, **named(name))
        return counts, keys
    if boundaries is None:
        borders: Any = np.arange(11, dtype=np.float32) / np.float32(10)
    elif isinstance(boundaries, int):
        least, most = _extrema(x, True, None)
        steps = np.arange(boundaries, dtype=np.float32) / np.float32(_at_least_one(boundaries - 1))
        borders = least.astype(np.float32) + (most.astype(np.float32) - least.astype(np.float32)) * steps
    else:
        borders = np.asarray(boundaries, np.float32) if not isinstance(boundaries, Column) else boundaries
    rows = (borders - np.float32(0.0001))[None] if not isinstance(borders, Column) else borders - np.float32(0.0001)
    counts = results("histogram", 1, x, rows, **named(name))[0]
    shown = rows if isinstance(rows, Column) else counts._recorder.add("constant", [], _plain(rows))
    return counts, shown


def _at_least_one(number: int) -> int:
    return number if number > 0 else 1


def _plain(array: Any) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "value": [[float.hex(value) for value in row] for row in array.tolist()]}


def count_per_key(
    key: Any, key_vocabulary_filename: str | None = None, name: str | None = None
) -> tuple[Column, Column]:
    """The distinct keys in order, and how often each occurs.

    Args:
        key: strings or integers.
        key_vocabulary_filename: not needed here: counts of any number of keys are learned.
        name: shown in summaries.
    """
    del key_vocabulary_filename
    keys, counts = results("count_per_key", 2, key, **named(name))
    return keys, counts


def covariance(x: Any, dtype: Any, name: str | None = None) -> Column:
    """The covariances of the positions of vectors, by the number of rows, not by one less."""
    return results("covariance", 2, x, output_dim=None, dtype=np.dtype(dtype).str, **named(name))[0]


def pca(x: Any, output_dim: int, dtype: Any, name: str | None = None) -> Column:
    """The `output_dim` directions of the largest variances, as the columns of a matrix: `x @` it projects rows."""
    dim = check_integer("pca", "output_dim", output_dim, minimum=1)
    return results("covariance", 2, x, output_dim=dim, dtype=np.dtype(dtype).str, **named(name))[1]


def tukey_location(
    x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None
) -> Column:
    """The location of the Tukey HH distribution with the L-moments of the numbers."""
    return tukey(x, reduce_instance_dims, output_dtype, name)[0]


def tukey_scale(x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None) -> Column:
    """The scale of that distribution."""
    return tukey(x, reduce_instance_dims, output_dtype, name)[1]


def tukey_h_params(
    x: Any, reduce_instance_dims: bool = True, output_dtype: Any = None, name: str | None = None
) -> tuple[Column, Column]:
    """How long its left and its right tail are; 0 for the tails of a normal distribution."""
    _, _, left, right = tukey(x, reduce_instance_dims, output_dtype, name)
    return left, right


def tukey(x: Any, reduce_instance_dims: bool, output_dtype: Any, name: str | None) -> tuple[Column, ...]:
    """Location, scale, left and right."""
    dtype = None if output_dtype is None else np.dtype(output_dtype).str
    return results("tukey", 4, x, elementwise=not reduce_instance_dims, dtype=dtype, **named(name))


def named(name: str | None) -> dict[str, str]:
    """The argument for a name that was given."""
    return {} if name is None else {"name": name}
