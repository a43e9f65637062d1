"""Functions that need Keras, which is imported when the first of them is used."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("to_keras", "seeds_of", "call_with_seeds"):
        return getattr(import_module("penstock.preprocessing.convert.keras_layers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
