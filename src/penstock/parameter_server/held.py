"""The shards that one server holds of some variables, and the optimizer that pushes are applied by."""

from functools import partial
from typing import Any

import jax
import numpy as np

from penstock.errors import StateMismatchError
from penstock.parameter_server.line import Array
from penstock.runtime.shared_memory import Arena


class HeldVariables:
    """Shards of dense variables. Each push is one call of the optimizer over all of them.

    Args:
        values: the first values.
        optimizer: an optax.GradientTransformation.
        arena: where newest values are published.
    """

    def __init__(self, values: list[Array], optimizer: Any, arena: Arena) -> None:
        self._arena = arena
        self._values = [jax.numpy.array(value) for value in values]
        self._state = optimizer.init(self._values)
        self._published: list[Array] | None = None

        # The values and the state are given up for the new ones, so that they are changed in place.
        @partial(jax.jit, donate_argnums=(0, 1))
        def update(values: Any, state: Any, gradients: Any) -> Any:
            # Gradients are shown in memory of the worker's: what is returned must be no part of it.
            gradients = jax.lax.optimization_barrier(gradients)  # type: ignore[no-untyped-call]
            updates, state = optimizer.update(gradients, state, values)
            return jax.tree.map(lambda value, change: (value + change).astype(value.dtype), values, updates), state

        self._update = update

    def push(self, gradients: list[Array]) -> None:
        """Apply gradients, which are no longer needed when it returns."""
        self._published = None
        self._values, self._state = self._update(self._values, self._state, gradients)
        jax.block_until_ready((self._values, self._state))  # type: ignore[no-untyped-call]

    def read(self) -> list[Array]:
        """The newest values, in memory that no later push changes."""
        if self._published is None:
            self._published = [_copy(value, self._arena) for value in self._values]
        return self._published

    def state(self) -> list[Array]:
        """Copies of the optimizer's arrays."""
        return [_copy(leaf, self._arena) for leaf in jax.tree.leaves(self._state)]

    def load(self, values: list[Array], state: list[Array] | None) -> None:
        """Take other values, and the optimizer's arrays.

        Raises:
            StateMismatchError: those of another optimizer.
        """
        if state is not None:
            self._state = _restored(self._state, state, jax.numpy.array)
        self._values = [jax.numpy.array(value) for value in values]
        self._published = None


class HeldTable:
    """Shards of a table, of which rows are read and pushed. The optimizer sees only these, and their part of its state.

    Its arrays of the table's shape have a row for each of the table's; all other arrays are changed by every push.
    """

    def __init__(self, values: list[Array], optimizer: Any, arena: Arena) -> None:
        self._arena = arena
        self._values = [np.array(value) for value in values]
        self._state = [jax.tree.map(_writable, optimizer.init(value)) for value in self._values]

        @jax.jit
        def update(rows: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, rows)
            return (rows + updates).astype(rows.dtype), state

        self._update = update

    def read(self) -> list[Array]:
        """A copy of all rows."""
        return [_copy(value, self._arena) for value in self._values]

    def read_rows(self, rows: list[Array]) -> list[Array]:
        """A copy of some rows of each shard."""
        return [value[indices] for value, indices in zip(self._values, rows, strict=True)]

    def push(self, gradients: list[Array]) -> None:
        """Apply gradients: for each shard its rows, each at most once, and then their gradients."""
        for shard, table in enumerate(self._values):
            rows, gradient = gradients[2 * shard], gradients[2 * shard + 1]
            if len(rows):
                self._state[shard] = self._push(table, self._state[shard], rows, gradient)

    def _push(self, table: Array, state: Any, rows: Array, gradient: Array) -> Any:
        # Rounded up to a power of two, so that few sizes are compiled; rows that are added are read and never written.
        count = len(rows)
        padded = 1 << (count - 1).bit_length()
        indices = np.concatenate([rows, np.full(padded - count, rows[0], rows.dtype)])
        padding = np.zeros((padded - count, *gradient.shape[1:]), gradient.dtype)
        part = jax.tree.map(lambda leaf: leaf[indices] if leaf.shape == table.shape else leaf, state)
        values, changed = self._update(table[indices], part, np.concatenate([gradient, padding]))
        table[rows] = np.asarray(values)[:count]

        def scattered(leaf: Array, new: Any) -> Array:
            if leaf.shape != table.shape:
                return np.array(new)
            leaf[rows] = np.asarray(new)[:count]
            return leaf

        return jax.tree.map(scattered, state, changed)

    def state(self) -> list[Array]:
        """Copies of the optimizer's arrays."""
        return [_copy(leaf, self._arena) for leaf in jax.tree.leaves(self._state)]

    def load(self, values: list[Array], state: list[Array] | None) -> None:
        """Take other values, and the optimizer's arrays.

        Raises:
            StateMismatchError: those of another optimizer.
        """
        if state is not None:
            self._state = _restored(self._state, state, _writable)
        self._values = [np.array(value) for value in values]


def _copy(value: Any, arena: Arena) -> Array:
    array = np.asarray(value)
    memory = arena.allocate(array.nbytes) if array.nbytes else None
    copy = np.empty(array.shape, array.dtype) if memory is None else memory.view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _writable(leaf: Any) -> Array:
    return np.array(leaf)


def _restored(tree: Any, leaves: list[Array], make: Any) -> Any:
    own, structure = jax.tree.flatten(tree)
    if [np.shape(leaf) for leaf in own] != [leaf.shape for leaf in leaves]:
        raise StateMismatchError("the state was saved with another optimizer: create the variables with the same one")
    return jax.tree.unflatten(structure, [make(leaf) for leaf in leaves])
