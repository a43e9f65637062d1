"""Bytes to rows and back. What needs a package of an extra is imported only when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats import images as images
    from penstock.formats import remote as remote


def __getattr__(name: str) -> Any:
    if name == "images":
        return importlib.import_module("penstock.formats.images")
    if name == "remote":
        return importlib.import_module("penstock.formats.remote")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
