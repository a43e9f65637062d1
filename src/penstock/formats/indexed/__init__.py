"""Formats of files of which any row can be read by its number. Their libraries are imported when they are needed."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats.indexed import array_record as array_record
    from penstock.formats.indexed import csv_records as csv_records
    from penstock.formats.indexed import json_records as json_records
    from penstock.formats.indexed import parquet as parquet


def __getattr__(name: str) -> Any:
    if name == "parquet":
        return importlib.import_module("penstock.formats.indexed.parquet")
    if name == "array_record":
        return importlib.import_module("penstock.formats.indexed.array_record")
    if name == "csv_records":
        return importlib.import_module("penstock.formats.indexed.csv_records")
    if name == "json_records":
        return importlib.import_module("penstock.formats.indexed.json_records")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
