"""Keras's objects in this process: whose a variable is, and what was made inside a strategy's scope.

A variable knows neither. Both are found among the objects that Python's garbage collector knows, so that nothing of
Keras's is replaced; that takes some hundredths of a second, and is done for a scope and for variables that are new.
"""

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_inside: dict[int, weakref.ref[Any]] = {}
"""What was made inside a scope, by its id, for as long as it lives."""
_open: dict[object, list[Any]] = {}
"""For every scope that is open what there was before it."""


def keras() -> Any:
    """Keras, if it was imported: without it there are no variables."""
    return sys.modules["keras"]


def objects_of(kind: Any) -> list[Any]:
    """All objects of a class, or of one of several."""
    # Not `isinstance`, which asks the object for its class: it may stand for another that is gone.
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]


@contextmanager
def noting_what_is_made() -> Iterator[None]:
    """Within it what is made of Keras's objects is noted, for `made_inside`."""
    scope = object()
    _open[scope] = _all()  # themselves: while they live, nothing that is made can have the id of one of them
    try:
        yield
    finally:
        _note_all_but(_open.pop(scope))


def made_inside() -> set[int]:
    """The ids of the variables that were made inside a scope, or that belong to an object that was."""
    for before in list(_open.values()):
        _note_all_but(before)
    noted = [found for reference in list(_inside.values()) if (found := reference()) is not None]
    owned = [variable for owner in noted for variable in getattr(owner, "variables", ())]
    return {id(variable) for variable in (*noted, *owned)}


def _all() -> list[Any]:
    if "keras" not in sys.modules:
        return []
    return objects_of((keras().Variable, keras().Layer, keras().Metric, keras().optimizers.Optimizer))


def _note_all_but(before: list[Any]) -> None:
    known = set(map(id, before))
    for made in _all():
        if id(made) not in known:
            _inside[id(made)] = weakref.ref(made, partial(_forget, id(made)))


def _forget(key: int, _: Any) -> None:
    _inside.pop(key, None)
