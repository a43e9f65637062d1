"""Connects penstock with Keras when both are imported; see `import_hook.py`."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

import penstock.training.keras as of_keras
from penstock.data.dataset import Dataset
from penstock.distribute.contexts import get_strategy
from penstock.distribute.feed.dataset import DistributedDataset
from penstock.distribute.framework import register
from penstock.distribute.host.strategy import HostStrategy
from penstock.parameter_server.frameworks import register as serve_framework
from penstock.training.keras.checks import refusing_averages
from penstock.training.keras.import_hook import check_jax
from penstock.training.keras.interface import replace_method, when_made
from penstock.training.keras.loss_scale import applying_without_state
from penstock.training.keras.objects import NOTED, note
from penstock.training.keras.scoped import note_in_scope


class _SavedTransform:
    """In the place of the layer of `ps.transform` in saved models, which is imported when one is loaded."""

    @staticmethod
    def from_config(config: dict[str, Any]) -> Any:
        return sys.modules["penstock"].transform.keras.TransformLayer.from_config(config)


def connect() -> None:
    """Let Keras's models take datasets, strategies find Keras's variables, and Keras load the layer of `ps.transform`.

    On another backend than JAX nothing else changes, except that what needs JAX is refused with the reason.
    """
    keras.saving.get_custom_objects().setdefault("penstock>TransformLayer", _SavedTransform)
    if keras.config.backend() == "jax":
        for kind in NOTED:
            when_made(kind, note)
        for kind in (keras.Variable, keras.optimizers.Optimizer, keras.random.SeedGenerator):
            when_made(kind, note_in_scope)
        serve_framework(lambda: of_keras.served.ServedKeras())
        replace_method(keras.losses.Loss, "__call__", refusing_averages)
        replace_method(keras.optimizers.LossScaleOptimizer, "apply", applying_without_state)
        of_keras.fit.accept_datasets()
        register(of_keras.state.KerasFramework())
        return
    when_made(keras.Variable, _refuse_in_scope)
    for name in ("fit", "evaluate", "predict"):
        replace_method(keras.Model, name, _refusing_datasets)


def check_backend(what: str) -> None:
    """Refuse what needs JAX where Keras has another backend.

    Raises:
        InvalidArgumentError: it has.
    """
    check_jax(what, keras.config.backend())


def _refuse_in_scope(made: Any) -> None:
    strategy = get_strategy()
    if strategy is not None and not isinstance(strategy, HostStrategy):
        check_backend(f"a Keras variable in the scope of {strategy!r}")


def _refusing_datasets(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, (Dataset, DistributedDataset)):
            check_backend("a ps.Dataset given to a Keras model")
        return original(self, x, *args, **kwargs)

    return method
