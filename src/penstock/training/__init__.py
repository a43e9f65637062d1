"""What training loops need around a step: scaled losses, Keras models in `strategy.run` and in `fit`, checkpoints."""

import importlib
import os
from typing import Any

# Where Keras is imported after this, and nobody has chosen a backend: it is JAX that runs steps here.
os.environ.setdefault("KERAS_BACKEND", "jax")


def __getattr__(name: str) -> Any:
    # Not before Keras is wanted: this imports it.
    if name == "keras":
        return importlib.import_module("penstock.training.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
