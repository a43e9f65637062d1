"""Everything that penstock uses of Keras beyond its documented interface.

`tests/training/test_keras_interface.py` checks each of these, and names the version of Keras that has changed one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter
from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedSet


def when_made(kind: Any, tell: Callable[[Any], None]) -> None:
    """Call `tell` with every new object of a class, copies included, before it is initialised."""
    make = kind.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        tell(made)
        return made

    kind.__new__ = staticmethod(new)


def replace_method(kind: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by `wrapped(method)`, in the class that defines it.

    A class that only inherits the method would otherwise look to Keras as if it had overridden it: `load_model` then
    leaves its models uncompiled.
    """
    definer = next(base for base in kind.__mro__ if name in vars(base))
    setattr(definer, name, wrapped(vars(definer)[name]))


def jax_epoch_iterator() -> Any:
    """The class by which Keras reads an adapter on JAX; with another backend it need not be importable."""
    return keras.src.backend.jax.trainer.JAXEpochIterator


def has_value(variable: Any) -> bool:
    """Return whether a variable has been initialised; one that is made while a step is traced is so only afterwards."""
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


def built_with(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built with."""
    return list(optimizer._trainable_variables)


def config_with_objects(optimizer: Any) -> dict[str, Any]:
    """Return what `from_config` makes the same optimizer of; a schedule of learning rates is in it as an object."""
    config: dict[str, Any] = optimizer.get_config()
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        config["learning_rate"] = optimizer._learning_rate
    return config


def excluded_from_decay(optimizer: Any) -> Any:
    """Return what `exclude_from_weight_decay` has noted."""
    return getattr(optimizer, "_exclude_from_weight_decay_pattern", None)


def exclude_from_decay(optimizer: Any, excluded: Any) -> None:
    """Note it for another optimizer."""
    optimizer._exclude_from_weight_decay_pattern = excluded


def set_path(variable: Any, path: str) -> None:
    """Give a variable the path of another one."""
    variable._path = path


_COMPILED = ("train_function", "test_function", "predict_function", "_jax_state", "_eval_epoch_iterator", "history")
"""Attributes of a model that belong to this process: programs that JAX has compiled, and their data."""


def tracked_collection(value: Any) -> Any:
    """Return what pickle writes of a collection that Keras watches: it is filled first, and watched afterwards."""
    if isinstance(value, TrackedList):
        return TrackedList, (), vars(value), iter(value)
    if isinstance(value, TrackedDict):
        return TrackedDict, (), vars(value), None, iter(value.items())
    if isinstance(value, TrackedSet):
        return TrackedSet, (list(value),), vars(value)
    return None


def is_plain_object(value: Any) -> bool:
    """Return whether an object is one of those that Keras pickles by its own file format."""
    return isinstance(value, KerasSaveable)


def attributes_for_worker(value: Any) -> dict[str, Any]:
    """The attributes of such an object that another process can use."""
    return {name: None if name in _COMPILED else attribute for name, attribute in vars(value).items()}


def trains_by_own_step(model: Any) -> bool:
    """Return whether a model's `train_step` is Keras's."""
    return type(model).train_step is keras.src.backend.jax.trainer.JAXTrainer.train_step


def build_by(model: Any, batch: Any) -> bool:
    """Make the variables of a model, its metrics and its optimizer that are missing; False if that needs a batch."""
    parts = (model._compile_metrics, model._compile_loss)
    if batch is None:
        built = model.built and all(part is None or part.built for part in parts)
        if built and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return built
    model._symbolic_build(data_batch=batch)
    return True


def metrics_after(
    model: Any, metrics: Sequence[Any], loss: Any, x: Any, y: Any, predicted: Any, sample_weight: Any
) -> list[Any]:
    """The variables of a model's metrics after a step, as in Keras's own."""
    _, after = model._update_metrics_variables(metrics, loss, x, y, predicted, sample_weight)
    return list(after)
