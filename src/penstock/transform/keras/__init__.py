"""The transform as a layer of Keras, which is imported when the first layer is made."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("TransformLayer", "computable"):
        return getattr(import_module("penstock.transform.keras.layer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
