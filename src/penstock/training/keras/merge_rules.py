"""Rules by which the replicas' new values of a Keras variable are merged, by the variable's purpose."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

import jax.numpy as jnp
import keras

from penstock.training.keras.objects import owner_kinds


class MergeRule(Enum):
    """Rule by which the replicas' new values of a variable are merged into one."""

    SUM = auto()
    """The increments of all replicas are summed."""
    MEAN = auto()
    """Their mean, over the replicas that have rows."""
    FIRST = auto()
    """The value of replica 0."""
    SEED = auto()
    """The seed advances as on one replica."""
    REPLICATED = auto()
    """They are equal."""


_BY_AGGREGATION = {"sum": MergeRule.SUM, "mean": MergeRule.MEAN, "only_first_replica": MergeRule.FIRST}


def merge_rules_of(variables: Sequence[Any]) -> list[MergeRule]:
    """The merge rules of variables, which follow from their owners."""
    owners = owner_kinds()
    return [_rule_of(variable, owners.get(id(variable))) for variable in variables]


def _rule_of(variable: Any, owner: Any) -> MergeRule:
    if owner is keras.random.SeedGenerator:
        return MergeRule.SEED
    if owner is keras.optimizers.Optimizer:
        return MergeRule.REPLICATED
    if owner is keras.Metric or variable.aggregation in _BY_AGGREGATION:
        return _BY_AGGREGATION.get(variable.aggregation, MergeRule.SUM)
    moving = not variable.trainable and jnp.issubdtype(variable.dtype, jnp.floating)
    return MergeRule.MEAN if moving else MergeRule.REPLICATED
