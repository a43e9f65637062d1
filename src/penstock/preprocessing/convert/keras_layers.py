"""Keras's own layers, by name."""

import threading
from typing import Any

import keras
import numpy as np

from penstock.data.randomness import seed_states
from penstock.errors import InvalidTypeError
from penstock.structure import map_structure

_BUILDING = threading.Lock()  # two threads must not create the variables of one layer


def to_keras(name: str, config: dict[str, Any]) -> Any:
    """Keras's layer with this name and these arguments."""
    return getattr(keras.layers, name)(**config)


def seeds_of(layer: Any) -> list[Any]:
    """The variables that hold the states of a layer's SeedGenerators; empty if it is not a Keras layer."""
    if not isinstance(layer, keras.Layer):
        return []
    if any(isinstance(part, keras.layers.AugMix) for part in (layer, *getattr(layer, "layers", ()))):
        raise InvalidTypeError(
            "random(layer): Keras's AugMix draws from Python's own `random` too, which no seed of map decides: "
            "use RandAugment"
        )
    return seed_states(layer)


def call_with_seeds(layer: Any, inputs: Any, seeds: list[Any], keys: Any) -> Any:
    """The layer's result with `keys` instead of the states of its SeedGenerators, which do not change.

    It runs on the CPU, as everything in a pipeline does.
    """
    with keras.device("cpu"):
        if not layer.built:
            with _BUILDING:
                layer(inputs, training=True)
        with keras.StatelessScope(state_mapping=list(zip(seeds, keys, strict=True))):
            return map_structure(np.asarray, layer(inputs, training=True))
