"""The interface of formats in which datasets are saved."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import InvalidTypeError
from penstock.formats.writing.leaves import Columns, Leaves
from penstock.spec import LeafSpec
from penstock.structure import Structure

Description = dict[str, Any]
"""What a writer returns about its shard, as plain data: "rows", "files", and what is needed to read them."""


class ShardWriter(ABC):
    """Writes the rows of one shard, in order, to a file.

    Args:
        path: of the file.

    Attributes:
        rows: how many were written.
        leaves: of the rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.leaves = Leaves()

    def write(self, columns: Columns, structure: Structure, rows: int) -> None:
        """Append rows.

        Raises:
            InvalidTypeError, ElementError: rows that the format cannot hold.
            OSError: they cannot be written.
        """
        self.leaves.note(columns, structure)
        self._append(columns, structure, rows)
        self.rows += rows

    @abstractmethod
    def _append(self, columns: Columns, structure: Structure, rows: int) -> None:
        """Write rows to the file; of the first, make it."""

    def finish(self) -> Description:
        """Complete the file. The description contains all that is needed to read it."""
        beside = self._end() if self.rows else []
        self.close()
        files = [self.path.name] if self.rows else []
        return {"rows": self.rows, "files": files, "files_beside": beside, **self.leaves.to_data()}

    def _end(self) -> list[str]:
        """Write what comes after the last row; returns the files that were written beside this one."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the file, complete or not. Later calls do nothing."""


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
        """A writer of the shard with this number. The specifications are those of `needs_spec`."""


def shard_path(directory: Path, number: int, ending: str) -> Path:
    """The file of a shard. Names sort like numbers."""
    return directory / f"part-{number:05d}.{ending}"
