"""Formats in which datasets are saved: shards of files, and what makes a directory of them a dataset again."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats.writing import example_writer as example_writer
    from penstock.formats.writing import manifest as manifest
    from penstock.formats.writing import numbered_rows as numbered_rows
    from penstock.formats.writing import parquet_shards as parquet_shards
    from penstock.formats.writing import record_shards as record_shards
    from penstock.formats.writing import row_files as row_files
    from penstock.formats.writing import row_shards as row_shards
    from penstock.formats.writing import saved_files as saved_files
    from penstock.formats.writing import tar_shards as tar_shards

__getattr__ = when_used(
    __name__,
    "example_writer",
    "manifest",
    "numbered_rows",
    "parquet_shards",
    "record_shards",
    "row_files",
    "row_shards",
    "saved_files",
    "tar_shards",
)
