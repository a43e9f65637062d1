"""Programs of `MeshStrategy.run_steps`: a loop over batches as one SPMD program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from penstock.distribute.calls import RowsVaryError, StepLoop, checked_pair
from penstock.distribute.jax.program import Call, compiled_on_mesh, is_per_replica
from penstock.distribute.values import StackedPerReplica
from penstock.errors import InvalidTypeError


def many_steps_program(call: Call, mesh: Mesh, local: int, loop: StepLoop, state: int | None) -> Callable[..., Any]:
    """The compiled program of up to `loop.steps` full steps on all devices of the mesh, one after the other.

    The number of steps to take is an argument, so that the rest of an epoch needs no other program.

    Args:
        call: the function and how the arguments of a step enter, all as arrays: those of the state, then the batch's.
        mesh: the devices, one per replica, on one axis.
        local: how many of them are this process's.
        loop: what the steps do; a reference to its function is in `call`.
        state: the number of leaves of the state that the function takes and gives back; None where it has none.

    Returns:
        A function of the number of steps, of the state's leaves, and of the leaves of all batches, in the stacked form.
        It gives the new state and the results, whose leading axis has room for `loop.steps`, with a `PerReplica` at
        each leaf, with one device bare arrays. Of a call that touches variables, a function of them too, as
        `spmd_program` describes it; differences are the largest of all steps.
    """
    steps = _TracedSteps(call, mesh.size, local, loop, state)
    by_replica = mesh.size > 1
    donated = (1,) if loop.donate_state else ()
    return compiled_on_mesh(steps.run, call.framework is not None, mesh, (False, by_replica, by_replica), donated)


@dataclass(frozen=True)
class _TracedSteps:
    """The steps of one replica while they are traced; `many_steps_program` describes the fields."""

    call: Call
    replicas: int
    local: int
    loop: StepLoop
    state: int | None

    def run(self, written: list[Any], read: list[Any], count: Any, given: list[Any], batches: list[list[Any]]) -> Any:
        """State and results, the new values of the variables, and the largest differences."""
        columns = [jnp.stack([self._own_row(leaf) for leaf in column]) for column in zip(*batches, strict=True)]

        def step(number: Any, values: list[Any], leaves: list[Any]) -> Any:
            batch = [lax.dynamic_index_in_dim(column, number, keepdims=False) for column in columns]
            result, new_values, differences = self.call.on_replica([*values, *read], [*leaves, *batch])
            new_leaves, result = _split_state(self.call, result, leaves, self.state)
            return new_values, new_leaves, result, differences

        def body(number: Any, carried: Any) -> Any:
            values, leaves, results, largest = carried
            values, leaves, result, differences = step(number, values, leaves)
            results = jax.tree.map(
                lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, number, 0), results, result
            )
            return values, leaves, results, jax.tree.map(jnp.maximum, largest, differences)

        leaves = [self._own_row(leaf) for leaf in given]
        *_, result, differences = jax.eval_shape(step, 0, written, leaves)
        self._check_rows([*written, *read], leaves, columns, result)
        results = jax.tree.map(lambda leaf: jnp.zeros((self.loop.steps, *leaf.shape), leaf.dtype), result)
        largest = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), differences)
        values, leaves, results, largest = lax.fori_loop(0, count, body, (written, leaves, results, largest))
        outputs: Any = (None if self.state is None else _state_tree(self.call).unflatten(leaves), results)
        if self.replicas > 1:
            outputs = jax.tree.map(lambda leaf: StackedPerReplica(leaf[None], self.local), outputs)
        return outputs, values, largest

    def _check_rows(self, values: list[Any], leaves: list[Any], columns: list[Any], result: Any) -> None:
        """Refuse results with a row for each row of the batch, before steps with other numbers of rows come."""
        rows = {column.shape[1] for column in columns if column.ndim > 1}
        if not any(leaf.shape[:1] == (length,) for leaf in jax.tree.leaves(result) for length in rows):
            return

        def with_another_row() -> Any:
            batch = [jnp.zeros((column.shape[1] + 1, *column.shape[2:]), column.dtype) for column in columns]
            return _split_state(self.call, self.call.on_replica(values, [*leaves, *batch])[0], leaves, self.state)[1]

        if not self.loop.rows_vary():
            return
        longer = jax.eval_shape(with_another_row)
        for (path, leaf), other in zip(jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(longer)):
            if leaf.shape != other.shape:
                raise RowsVaryError(
                    f"strategy.run_steps puts the results of all steps together, but the result"
                    f"{jax.tree_util.keystr(path)} has a row for each row of the batch, and later batches of this "
                    'dataset may have fewer rows: use ps.InputOptions(partial_batch="pad"), batch(..., '
                    "drop_remainder=True), or strategy.run for each step; or return sums"
                )

    def _own_row(self, leaf: Any) -> Any:
        return leaf if self.replicas == 1 else leaf[0]


def _state_tree(call: Call) -> Any:
    return call.tree.children()[0].children()[0]


def _split_state(call: Call, result: Any, leaves: list[Any], state: int | None) -> tuple[list[Any], Any]:
    """The new state's leaves and the result of a step, which gives both if it has a state."""
    if state is None:
        return [], result
    new_state, result = checked_pair(result)
    new, structure = jax.tree.flatten(new_state)
    if structure != _state_tree(call):
        raise InvalidTypeError(
            "the function of strategy.run_steps must give back the state in the structure in which it came, got "
            f"{structure} for {_state_tree(call)}"
        )
    for (path, _), old, leaf in zip(jax.tree_util.tree_leaves_with_path(new_state), leaves, new, strict=True):
        if (old.shape, old.dtype) != (leaf.shape, leaf.dtype):
            raise InvalidTypeError(
                "the function of strategy.run_steps must give back the state in the shapes and dtypes in which it "
                f"came, got {leaf.dtype}{list(leaf.shape)} for {old.dtype}{list(old.shape)} at "
                f"state{jax.tree_util.keystr(path)}"
            )
    # A number that was made inside the step is weakly typed, and a loop needs the exact dtype.
    return [jnp.asarray(leaf, old.dtype) for leaf, old in zip(new, leaves, strict=True)], result


def layout_of(batch: Any, replicas: int) -> Any:
    """A key that batches for one program have in common; None for a batch that such a program cannot take."""
    leaves, tree = jax.tree.flatten(batch)
    own = jax.tree.leaves(batch, is_leaf=is_per_replica)
    fits = [is_per_replica(leaf) if replicas > 1 else isinstance(leaf, (jax.Array, np.ndarray)) for leaf in own]
    return (tree, [(leaf.shape, leaf.dtype) for leaf in leaves]) if all(fits) else None


def compiled_steps(count: int, steps: int) -> int:
    """The number of batches to compile a program for that runs `count` of `steps` steps: one of a few numbers."""
    return min(steps, 1 << (count - 1).bit_length())
