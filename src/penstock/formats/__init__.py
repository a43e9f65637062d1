"""Bytes to rows and back. What needs Arrow or a package of an extra is imported only when it is first used."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats import images as images
    from penstock.formats import table_rows as table_rows
    from penstock.formats import tables as tables
__getattr__ = when_used(__name__, "images", "table_rows", "tables")
