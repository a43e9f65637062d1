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
    """A format in which datasets are saved: an object writes the rows of one shard, in order, to a file.

    Args:
        directory: of the file.
        number: of the shard.
        specs: those of `needs_spec`.

    Attributes:
        rows: how many were written.
        leaves: of the rows.
    """

    ending: ClassVar[str]
    """The end of the names of files."""
    needs_spec: ClassVar[bool] = False
    """Whether all rows' specification must be known before the first is written: that of `Dataset.element_spec`."""

    def __init__(self, directory: Path, number: int, specs: Sequence[LeafSpec] = ()) -> None:
        self.path = shard_path(directory, number, self.ending)
        self.rows = 0
        self.leaves = Leaves()
        self._file: Any = None

    @classmethod
    def check(cls, structure: Structure, specs: Sequence[LeafSpec], columns: Columns) -> None:
        """Refuse rows that the format cannot hold before anything is written; the first rows decide.

        Raises:
            InvalidTypeError: such rows.
        """
        if not columns:
            raise InvalidTypeError(f"cannot store elements without leaves: their structure is {structure}")

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


def shard_path(directory: Path, number: int, ending: str) -> Path:
    """The file of a shard. Names sort like numbers."""
    return directory / f"part-{number:05d}.{ending}"
