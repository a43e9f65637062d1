"""Keras variables in `strategy.run`: found by tracing the step, given values for each replica, and merged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from penstock.distribute.contexts import ReplicaContext
from penstock.distribute.framework import Framework, Touched
from penstock.distribute.jax.traces import ClosedJaxpr
from penstock.errors import InvalidArgumentError
from penstock.training.keras.checks import averaging_losses_refused, check_made_inside
from penstock.training.keras.interface import has_value, set_values, values_of
from penstock.training.keras.merge_rules import MergeRule, merge_rules_of
from penstock.training.keras.objects import is_of_keras
from penstock.training.keras.sums import only_added_to


class KerasFramework(Framework):
    """The variables of Keras models, optimisers, metrics and random seeds, on Keras's JAX backend.

    A metric's variables grow by the sum of all replicas' increments, or are merged as their `aggregation` says. Moving
    statistics become the mean over the replicas. A seed advances as on one replica, and every replica draws from its
    own seed. Trainable weights and the optimiser's variables are equal on all replicas, because summed gradients are.
    """

    def touched(self, trace: Callable[[], object]) -> Touched:
        with _Recording() as scope:  # which initialises, at its end, what the trace has made
            with averaging_losses_refused():
                trace()
            made = {key for key, variable in scope.seen.items() if not has_value(variable)}
        written = [variable for key, variable in scope.seen.items() if key in scope.updated]
        check_made_inside(written, exempt=made)
        return Touched(written, [variable for key, variable in scope.seen.items() if key not in scope.updated])

    @contextmanager
    def with_values(self, variables: Sequence[Any], values: Sequence[Any], replica: Any) -> Iterator[Any]:
        kinds = merge_rules_of(variables)
        own = [_of_replica(value, replica) if kind is MergeRule.SEED else value for kind, value in zip(kinds, values)]
        with keras.StatelessScope(list(zip(variables, own, strict=True)), initialize_variables=False) as scope:
            yield scope

    def merged(self, lent: Any, variables: Sequence[Any], values: Sequence[Any], context: ReplicaContext) -> list[Any]:
        merged = []
        for variable, kind, old in zip(variables, merge_rules_of(variables), values, strict=True):
            new = lent.get_current_value(variable)
            if kind is MergeRule.SUM:
                new = old + context.all_reduce("SUM", new - old).astype(old.dtype)
            elif kind is MergeRule.SEED:
                new = old.at[1].set(new[1])
            elif kind is MergeRule.FIRST:
                first = context.replica_id_in_sync_group == 0
                new = context.all_reduce("SUM", jnp.where(first, new, jnp.zeros_like(new)))
            elif kind is MergeRule.MEAN:
                # A replica without rows has no statistics.
                new = new if context.has_rows else jnp.zeros_like(new)
                new = context.all_reduce("SUM", new) / context.all_reduce("SUM", np.float32(context.has_rows))
            merged.append(new.astype(old.dtype))
        return merged

    def check(self, variables: Sequence[Any], trace: Callable[[], ClosedJaxpr]) -> None:
        sums = [
            index
            for index, (variable, kind) in enumerate(zip(variables, merge_rules_of(variables), strict=True))
            if kind is MergeRule.SUM and not is_of_keras(variable)
        ]
        if not sums:
            return
        for index, added in zip(sums, only_added_to(trace(), sums), strict=True):
            variable = variables[index]
            if variable.aggregation != "sum":
                raise InvalidArgumentError(
                    f"the metric's variable {variable.path} has aggregation={variable.aggregation!r}, so the replicas' "
                    'values of it cannot become one: give add_variable aggregation="sum", "mean" or '
                    '"only_first_replica"'
                )
            if not added:
                raise InvalidArgumentError(
                    f"strategy.run got a function that changes the Keras variable {variable.path} by more than "
                    'adding to it, and its aggregation is "sum": the sum of what the replicas add would be wrong for a '
                    "maximum, for instance. Use assign_add with something that does not depend on the variable, or "
                    'give add_variable another aggregation: "mean" or "only_first_replica", of a value that is the '
                    "same on all replicas"
                )

    def replicated(self, variables: Sequence[Any]) -> list[int]:
        return [index for index, kind in enumerate(merge_rules_of(variables)) if kind is MergeRule.REPLICATED]

    def name(self, variable: Any) -> str:
        return str(variable.path)

    def values(self, variables: Sequence[Any]) -> list[Any]:
        return values_of(variables)

    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        set_values(variables, values)


class _Recording(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """A Keras scope that records every variable that is read or written within it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Any] = {}
        self.updated: set[int] = set()

    def get_current_value(self, variable: Any) -> Any:
        self.seen.setdefault(id(variable), variable)
        return super().get_current_value(variable)

    def add_update(self, update: Any) -> None:
        self.seen.setdefault(id(update[0]), update[0])
        self.updated.add(id(update[0]))
        super().add_update(update)


def _of_replica(state: Any, replica: Any) -> Any:
    """Return a separate seed for each replica; that of replica 0 is the seed itself."""
    mixed = jnp.asarray(replica).astype(jnp.uint32) * np.uint32(0x9E3779B9)
    return jnp.stack([state[0] ^ mixed.astype(state.dtype), state[1]])
