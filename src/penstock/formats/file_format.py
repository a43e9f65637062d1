"""The interface of formats of files of which any row can be read by its number."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.structure import Structure, flatten

_WITH_TYPES: Final = ("DeltaDataset", "IcebergDataset", "ParquetDataset")
_WITH_COLUMNS: Final = ("MdsDataset", *_WITH_TYPES)
"""The readers that take the names of columns, and those that take types for them."""

Rows = range | npt.NDArray[np.int64]
"""Numbers of rows of one file: each once, the lowest first."""


class FileFormat(ABC):
    """The form of rows in a kind of file, any of which can be read by its number.

    Three methods make a format. They get names as users give them, so open files by `ps.files.open_file`, which reads
    remote ones too. `ps.FilesDataset(files, format=...)` reads files of it, by index: shuffled as a whole, divided over
    workers by rows or by files, and resumed at any row. Formats are pickled for data workers, so they hold no open
    files, and `__getstate__` should skip anything that they only keep in memory.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> class Triples(ps.files.FileFormat):
        ...     '''Three bytes for each row.'''
        ...
        ...     def count(self, name):
        ...         with ps.files.open_file(name) as file:
        ...             return file.seek(0, 2) // 3
        ...
        ...     def read(self, name, rows):
        ...         with ps.files.open_file(name) as file:
        ...             return np.frombuffer(file.read(), np.uint8).reshape(-1, 3)[rows]
        ...
        ...     def spec(self, name):
        ...         return ps.TensorSpec((3,), np.uint8)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pixels.rgb"
        >>> _ = path.write_bytes(bytes(range(12)))
        >>> [row.tolist() for row in ps.FilesDataset(path, Triples())[1:3]]
        [[3, 4, 5], [6, 7, 8]]
    """

    memory: str = ""
    """A text for `explain()`: the memory that reading takes, and the cost of a row at random."""

    version: str = ""
    """A text that names the version of a table, if there are several, such as "version=3".

    `explain()` and states have it, and a state fits one.
    """

    @property
    def name(self) -> str:
        """The name in `explain()`."""
        return type(self).__name__

    @abstractmethod
    def count(self, name: str) -> int:
        """The number of rows in a file. It is called once, when a dataset is made.

        Raises:
            StorageError: the file cannot be read, or is none of this format.
        """

    @abstractmethod
    def read(self, name: str, rows: Rows) -> Any:
        """The rows of these numbers: arrays (or Arrow columns) in the structure of a row, each with a row per number.

        It may be called from several threads.

        Raises:
            StorageError: the file is damaged there, or has changed.
        """

    def read_columns(self, name: str, rows: Rows) -> tuple[list[Any], Structure]:
        """The rows of `read` as columns and the structure of a row, as penstock's own formats hold them."""
        return flatten(self.read(name, rows))

    def read_pieces(self, pieces: Sequence[tuple[str, Rows]]) -> tuple[list[Any], Structure] | None:
        """The rows of several files, each given as to `read`, one file after the other, as columns and a structure.

        For formats that decode rows of several files in one call at less cost. By default None, as also where a row is
        damaged: then each file is read by itself.
        """
        return None

    has_lengths: bool = False
    """True if `lengths` works."""

    def lengths(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        """The lengths of the rows of these numbers, such as their tokens, for formats that find them without reading.

        `pack` and `mix` ask for them. By default there are none.
        """
        raise NotImplementedError(self.name)

    def group_ends(self, name: str) -> npt.NDArray[np.int64]:
        """The number of rows up to the end of each group of rows that are decoded together, for `shuffle(clump=...)`.

        By default all rows of a file are one group.
        """
        return np.array([self.count(name)])

    def rows_of_version(self, version: int) -> Mapping[str, int]:
        """The number of rows of each file at another version of a table, to tell how many have changed since.

        By default it is unknown.
        """
        raise NotImplementedError(self.name)

    def prepare(self, name: str) -> None:
        """Open a remote file that will be read soon, while others are read. By default it does nothing.

        It is called from other threads. Its errors are ignored, since reading the file raises them again.
        """
        return

    def spec(self, name: str) -> Any:
        """The specification of a row: a `ps.TensorSpec` for each leaf; None if only reading a row shows it."""
        return None

    def kind(self, name: str) -> Any:
        """The kind of a file's rows, equal for all files; by column if rows are dictionaries. By default the `spec`."""
        return self.spec(name)


def difference(call: str, first: tuple[str, Any], other: tuple[str, Any]) -> str:
    """The difference between the rows of two files, each given by its name and the kind of its rows.

    Example:
        >>> difference("ParquetDataset", ("a", {"x": "int64"}), ("b", {"x": "int32"}))
        "'b' has int32 in its column 'x', and 'a' int64: types={'x': ...} reads both as one type"
    """
    (first_name, columns), (other_name, others) = first, other
    if not isinstance(columns, dict) or not isinstance(others, dict):
        return f"{other_name!r} has rows of {others}, and {first_name!r} of {columns}"
    for (name, mine), (less_name, less) in ((first, other), (other, first)):
        extra = [column for column in mine if column not in less]
        if extra:
            advice = ": name those to read by columns=[...]" if call in _WITH_COLUMNS else ""
            return f"{name!r} has a column {extra[0]!r}, and {less_name!r} has only {list(less)}{advice}"
    column = next(column for column in columns if others[column] != columns[column])
    advice = f": types={{{column!r}: ...}} reads both as one type" if call in _WITH_TYPES else ""
    return f"{other_name!r} has {others[column]} in its column {column!r}, and {first_name!r} {columns[column]}{advice}"
