"""Files of records: one description of a format gives the stream of its records and finds any by its number."""

from typing import TYPE_CHECKING

from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.formats.records import offsets as offsets

__getattr__ = when_used(__name__, "offsets")
