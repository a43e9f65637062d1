"""Keras models, optimizers and metrics in strategies, in `fit` and in compiled steps."""

import importlib
from typing import Any

_NEED_KERAS = ("connection", "fit", "served", "served_fit", "served_variables", "state")


def __getattr__(name: str) -> Any:
    # Not before Keras is wanted: these import it.
    if name in _NEED_KERAS:
        return importlib.import_module(f"penstock.training.keras.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
