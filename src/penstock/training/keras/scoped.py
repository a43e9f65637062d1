"""Records of the objects that Keras makes in the scope of a `ps.ParameterServerStrategy`, or compiles in any."""

from typing import Any
from weakref import WeakKeyDictionary, ref

from penstock.distribute.contexts import get_strategy
from penstock.parameter_server.strategy import ParameterServerStrategy

_made: WeakKeyDictionary[Any, list[ref[Any]]] = WeakKeyDictionary()
_compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The strategies in whose scopes models were compiled."""


def note_in_scope(made: Any) -> None:
    """Record an object that is being made."""
    strategy = get_strategy()
    if isinstance(strategy, ParameterServerStrategy):
        _made.setdefault(strategy, []).append(ref(made))


def made_in_scope(strategy: Any) -> list[Any]:
    """Return the objects made in the scope of a strategy that are still used, in order."""
    return [made for reference in _made.get(strategy, ()) if (made := reference()) is not None]


def note_compiled(model: Any, strategy: Any) -> None:
    """Record that a model was compiled in the scope of a strategy, of whichever kind."""
    _compiled[model] = strategy


def strategy_of_compiled(model: Any) -> Any:
    """The strategy in whose scope a model was compiled, or None."""
    return _compiled.get(model)


def compiled_in_scope(strategy: Any) -> list[Any]:
    """The models that were compiled in the scope of a strategy."""
    return [model for model, used in _compiled.items() if used is strategy]
