"""Sums and means of the replicas' arrays, NumPy's or JAX's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.distribute.contexts import ReduceOp
from penstock.errors import InvalidArgumentError


def holds_numbers(array: Any) -> bool:
    """Return whether an array holds numbers: no objects, strings, times or records of named fields."""
    return array.dtype.kind not in "OSUTMm" and array.dtype.type is not np.void  # bfloat16 is of the kind of records


def reduced(op: ReduceOp, values: tuple[Any, ...], axes: tuple[int, ...], call: str = "strategy.reduce") -> Any:
    """The sum or mean of arrays over all of them, and over axes of each.

    `call` is what errors begin with.

    Raises:
        InvalidArgumentError: an axis does not exist, the shapes do not fit, or there is nothing to take a mean of.
    """
    check_axes(call, values, axes)
    check_equal_shapes(call, values, apart_from=axes)
    # A sum over no axes keeps the shape and widens booleans and small integers, as a sum over an axis does.
    first, *others = (value.sum(axis=axes) for value in values)
    total = sum(others, first)
    count = count_of(values, axes)
    if op is ReduceOp.SUM:
        return total
    if count == 0:
        raise InvalidArgumentError(
            'strategy.reduce("MEAN", ...) got no rows on any replica: there is nothing to take a mean of'
        )
    return total / count


def joined(values: tuple[Any, ...], axis: int, call: str = "strategy.gather") -> Any:
    """NumPy arrays, which may hold strings or objects, concatenated along an axis.

    Raises:
        InvalidArgumentError: the axis does not exist, or the shapes do not fit.
    """
    check_axes(call, values, (axis,))
    check_equal_shapes(call, values, apart_from=(axis,))
    return np.concatenate(values, axis=axis)


def count_of(values: tuple[Any, ...], axes: tuple[int, ...]) -> int:
    """Return how many numbers a sum over all values, and over axes of each, has."""
    return sum(math.prod(value.shape[axis] for axis in axes) for value in values)


def check_axes(call: str, values: Sequence[Any], axes: tuple[int, ...]) -> None:
    """Refuse axes that the values do not have, and one that is named twice."""
    for value in values:
        for axis in axes:
            if not -value.ndim <= axis < value.ndim:
                raise InvalidArgumentError(
                    f"{call}(axis={axis}) got a value of shape {value.shape}, which has no such axis"
                )
        if len({axis % value.ndim for axis in axes}) < len(axes):
            raise InvalidArgumentError(f"{call}(axis={axes}) names an axis twice")


def check_equal_shapes(call: str, values: Sequence[Any], apart_from: tuple[int, ...] = ()) -> None:
    """Refuse arrays whose shapes differ on other axes than these."""

    def rest(shape: tuple[int, ...]) -> list[int]:
        left_out = {axis % len(shape) for axis in apart_from}
        return [length for number, length in enumerate(shape) if number not in left_out]

    if any(rest(value.shape) != rest(values[0].shape) for value in values):
        advice = ": give axis=0 to reduce over rows too" if not apart_from and call == "strategy.reduce" else ""
        raise InvalidArgumentError(
            f"{call} needs values of fitting shapes, got {', '.join(str(value.shape) for value in values)}{advice}"
        )
