"""Records Keras's objects when they are made: the owner of a variable, and whether it was made in a strategy's scope.

A variable knows neither. The records keep no object alive.
"""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from penstock.distribute.framework import scope_is_open

OWNERS = (keras.optimizers.Optimizer, keras.random.SeedGenerator, keras.Metric)
"""The classes whose variables are merged by special rules; of several owners the last class counts."""
NOTED = (keras.Variable, keras.Layer, *OWNERS)

_seen: dict[int, weakref.ref[Any]] = {}
"""All recorded objects, by their ids, as long as they live."""
_owners: dict[int, weakref.ref[Any]] = {}
"""The recorded objects that own variables."""
_inside: dict[int, weakref.ref[Any]] = {}
"""The recorded objects that were made inside a scope."""


def note(made: Any) -> None:
    """Record an object that is being made."""
    for noted, concerned in ((_seen, True), (_owners, isinstance(made, OWNERS)), (_inside, scope_is_open())):
        if concerned:
            noted[id(made)] = weakref.ref(made, partial(_forget, noted, id(made)))


def was_seen(variable: Any) -> bool:
    """Return whether a variable was made since penstock and Keras were both imported."""
    return id(variable) in _seen


def made_inside(variables: Sequence[Any]) -> set[int]:
    """The ids of those variables that were made inside a scope, or that belong to an object that was."""
    inside = {id(variable) for variable in variables} & _inside.keys()
    if len(inside) < len(variables):
        inside |= {id(variable) for owner in _living(_inside) for variable in getattr(owner, "variables", ())}
    return inside


def owner_kinds() -> dict[int, Any]:
    """The class in `OWNERS` that owns a variable, by the variable's id."""
    living = _living(_owners)
    found: dict[int, Any] = {}
    for kind in OWNERS:
        for owner in living:
            if isinstance(owner, kind):
                found |= dict.fromkeys(map(id, _variables_of(owner)), kind)
    return found


def is_of_keras(variable: Any) -> bool:
    """Return whether a variable belongs to one of Keras's own metrics, rather than to a user's."""
    owners = [one for one in _living(_owners) if any(variable is other for other in _variables_of(one))]
    return bool(owners) and all(type(owner).__module__.startswith("keras.") for owner in owners)


def _variables_of(owner: Any) -> Sequence[Any]:
    # An object whose constructor has failed may lack its variables.
    if isinstance(owner, keras.random.SeedGenerator):
        return [owner.state] if hasattr(owner, "state") else []
    return getattr(owner, "variables", ())


def _living(noted: dict[int, weakref.ref[Any]]) -> list[Any]:
    return [found for reference in list(noted.values()) if (found := reference()) is not None]


def _forget(noted: dict[int, weakref.ref[Any]], key: int, _: Any) -> None:
    noted.pop(key, None)
