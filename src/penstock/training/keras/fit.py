"""`model.fit(dataset)`: what Keras's models do with a `ps.Dataset`.

Keras accepts data adapters, but has no way to register them. So some methods of Keras's models are wrapped: `compile`
remembers the strategy in whose scope it was called; `fit`, `evaluate` and `predict` turn datasets into adapters; the
methods that compile steps do so under Keras's own distribution over the strategy's devices; and the iterator over an
adapter leaves batches on these devices, and does not take the length of one pass for that of all. All of them then call
Keras's own method.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import keras

import penstock.training.keras as of_keras
from penstock.data.dataset import Dataset
from penstock.distribute.contexts import get_strategy
from penstock.distribute.feed.dataset import DistributedDataset
from penstock.distribute.jax.for_trainers import placement_of
from penstock.distribute.jax.mesh_strategy import MeshStrategy
from penstock.distribute.jax.program import AXIS
from penstock.errors import InvalidArgumentError
from penstock.parameter_server.strategy import ParameterServerStrategy
from penstock.training.keras.class_weight import ClassWeight
from penstock.training.keras.input import DatasetInput, as_input
from penstock.training.keras.interface import jax_epoch_iterator, replace_method
from penstock.training.keras.position import KeepPosition
from penstock.training.keras.report import WriteReport
from penstock.training.keras.scoped import note_compiled, strategy_of_compiled

_reading: WeakKeyDictionary[Any, DatasetInput] = WeakKeyDictionary()
"""The feeds from which models are reading at this moment."""
_steps_made_for: WeakKeyDictionary[Any, MeshStrategy | None] = WeakKeyDictionary()
"""The strategies for which the compiled steps of models were made."""

_STEPS = ("train", "test", "predict")
_DATA = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
"""The methods that take data, each with its argument for the number of batches."""
_INSIDE = {
    "y": "make elements of (x, y)",
    "sample_weight": "make elements of (x, y, sample_weight)",
    "batch_size": "use dataset.batch(batch_size)",
    "validation_batch_size": "use dataset.batch(batch_size)",
}
"""Arguments that a dataset makes superfluous, and what to do instead."""


def accept_datasets() -> None:
    """Let `fit`, `evaluate` and `predict` of Keras's models take a `ps.Dataset`; called once."""
    replace_method(keras.Model, "compile", _remembering_strategy)
    for name, steps in _DATA.items():
        replace_method(keras.Model, name, partial(_taking_datasets, name=name, steps=steps))
        replace_method(keras.Model, name, partial(_with_servers, name=name))
    for step in _STEPS:
        replace_method(keras.Model, f"make_{step}_function", _compiling_for_strategy)
    replace_method(jax_epoch_iterator(), "_get_iterator", _leaving_batches_in_place)
    replace_method(jax_epoch_iterator(), "catch_stop_iteration", _forgetting_length)


