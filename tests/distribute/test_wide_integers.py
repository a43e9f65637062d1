"""Integers that JAX would cut to 32 bits are refused wherever values come to the devices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

WIDE = np.array([2**40, 2**40 + 1, 3, 4])
ON_HOST = ps.InputOptions(fetch_to_device=False)


def batches(strategy: ps.Strategy, values: Any, size: int) -> Any:
    return iter(strategy.distribute_dataset(ps.Dataset.from_tensor_slices(values).batch(size), ON_HOST))


PATHS: dict[str, Callable[[ps.Strategy, Any], Any]] = {
    "gather of a step in host memory": lambda strategy, values: strategy.gather(next(batches(strategy, values, 4)), 0),
    "reduce of a step in host memory": lambda strategy, values: strategy.reduce(
        "SUM", next(batches(strategy, values, 4))
    ),
    "reduce of rows of a step in host memory": lambda strategy, values: strategy.reduce(
        "MEAN", next(batches(strategy, values, 4)), axis=0
    ),
    "reduce of an array": lambda strategy, values: strategy.reduce("SUM", values),
    "reduce of a scalar": lambda strategy, values: strategy.reduce("SUM", values[0]),
    "reduce of a number": lambda strategy, values: strategy.reduce("SUM", int(values[0])),
    "gather of an array": lambda strategy, values: strategy.gather(values, 0),
    "run of a step in host memory": lambda strategy, values: strategy.run(
        lambda rows: rows, args=(next(batches(strategy, values, 4)),)
    ),
    "run of a ragged step in host memory": lambda strategy, values: strategy.run(
        lambda rows: rows, args=(next(batches(strategy, values[:3], 3)),)
    ),
    "run of an array beside a ragged step": lambda strategy, values: strategy.run(
        lambda rows, array: array, args=(next(batches(strategy, np.arange(3), 3)), values)
    ),
    "run of an array": lambda strategy, values: strategy.run(lambda array: array, args=(values,)),
    "run_steps of steps in host memory": lambda strategy, values: strategy.run_steps(
        lambda rows: rows, batches(strategy, np.concatenate([np.zeros(4, values.dtype), values]), 4), 2
    ),
    "a result": lambda strategy, values: strategy.run(lambda: values),
    "a value of all_reduce": lambda strategy, values: strategy.run(
        lambda: ps.get_replica_context().all_reduce("SUM", values)
    ),
    "a state of run_steps": lambda strategy, values: strategy.run_steps(
        lambda state, rows: (state, rows), batches(strategy, np.arange(8), 4), 2, state=values
    ),
    "values of replicas": lambda strategy, values: strategy.run(
        lambda value: value, args=(strategy.distribute_values_from_function(lambda context: values),)
    ),
    "a distributed step": lambda strategy, values: next(
        iter(strategy.distribute_dataset(ps.Dataset.from_tensor_slices(values).batch(4)))
    ),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("path", PATHS)
def test_wide_integers_are_never_cut_in_silence(path: str, dtype: Any, replicas: int) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"holds u?int64 values from .*, but JAX keeps only u?int32"):
        PATHS[path](mirrored(replicas), WIDE.astype(dtype))


@pytest.mark.parametrize("dtype", [">i4", ">f4"])
@pytest.mark.parametrize(
    "path", ["a distributed step", "run of an array", "a state of run_steps", "values of replicas"]
)
def test_numbers_in_another_byte_order_are_refused_with_what_to_do(path: str, dtype: str) -> None:
    """JAX said that >i4 is no valid type, where FITS and netCDF files have such numbers."""
    with pytest.raises(ps.InvalidArgumentError, match=r"has the dtype '>.4', .* another order.*: map it to"):
        PATHS[path](mirrored(2), np.arange(4).astype(dtype))
