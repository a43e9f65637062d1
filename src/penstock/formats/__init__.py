"""Bytes to rows and back. What needs Arrow or a package of an extra is imported only when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats import images as images
    from penstock.formats import kept_files as kept_files
    from penstock.formats import row_store as row_store
    from penstock.formats import table_rows as table_rows
    from penstock.formats import tables as tables


_WHEN_USED = {"images", "kept_files", "row_store", "table_rows", "tables"}


def __getattr__(name: str) -> Any:
    if name in _WHEN_USED:
        return importlib.import_module(f"penstock.formats.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