def _remembering_strategy(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_strategy() is not None:
            # For calls of `fit` outside of the scope, as in TensorFlow.
            note_compiled(self, get_strategy())
        return original(self, *args, **kwargs)

    return compile


def _taking_datasets(original: Callable[..., Any], name: str, steps: str) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(x):
            if _is_ours(kwargs.get("validation_data")):
                raise InvalidArgumentError("model.fit takes a dataset as validation_data where it trains on one")
            return original(self, x, *args, **kwargs)
        if args:
            raise InvalidArgumentError(
                f"model.{name}(dataset, ...) takes its other arguments by name: the second one is what a dataset "
                "brings itself"
            )
        inputs = [_prepared_adapter(self, x, name, steps, kwargs, class_weight=kwargs.pop("class_weight", None))]
        data = kwargs.get("validation_data")
        if _is_ours(data):
            if data is x and isinstance(x, DatasetInput):
                raise InvalidArgumentError(
                    "model.fit got one as_input(...) as its data and as validation_data, which are read in turn: make "
                    "two of them"
                )
            inputs.append(_prepared_adapter(self, data, "fit", "validation_steps", kwargs))
            kwargs["validation_data"] = inputs[-1]
        callbacks = kwargs.get("callbacks")
        if isinstance(callbacks, (list, tuple)):
            for one in callbacks:
                if isinstance(one, WriteReport):
                    one.feed = inputs[0]
            after = [one.after_others(callbacks) for one in callbacks if isinstance(one, KeepPosition)]
            kwargs["callbacks"] = [*callbacks, *after]
        with _read_by(self, inputs):
            return original(self, inputs[0], **kwargs)

    return method


def _with_servers(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        strategy = get_strategy() or strategy_of_compiled(self)
        if not isinstance(strategy, ParameterServerStrategy):
            return original(self, x, *args, **kwargs)
        if name == "fit":
            _check_for_servers(args, kwargs)
            return of_keras.served_fit.fit(self, strategy, x, **kwargs)
        with strategy.scope(), of_keras.served_variables.copies_of_served():
            return original(self, x, *args, **kwargs)

    return method


def _check_for_servers(args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    if args:
        raise InvalidArgumentError("model.fit(data, ...) under a ps.ParameterServerStrategy takes arguments by name")
    for argument, instead in (*_INSIDE.items(), ("class_weight", _INSIDE["sample_weight"])):
        if given.get(argument) is not None:
            raise InvalidArgumentError(f"model.fit under a ps.ParameterServerStrategy got {argument}=...: {instead}")


@contextmanager
def _read_by(model: Any, feeds: list[DatasetInput]) -> Iterator[None]:
    """A context in which a model reads these feeds, beginning with the first; at its end all are closed."""
    outer, strategy = _reading.get(model), feeds[0].strategy
    if _steps_made_for.get(model) is not strategy:
        for step in _STEPS:
            setattr(model, f"{step}_function", None)
    _steps_made_for[model] = strategy
    _reading[model] = feeds[0]
    try:
        yield
    finally:
        for feed in feeds:
            feed.close()
        if outer is None:
            del _reading[model]
        else:
            _reading[model] = outer


def _compiling_for_strategy(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        feed = _reading.get(self)
        if feed is None or feed.strategy is None:
            return original(self, force)
        # Steps that Keras compiles under a distribution leave every variable replicated on all devices.
        feed.place_variables()
        devices = placement_of(feed.strategy).mesh.devices
        mesh = keras.distribution.DeviceMesh(devices.shape, [AXIS], devices)
        with keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False).scope():
            return original(self, force)

    return make


def _leaving_batches_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _get_iterator(self: Any) -> Any:
        # Keras puts batches on a device some steps ahead. Those of a strategy are on its devices already, and JAX
        # refuses to move arrays that are partly on the devices of other workers.
        data = self.data_adapter
        if isinstance(data, DatasetInput) and data.strategy is not None:
            return data.get_jax_iterator()
        return original(self)

    return _get_iterator


def _forgetting_length(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    @contextmanager
    def catch_stop_iteration(self: Any) -> Iterator[None]:
        # Keras takes the batches of the first epoch for those of all, where the data does not say how many it has. But
        # that epoch may have been entered in the middle, and a random function may decide how many rows are skipped.
        with original(self):
            yield
        if isinstance(self.data_adapter, DatasetInput):
            self._num_batches = self.data_adapter.num_batches

    return catch_stop_iteration


def _is_ours(data: Any) -> bool:
    return isinstance(data, (Dataset, DistributedDataset, DatasetInput))


def _prepared_adapter(
    model: Any, data: Any, name: str, steps: str, given: Mapping[str, Any], class_weight: Any = None
) -> DatasetInput:
    """The adapter for some data, prepared for a model."""
    for argument, instead in _INSIDE.items():
        if given.get(argument) is not None:
            raise InvalidArgumentError(f"a Keras model got a dataset and {argument}=...: leave it out, and {instead}")
    feed = data if isinstance(data, DatasetInput) else as_input(data)
    if feed.endless and not given.get(steps):
        raise InvalidArgumentError(f"the dataset never ends: give model.{name} {steps}=...")
    weight = None if class_weight is None else ClassWeight(class_weight)
    feed.prepare(model, _strategy_of(model), whole=name == "predict", class_weight=weight)
    return feed


def _strategy_of(model: Any) -> MeshStrategy | None:
    """The strategy whose devices a model is trained on: that in scope, or whose scope it was compiled in."""
    strategy = get_strategy() or strategy_of_compiled(model)
    if strategy is None or isinstance(strategy, ParameterServerStrategy):
        return None
    if keras.distribution.distribution() is not None:
        raise InvalidArgumentError(
            "strategy.scope() splits the data over the devices, and so does Keras's own distribution, which is set "
            "too: keras.distribution.set_distribution(None)"
        )
    if isinstance(strategy, MeshStrategy):
        return strategy
    if strategy.num_replicas_in_sync == 1:
        return None
    raise InvalidArgumentError(f"a Keras model trains on devices, and {strategy!r} has none: use ps.MirroredStrategy")
