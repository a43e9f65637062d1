"""Keras's own layers, by name."""

import os
from typing import Any

# Keras reads this once, when it is imported; its default would be TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras


def to_keras(name: str, config: dict[str, Any]) -> Any:
    """The layer of Keras that has this name, with these arguments."""
    return getattr(keras.layers, name)(**config)
