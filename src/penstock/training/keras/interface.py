"""Everything that penstock uses of Keras beyond its documented interface.

`tests/training/test_keras_interface.py` checks each of these, and names the version of Keras that has changed one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter


def when_made(kind: Any, tell: Callable[[Any], None]) -> None:
    """Call `tell` with every new object of a class, copies included, before it is initialised."""
    make = kind.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        tell(made)
        return made

    kind.__new__ = staticmethod(new)


def replace_method(kind: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `wrapped(method)` in place of a method, in the class that defines it.

    A class that only inherits the method would otherwise look to Keras as if it had overridden it: `load_model` then
    leaves its models uncompiled.
    """
    definer = next(base for base in kind.__mro__ if name in vars(base))
    setattr(definer, name, wrapped(vars(definer)[name]))


def jax_epoch_iterator() -> Any:
    """The class by which Keras reads an adapter on JAX; with another backend it need not be importable."""
    return keras.src.backend.jax.trainer.JAXEpochIterator


def has_value(variable: Any) -> bool:
    """Whether a variable has been initialised; one that is made while a step is traced is so only afterwards."""
    return variable._value is not None


def values_of(variables: Sequence[Any]) -> list[Any]:
    """The arrays that variables hold, whatever scope is open."""
    return [variable._value for variable in variables]


def set_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Set the arrays of variables without the conversion of `Variable.assign`, which costs microseconds for each."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def set_first_epoch(model: Any, epoch: int) -> None:
    """Let a `fit` begin with another epoch; to be called in `on_train_begin`, as `BackupAndRestore` does."""
    model._initial_epoch = epoch
