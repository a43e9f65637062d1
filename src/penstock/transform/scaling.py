"""Mappers that scale numbers by values learned from all of them. Names, arguments and results are those of tft."""

from typing import Any

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError
from penstock.transform.analyzers import histogram, moments, tukey
from penstock.transform.building import noted, results
from penstock.transform.symbols import Column


def scale_to_0_1(x: Any, elementwise: bool = False, name: str | None = None) -> Column:
    """Numbers from 0 for the smallest to 1 for the largest, as float32; their sigmoid if all are equal.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_to_0_1(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.  0.2 0.4 1. ]
    """
    return scale_by_min_max(x, 0.0, 1.0, elementwise, name)


def scale_by_min_max(
    x: Any, output_min: float = 0.0, output_max: float = 1.0, elementwise: bool = False, name: str | None = None
) -> Column:
    """Numbers from output_min to output_max, as float32.

    Raises:
        InvalidArgumentError: output_min is not below output_max.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_by_min_max(columns["x"], -1.0, 1.0)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.  -0.6 -0.2  1. ]
    """
    bounds = _bounds("scale_by_min_max", output_min, output_max)
    least, most = results("min_and_max", 2, x, elementwise=elementwise, name=name)
    return noted("min_max", x, least.astype("f4"), most.astype("f4"), **bounds)


def scale_to_0_1_per_key(
    x: Any, key: Any, elementwise: bool = False, key_vocabulary_filename: str | None = None, name: str | None = None
) -> Column:
    """The same among the numbers whose rows have an equal key. Numbers of an unknown key get their sigmoid.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 3.0, 10.0, 30.0], "k": ["a", "a", "b", "b"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_to_0_1_per_key(columns["x"], columns["k"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0. 1. 0. 1.]
    """
    return scale_by_min_max_per_key(x, key, 0.0, 1.0, elementwise, key_vocabulary_filename, name)


def scale_by_min_max_per_key(
    x: Any,
    key: Any,
    output_min: float = 0.0,
    output_max: float = 1.0,
    elementwise: bool = False,
    key_vocabulary_filename: str | None = None,
    name: str | None = None,
) -> Column:
    """Numbers from output_min to output_max, among those whose rows have an equal key, as float32.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 3.0, 10.0, 30.0], "k": ["a", "a", "b", "b"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_by_min_max_per_key(columns["x"], columns["k"], -1.0, 1.0)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.  1. -1.  1.]
    """
    del key_vocabulary_filename  # any number of keys are learned
    bounds = _bounds("scale_by_min_max_per_key", output_min, output_max)
    keys, _, _, least, most = results("moments_per_key", 5, x, key, elementwise=elementwise, dtype="<f4", name=name)
    lower, upper = (noted("by_key", x, key, keys, learned) for learned in (least, most))
    return noted("min_max", x, lower, upper, **bounds)


def scale_to_z_score(x: Any, elementwise: bool = False, name: str | None = None, output_dtype: Any = None) -> Column:
    """(x - mean) / deviation, of the finite numbers; x - mean if all are equal.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_to_z_score(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.07 -0.53  0.    1.6 ]
    """
    mean, variance = moments(x, not elementwise, output_dtype, name)
    return noted("z_score", x, mean, variance)


def scale_to_z_score_per_key(
    x: Any,
    key: Any,
    elementwise: bool = False,
    key_vocabulary_filename: str | None = None,
    name: str | None = None,
    output_dtype: Any = None,
) -> Column:
    """The same by mean and deviation of the numbers whose rows have an equal key; x itself for an unknown key.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 3.0, 10.0, 30.0], "k": ["a", "a", "b", "b"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_to_z_score_per_key(columns["x"], columns["k"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.  1. -1.  1.]
    """
    del key_vocabulary_filename  # any number of keys are learned
    dtype = None if output_dtype is None else str(output_dtype)
    learned = results("moments_per_key", 5, x, key, elementwise=elementwise, dtype=dtype, name=name)
    keys, mean, variance, _, _ = learned
    means, variances = (noted("by_key", x, key, keys, numbers) for numbers in (mean, variance))
    return noted("z_score", x, means, variances)


def scale_to_gaussian(x: Any, elementwise: bool = False, name: str | None = None, output_dtype: Any = None) -> Column:
    """Numbers about normally distributed: scaled, and their long tails undone as those of a Tukey HH distribution.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.scale_to_gaussian(columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [-1.01 -0.29  0.41  1.48]
    """
    learned = tukey(x, not elementwise, output_dtype, name)
    return noted("gaussian", x, *learned, moments(x, not elementwise, output_dtype)[1])


def estimated_probability_density(
    x: Any, boundaries: Any = None, categorical: bool = False, name: str | None = None
) -> Column:
    """The density at each number, by a histogram; for categories the share of each.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.estimated_probability_density(columns["x"], boundaries=2)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.2 0.2 0.2 0.2]
    """
    counts, borders = histogram(x, boundaries, categorical, name)
    return noted("density", x, counts, borders, categorical=bool(categorical))


def _bounds(call: str, output_min: float, output_max: float) -> dict[str, float]:
    if not output_min < output_max:
        raise InvalidArgumentError(
            f"{user_site()}: {call} takes an output_min below output_max, got {output_min!r} and {output_max!r}"
        )
    return {"output_min": float(output_min), "output_max": float(output_max)}
