"""Rules by which servers apply pushes to variables: an optimizer, or addition."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import jax


class Rule(Protocol):
    """Changes shards of variables by gradients. Its functions are pure, so that JAX can compile them."""

    def for_shards(self, leaves: Sequence[int]) -> Self:
        """The rule of a server, which holds shards of these leaves, in this order."""

    def init(self, values: Any) -> Any:
        """The first state, a pytree of arrays."""

    def apply(self, gradients: Any, state: Any, values: Any) -> tuple[Any, Any]:
        """The new values, and the new state."""


class OptaxRule:
    """An optimizer of Optax.

    Args:
        optimizer: an optax.GradientTransformation.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def for_shards(self, leaves: Sequence[int]) -> Self:
        """The same for all."""
        return self

    def init(self, values: Any) -> Any:
        """The optimizer's first state."""
        return self._optimizer.init(values)

    def apply(self, gradients: Any, state: Any, values: Any) -> tuple[Any, Any]:
        """The values after the optimizer's updates, and its new state."""
        updates, state = self._optimizer.update(gradients, state, values)
        return jax.tree.map(lambda value, change: (value + change).astype(value.dtype), values, updates), state


class Addition:
    """Adds pushed values, as for counts and moving averages."""

    def for_shards(self, leaves: Sequence[int]) -> Self:
        """The same for all."""
        return self

    def init(self, values: Any) -> Any:
        """No state."""
        return ()

    def apply(self, gradients: Any, state: Any, values: Any) -> tuple[Any, Any]:
        """The sums."""
        return jax.tree.map(lambda value, change: (value + change).astype(value.dtype), values, gradients), state
