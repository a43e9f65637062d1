"""Formats of files of which any row can be read by its number. Their libraries are imported when they are needed."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats.indexed import parquet as parquet


def __getattr__(name: str) -> Any:
    if name == "parquet":
        return importlib.import_module("penstock.formats.indexed.parquet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
