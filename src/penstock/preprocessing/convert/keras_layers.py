"""Keras's own layers, by name."""

from typing import Any

import keras


def to_keras(name: str, config: dict[str, Any]) -> Any:
    """The layer of Keras that has this name, with these arguments."""
    return getattr(keras.layers, name)(**config)
