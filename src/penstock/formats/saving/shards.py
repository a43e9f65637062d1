"""What a format says that datasets are saved in."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import InvalidTypeError
from penstock.formats.saving.leaves import Columns
from penstock.spec import LeafSpec
from penstock.structure import Structure

Description = dict[str, Any]
"""What a writer says of its shard as plain data: "rows", "files", and what its format needs to read them."""


class ShardWriter(ABC):
    """Writes the rows of one shard, in order, to one file or several."""

    @abstractmethod
    def write(self, columns: Columns, structure: Structure, rows: int) -> None:
        """Append rows.

        Raises:
            InvalidTypeError, ElementError: rows that the format cannot hold.
            OSError: they cannot be written.
        """

    @abstractmethod
    def finish(self) -> Description:
        """Complete the files. All that is needed to read them is in the description."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open, complete or not. May be called again."""


class ShardFormat(ABC):
    """A format in which datasets are saved. Formats hold nothing, and travel to data workers by their name."""

    name: ClassVar[str]
    needs_spec: ClassVar[bool] = False
    """Whether the first rows must say what all rows are, so that `Dataset.element_spec` is asked for."""

    def check(self, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        """Refuse rows that the format cannot hold, by the first of them, before anything is written.

        Raises:
            InvalidTypeError: such rows.
        """
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")

    @abstractmethod
    def writer(self, directory: Path, number: int, specs: Sequence[LeafSpec]) -> ShardWriter:
        """A writer of the shard of this number. The specifications of leaves cover all rows, as far as is known."""

    @abstractmethod
    def complete(self, directory: Path, shards: Sequence[Description]) -> None:
        """Write what makes the files in a directory a dataset for `Dataset.load`."""


def file_name(number: int, ending: str) -> str:
    """The name of a shard, which sorts as its number."""
    return f"part-{number:05d}.{ending}"
