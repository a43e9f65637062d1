"""Results of several steps on devices, stacked along a leading axis of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from penstock.distribute.jax.program import is_per_replica
from penstock.distribute.values import StackedPerReplica, check_agreement
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True)
class StepResults:
    """The results of one step, or of several steps in one program.

    Attributes:
        result: the result of one step, or of a program of many, whose values have an axis of steps.
        count: the number of steps that the program took; None for a single step.
    """

    result: Any
    count: int | None


class StepResultsJoiner:
    """Stacks the results of steps.

    Args:
        replicas: the number of replicas in sync.
        by_row: the sharding of arrays with a row for each replica.
    """

    def __init__(self, replicas: int, by_row: Any) -> None:
        self._axis = 0 if replicas == 1 else 1
        self._join = jax.jit(
            partial(_joined, axis=self._axis), static_argnums=1, out_shardings=None if replicas == 1 else by_row
        )

    def __call__(self, pieces: Sequence[StepResults]) -> Any:
        """The results of all pieces, in order.

        Raises:
            InvalidTypeError: they differ in structure.
            InvalidArgumentError: they differ in shape.
        """
        flat: list[Any] = [jax.tree.flatten(piece.result, is_leaf=is_per_replica) for piece in pieces]
        check_agreement("the function of strategy.run_steps", [tree for _, tree in flat], "step")
        axis, paths = self._axis, jax.tree_util.tree_leaves_with_path(pieces[0].result, is_leaf=is_per_replica)
        columns = []
        for (path, _), column in zip(paths, zip(*(leaves for leaves, _ in flat), strict=True), strict=True):
            shapes = [_shape(leaf, axis, piece.count) for leaf, piece in zip(column, pieces, strict=True)]
            for shape in shapes:
                if shape != shapes[0] or isinstance(shape, list):
                    raise InvalidArgumentError(
                        "strategy.run_steps puts the results of all steps together, but the result"
                        f"{jax.tree_util.keystr(path)} has shape {shapes[0]} in one step and {shape} in another: "
                        "return values of one shape, such as sums, or take these steps by strategy.run"
                    )
            columns.append([leaf.stacked if is_per_replica(leaf) else leaf for leaf in column])
        joined = self._join(columns, tuple(piece.count for piece in pieces))
        local = next((leaf.count for leaf in flat[0][0] if is_per_replica(leaf)), 1)
        return flat[0][1].unflatten([StackedPerReplica(leaf, local) if axis else leaf for leaf in joined])


def _shape(leaf: Any, axis: int, count: int | None) -> Any:
    """The shape of a leaf in one step on one replica; a list with all replicas' shapes where they differ."""
    if is_per_replica(leaf) and leaf.stacked is None:
        return [value.shape for value in leaf.values]
    shape = (leaf.stacked if is_per_replica(leaf) else leaf).shape
    return shape[axis if count is None else axis + 1 :]


def _joined(columns: list[list[jax.Array]], counts: tuple[int | None, ...], axis: int) -> list[jax.Array]:
    return [
        jnp.concatenate(
            [
                jnp.expand_dims(leaf, axis) if count is None else lax.slice_in_dim(leaf, 0, count, axis=axis)
                for leaf, count in zip(column, counts, strict=True)
            ],
            axis,
        )
        for column in columns
    ]
