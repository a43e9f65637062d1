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
"""A writer's description of its shard as plain data: "rows", "files", and everything a reader needs."""


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
        self._file: Any = None

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
        """Write rows to `_file`, which the first rows create."""

    def finish(self) -> Description:
        """Complete the file and describe it."""
        beside = self._end() if self.rows else []
        self.close()
        files = [self.path.name] if self.rows else []
        return {"rows": self.rows, "files": files, "files_beside": beside, **self.leaves.to_data()}

    def _end(self) -> list[str]:
        """Write the end of the file, and return the names of files that were written beside it."""
        return []

    def close(self) -> None:
        """Close the file, complete or not. Later calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


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
