"""The interface of formats in which datasets are saved."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import InvalidTypeError
from penstock.formats.saving.leaves import Columns
from penstock.spec import LeafSpec
from penstock.structure import Structure

Description = dict[str, Any]
"""What a writer returns about its shard, as plain data: "rows", "files", and what the format needs to read them."""


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
        """Complete the files. The description contains all that is needed to read them."""

    @abstractmethod
    def close(self) -> None:
        """Close the files, complete or not. Later calls do nothing."""


class ShardFormat(ABC):
    """A format in which datasets are saved. Formats have no state, and are sent to data workers by name."""

    name: ClassVar[str]
    needs_spec: ClassVar[bool] = False
    """Whether all rows' specification must be known before the first is written: that of `Dataset.element_spec`."""

    def check(self, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        """Refuse rows that the format cannot hold before anything is written; the first rows decide.

        Raises:
            InvalidTypeError: such rows.
        """
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")

    @abstractmethod
    def writer(self, directory: Path, number: int, specs: Sequence[LeafSpec]) -> ShardWriter:
        """A writer of the shard with this number. The specifications of leaves cover all rows, as far as is known."""

    @abstractmethod
    def complete(self, directory: Path, shards: Sequence[Description]) -> None:
        """Write the manifest that lets `Dataset.load` read the files of a directory: at least one shard, with rows."""


def file_name(number: int, ending: str) -> str:
    """The file name of a shard. Names sort like numbers."""
    return f"part-{number:05d}.{ending}"
