"""Functions that `map` refuses: those whose random numbers do not depend on a seed of the dataset."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.functions.at_once import describe_function, draws
from penstock.data.skipped import ProgramError
from penstock.errors import InvalidArgumentError, InvalidTypeError

_SEED_STATE = "seed_generator_state"  # Keras's name for the variable of a SeedGenerator
_ADVICE = (
    "whose random numbers come from its internal state, so that they would differ after a restore and in other "
    "processes: use ps.preprocessing.random(layer) and map(..., seed=...)"
)


def checked_randomness(function: Callable[..., Any], seed: int | None) -> Callable[..., Any]:
    """The function for `map` to call: one that uses layers of Keras is watched.

    Raises:
        InvalidArgumentError: the function takes a generator, and there is no seed.
        InvalidTypeError: the function is a layer of Keras that draws random numbers.
    """
    if draws(function) and seed is None:
        raise InvalidArgumentError(
            f"map(fn) got {describe_function(function)}, which draws random numbers: give map(..., seed=...)"
        )
    if _draws_when_called(function):
        raise InvalidTypeError(f"map(fn) got Keras's {describe_function(function)}, {_ADVICE}")
    layers = filter(_draws_when_called, _used_layers(function))
    states = [(type(layer).__name__, state) for layer in layers for state in seed_states(layer)]
    return Watched(function, states) if states else function


class Watched:
    """A function that uses random layers of Keras: it must not draw from their states.

    It may call them where they draw nothing, with `training=False`, so only a call can tell.
    """

    def __init__(self, function: Callable[..., Any], states: list[tuple[str, Any]]) -> None:
        self._function = function
        self._states = states
        self.__qualname__ = describe_function(function)

    def __call__(self, *arguments: Any) -> Any:
        before = [np.array(state.value) for _, state in self._states]
        result = self._function(*arguments)
        for (name, state), value in zip(self._states, before, strict=True):
            if not np.array_equal(value, state.value):
                raise ProgramError(f"the function called Keras's {name}, {_ADVICE}")
        return result

    def __reduce__(self) -> Any:
        return _unwatched, (self._function,)


def _unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def seed_states(layer: Any) -> list[Any]:
    """Return the variables with the states of a layer's SeedGenerators, which only their name identifies."""
    return [variable for variable in layer.variables if variable.name == _SEED_STATE]


def _draws_when_called(function: Any) -> bool:
    """Return whether this is a layer of Keras that draws random numbers when called without arguments."""
    if not _is_layer(function) or not seed_states(function):
        return False
    training = inspect.signature(function.call).parameters.get("training")
    by_default = training is None or training.default is True
    return by_default or any(map(_draws_when_called, getattr(function, "layers", ())))


def _is_layer(value: object) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Layer)


def _used_layers(function: Callable[..., Any]) -> list[Any]:
    """The layers of Keras that a function's code names."""
    if "keras" not in sys.modules:
        return []
    try:
        names = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # not written in Python, or a name without a value yet
        return []
    return [value for value in (*names.nonlocals.values(), *names.globals.values()) if _is_layer(value)]
