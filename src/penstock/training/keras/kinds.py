"""What Keras's variables are for, which says how the replicas' new values of one become one."""

import weakref
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import jax.numpy as jnp
import keras

from penstock.training.keras.objects import owner_kinds


class Kind(Enum):
    """How the replicas' new values of a variable become one."""

    SUM = auto()
    """What each replica adds is added up."""
    MEAN = auto()
    """Their mean, over the replicas that have rows."""
    FIRST = auto()
    """That of replica 0."""
    SEED = auto()
    """A seed advances as on one replica."""
    REPLICATED = auto()
    """They are equal."""


_owners: dict[int, tuple[weakref.ref[Any], Any]] = {}
"""For each variable that was asked for, by its id and for as long as it lives, the class of its owner or None."""

_BY_AGGREGATION = {"sum": Kind.SUM, "mean": Kind.MEAN, "only_first_replica": Kind.FIRST}


def kinds_of(variables: Sequence[Any]) -> list[Kind]:
    """The kinds of variables, found by whose they are."""
    new = [variable for variable in variables if id(variable) not in _owners]
    if new:
        _find_owners(new)
    return [_kind(variable, _owners[id(variable)][1]) for variable in variables]


def _kind(variable: Any, owner: Any) -> Kind:
    if owner is keras.random.SeedGenerator:
        return Kind.SEED
    if owner is keras.optimizers.Optimizer:
        return Kind.REPLICATED
    if owner is keras.Metric or variable.aggregation in _BY_AGGREGATION:
        return _BY_AGGREGATION.get(variable.aggregation, Kind.SUM)
    moving = not variable.trainable and jnp.issubdtype(variable.dtype, jnp.floating)
    return Kind.MEAN if moving else Kind.REPLICATED


def _find_owners(variables: Sequence[Any]) -> None:
    found = owner_kinds()
    for variable in variables:
        key = id(variable)
        _owners[key] = weakref.ref(variable, partial(_forget, key)), found.get(key)


def _forget(key: int, _: Any) -> None:
    _owners.pop(key, None)
