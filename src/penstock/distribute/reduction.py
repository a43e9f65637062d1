"""Sums and means of the replicas' arrays, NumPy's or JAX's."""

from typing import Any

from penstock.distribute.contexts import ReduceOp
from penstock.errors import InvalidArgumentError


def reduced(op: ReduceOp, parts: tuple[Any, ...], axis: int | None, call: str = "strategy.reduce") -> Any:
    """The sum or mean of arrays over all of them, and over an axis of each where one is given.

    `call` is what errors begin with.

    Raises:
        InvalidArgumentError: the axis does not exist, the shapes do not fit, or there is nothing to take a mean of.
    """
    if axis is not None:
        check_axis("reduce", parts, axis)
    check_equal_shapes(call, parts, apart_from=axis)
    # A sum over no axes keeps the shape and widens booleans and small integers, as a sum over an axis does.
    total = _sum([part.sum(axis=() if axis is None else axis) for part in parts])
    count = len(parts) if axis is None else sum(part.shape[axis] for part in parts)
    if op is ReduceOp.SUM:
        return total
    if count == 0:
        raise InvalidArgumentError(
            'strategy.reduce("MEAN", ...) got no rows on any replica: there is nothing to take a mean of'
        )
    return total / count


def check_axis(call: str, parts: tuple[Any, ...], axis: int) -> None:
    """Refuse an axis that the values do not have."""
    for part in parts:
        if not -part.ndim <= axis < part.ndim:
            raise InvalidArgumentError(
                f"strategy.{call}(axis={axis}) got a value of shape {part.shape}, which has no such axis"
            )


def check_equal_shapes(call: str, parts: tuple[Any, ...], apart_from: int | None = None) -> None:
    """Refuse arrays whose shapes differ, on any axis or on any axis but one."""

    def rest(shape: tuple[int, ...]) -> list[int]:
        return [
            length for number, length in enumerate(shape) if apart_from is None or number != apart_from % len(shape)
        ]

    if any(rest(part.shape) != rest(parts[0].shape) for part in parts):
        advice = ": give axis=0 to reduce over rows too" if apart_from is None and call == "strategy.reduce" else ""
        raise InvalidArgumentError(
            f"{call} needs values of fitting shapes, got {', '.join(str(part.shape) for part in parts)}{advice}"
        )


def _sum(values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
