"""Bytes to rows and back. fsspec is imported only when a file with a protocol is met."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats import remote as remote


def __getattr__(name: str) -> Any:
    if name == "remote":
        return importlib.import_module("penstock.formats.remote")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
