"""`model.fit(dataset)`: what Keras's models do with a `ps.Dataset`.

Keras takes adapters for data of other kinds, but has no place to announce them. So four methods of `keras.Model` are
wrapped: `compile` notes whose scope it was called in, the others turn datasets into adapters, and all go on in Keras.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import keras

from penstock.data.dataset import Dataset
from penstock.distribute.contexts import get_strategy
from penstock.distribute.input import DistributedDataset
from penstock.distribute.mesh_strategy import MeshStrategy
from penstock.errors import InvalidArgumentError
from penstock.training.keras_input import DatasetInput, as_input

_compiled_under: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The strategies of models, as in TensorFlow: `fit` may be called when the scope has been left."""

_DATA = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}
"""The methods that take data, and what limits each to a number of batches."""
_INSIDE = {
    "y": "make elements of (x, y)",
    "sample_weight": "make elements of (x, y, sample_weight)",
    "class_weight": "make elements of (x, y, sample_weight)",
    "batch_size": "use dataset.batch(batch_size)",
    "validation_batch_size": "use dataset.batch(batch_size)",
}
"""What a dataset brings itself."""


def accept_datasets() -> None:
    """Let the methods of `keras.Model` take datasets; done once."""
    if getattr(keras.Model.compile, "notes_strategy", False):
        return
    keras.Model.compile = _noting(keras.Model.compile)
    for name, steps in _DATA.items():
        setattr(keras.Model, name, _taking(getattr(keras.Model, name), name, steps))


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_strategy() is not None:
            _compiled_under[self] = get_strategy()
        return original(self, *args, **kwargs)

    compile.notes_strategy = True  # type: ignore[attr-defined]
    return compile


def _taking(original: Callable[..., Any], name: str, steps: str) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        bound: list[DatasetInput] = []
        if _is_ours(x):
            if args:
                raise InvalidArgumentError(
                    f"model.{name}(dataset, ...) takes its other arguments by name: the second one is what a dataset "
                    "brings itself"
                )
            x = _bound(self, x, name, steps, kwargs)
            bound.append(x)
        data = kwargs.get("validation_data")
        if _is_ours(data):
            if data is x:
                raise InvalidArgumentError(
                    "model.fit got one as_input(...) as its data and as validation_data, which are read in turn: make "
                    "two of them"
                )
            kwargs["validation_data"] = _bound(self, data, "evaluate", "validation_steps", kwargs)
            bound.append(kwargs["validation_data"])
        try:
            return original(self, x, *args, **kwargs)
        finally:
            for one in bound:
                one.close()

    return method


def _is_ours(data: Any) -> bool:
    return isinstance(data, (Dataset, DistributedDataset, DatasetInput))


def _bound(model: Any, data: Any, name: str, steps: str, given: Mapping[str, Any]) -> DatasetInput:
    """The adapter of some data, ready for a model."""
    for argument, instead in _INSIDE.items():
        if given.get(argument) is not None:
            raise InvalidArgumentError(f"a Keras model got a dataset and {argument}=...: leave it out, and {instead}")
    found = data if isinstance(data, DatasetInput) else as_input(data)
    if found.endless and not given.get(steps):
        raise InvalidArgumentError(f"the dataset never ends: give model.{name} or model.fit {steps}=...")
    found.bind(model, _strategy_of(model), whole=name == "predict")
    return found


def _strategy_of(model: Any) -> MeshStrategy | None:
    """The strategy whose devices a model is trained on: that in scope, or whose scope it was compiled in."""
    strategy = get_strategy() or _compiled_under.get(model)
    if strategy is None:
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
