"""The shards that one server holds of some variables, and the rule by which pushes change them.

Pushes are unsettled at first: `settle` keeps them, or brings back the values before.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from penstock.errors import StateMismatchError
from penstock.parameter_server.rules import Rule
from penstock.rpc.line import Array
from penstock.runtime.memory import LARGE
from penstock.runtime.shared_memory import Arena


class HeldVariables:
    """Shards of dense variables. Each push is one call of the rule over all of them.

    Args:
        values: the first values.
        rule: how pushes change them.
        arena: where newest values are published.
    """

    def __init__(self, values: list[Array], rule: Rule, arena: Arena) -> None:
        self._arena = arena
        first = [jax.numpy.array(value) for value in values]
        self._settled: Any = (first, jax.tree.map(jax.numpy.array, rule.init(first)))
        self._unsettled: Any = None
        self._spare: list[Any] = []
        self._published: list[Array] | None = None

        # New values are written into memory that earlier ones no longer need: fresh memory costs more to touch than
        # the update, and the settled values have to stay.
        @partial(jax.jit, donate_argnums=1, keep_unused=True)
        def update(held: Any, spare: Any, gradients: Any) -> Any:
            # Gradients are views of the worker's memory, so the result must not share it.
            gradients = jax.lax.optimization_barrier(gradients)  # type: ignore[no-untyped-call]
            values, state = held
            return rule.apply(gradients, state, values)

        self._update = update

    def push(self, gradients: list[Array]) -> None:
        """Apply gradients, which are no longer needed when it returns."""
        before = self._settled if self._unsettled is None else self._unsettled
        spare = self._spare.pop() if self._spare else jax.tree.map(jax.numpy.empty_like, before)
        after = jax.block_until_ready(self._update(before, spare, gradients))  # type: ignore[no-untyped-call]
        if self._unsettled is not None:
            self._spare.append(self._unsettled)
        self._unsettled = after

    def settle(self, *, keep: bool) -> None:
        """Keep the pushes since the last call, or forget them."""
        if self._unsettled is None:
            return
        if keep:
            self._settled, self._unsettled = self._unsettled, self._settled
            self._published = None
        self._spare = [self._unsettled]
        self._unsettled = None

    def read(self) -> list[Array]:
        """The newest values, in memory that no later push changes."""
        if self._published is None:
            self._published = [copied(value, self._arena) for value in self._settled[0]]
        return self._published

    def state(self) -> list[Array]:
        """Copies of the arrays of the rule's state."""
        return [copied(leaf, self._arena) for leaf in jax.tree.leaves(self._settled[1])]

    def load(self, values: list[Array | None], state: list[Array | None]) -> None:
        """Take other values, and other arrays of the state; where they are None or missing, those stay.

        Raises:
            StateMismatchError: a state of another optimizer.
        """
        own_values, own_state = self._settled
        own_state = _restored(own_state, state, jax.numpy.array) if state else own_state
        replaced = [
            own if value is None else jax.numpy.array(value) for own, value in zip(own_values, values, strict=False)
        ]
        self._settled = (replaced + own_values[len(replaced) :], own_state)
        self._published = None


class HeldTable:
    """Shards of a table, of which rows are read and pushed. The rule sees only these, and their part of its state.

    Its arrays of the table's shape have a row for each of the table's; all other arrays are changed by every push.
    """

    def __init__(self, values: list[Array], rule: Rule, arena: Arena) -> None:
        self._arena = arena
        self._values = [np.array(value) for value in values]
        self._state = [jax.tree.map(_writable, rule.init(value)) for value in self._values]
        self._update = jax.jit(rule.apply)
        self._before: list[tuple[Array, Array, Array]] = []
        self._states_before = list(self._state)

    def read(self) -> list[Array]:
        """A copy of all rows."""
        return [copied(value, self._arena) for value in self._values]

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
        values, changed = self._update(np.concatenate([gradient, padding]), part, table[indices])
        self._scatter(table, rows, np.asarray(values)[:count])

        def scattered(leaf: Array, new: Any) -> Array:
            if leaf.shape != table.shape:
                return np.array(new)
            self._scatter(leaf, rows, np.asarray(new)[:count])
            return leaf

        return jax.tree.map(scattered, state, changed)

    def _scatter(self, array: Array, rows: Array, new: Array) -> None:
        self._before.append((array, np.array(rows), array[rows]))
        array[rows] = new

    def settle(self, *, keep: bool) -> None:
        """Keep the pushes since the last call, or bring back the values before."""
        if keep:
            self._states_before = list(self._state)
        else:
            for array, rows, before in reversed(self._before):
                array[rows] = before
            self._state = list(self._states_before)
        self._before.clear()

    def state(self) -> list[Array]:
        """Copies of the arrays of the rule's state."""
        return [copied(leaf, self._arena) for leaf in jax.tree.leaves(self._state)]

    def load(self, values: list[Array | None], state: list[Array | None]) -> None:
        """Take other values, and other arrays of the state; where they are None or missing, those stay.

        Raises:
            StateMismatchError: a state of another optimizer.
        """
        if state:
            self._state = _restored(self._state, state, _writable)
        self._states_before = list(self._state)
        for shard, value in enumerate(values):
            if value is not None:
                self._values[shard] = np.array(value)


def copied(value: Any, arena: Arena) -> Array:
    """A copy of an array, which is in shared memory if it is large."""
    array = np.asarray(value)
    memory = arena.allocate(array.nbytes) if array.nbytes >= LARGE else None
    copy = np.empty(array.shape, array.dtype) if memory is None else memory.view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _writable(leaf: Any) -> Array:
    return np.array(leaf)


def _restored(tree: Any, leaves: list[Array | None], make: Any) -> Any:
    own, structure = jax.tree.flatten(tree)
    given = [*leaves, *[None] * (len(own) - len(leaves))]
    if len(own) != len(given) or any(
        leaf is not None and leaf.shape != np.shape(mine) for mine, leaf in zip(own, given, strict=True)
    ):
        raise StateMismatchError("the state was saved with another optimizer: create the variables with the same one")
    replaced = [mine if leaf is None else make(leaf) for mine, leaf in zip(own, given, strict=True)]
    return jax.tree.unflatten(structure, replaced)
