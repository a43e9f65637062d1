"""What training loops need around a step: scaled losses, Keras models in `strategy.run` and in `fit`, checkpoints."""

import importlib
from typing import Any

_NEED_KERAS = ("keras", "keras_connection", "keras_fit", "keras_state")


def __getattr__(name: str) -> Any:
    # Not before Keras is wanted: these import it.
    if name in _NEED_KERAS:
        return importlib.import_module(f"penstock.training.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
