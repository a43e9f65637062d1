"""Formats of files of which any row can be read by its number. Their libraries are imported when they are needed."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats.indexed import array_record as array_record
    from penstock.formats.indexed import csv_records as csv_records
    from penstock.formats.indexed import json_records as json_records
    from penstock.formats.indexed import parquet as parquet

__getattr__ = when_used(__name__, "array_record", "csv_records", "json_records", "parquet")
