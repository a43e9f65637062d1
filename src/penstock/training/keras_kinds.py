"""What Keras's variables are for, which says how the replicas' new values of one become one."""

import weakref
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import jax.numpy as jnp
import keras

from penstock.training.keras_objects import owner_kinds


class Kind(Enum):
    """What a variable is for."""

    METRIC = auto()
    SEED = auto()
    STATISTIC = auto()
    REPLICATED = auto()


_owners: dict[int, tuple[weakref.ref[Any], Any]] = {}
"""For each variable that was asked for, by its id and for as long as it lives, the class of its owner or None."""


def kinds_of(variables: Sequence[Any]) -> list[Kind]:
    """The kinds of variables, found by whose they are."""
    new = [variable for variable in variables if id(variable) not in _owners]
    if new:
        _find_owners(new)
    return [_kind(variable, _owners[id(variable)][1]) for variable in variables]


def _kind(variable: Any, owner: Any) -> Kind:
    if owner is keras.Metric:
        return Kind.METRIC
    if owner is keras.random.SeedGenerator:
        return Kind.SEED
    moving = owner is None and not variable.trainable and jnp.issubdtype(variable.dtype, jnp.floating)
    return Kind.STATISTIC if moving else Kind.REPLICATED


def _find_owners(variables: Sequence[Any]) -> None:
    found = owner_kinds()
    for variable in variables:
        key = id(variable)
        _owners[key] = weakref.ref(variable, partial(_forget, key)), found.get(key)


def _forget(key: int, _: Any) -> None:
    _owners.pop(key, None)
