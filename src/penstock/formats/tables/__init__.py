"""Tables, by Arrow, which is imported when they are first used."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats.tables import arrow_columns as arrow_columns
    from penstock.formats.tables import csv_records as csv_records
    from penstock.formats.tables import file_columns as file_columns
    from penstock.formats.tables import json_records as json_records
    from penstock.formats.tables import nulls as nulls
    from penstock.formats.tables import parquet as parquet
    from penstock.formats.tables import table_rows as table_rows

__getattr__ = when_used(
    __name__, "arrow_columns", "csv_records", "file_columns", "json_records", "nulls", "parquet", "table_rows"
)
