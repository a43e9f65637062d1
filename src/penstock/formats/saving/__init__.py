"""Formats in which datasets are saved: shards of files, and what makes a directory of them a dataset again."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats.saving import example_writer as example_writer
    from penstock.formats.saving import parquet_shards as parquet_shards
    from penstock.formats.saving import record_shards as record_shards


def __getattr__(name: str) -> Any:
    if name == "example_writer":
        return importlib.import_module("penstock.formats.saving.example_writer")
    if name == "parquet_shards":
        return importlib.import_module("penstock.formats.saving.parquet_shards")
    if name == "record_shards":
        return importlib.import_module("penstock.formats.saving.record_shards")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
