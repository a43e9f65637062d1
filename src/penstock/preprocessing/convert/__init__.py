"""Layers as layers of Keras, which is imported when the first one is asked for."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "to_keras":
        return import_module("penstock.preprocessing.convert.keras_layers").to_keras
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
