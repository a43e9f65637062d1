"""Rows of Lance data sets at a version, by their own `take`, of thousands at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.formats.file_errors import by_library
from penstock.formats.file_format import FileFormat, Rows
from penstock.formats.tables.arrow_columns import as_columns, spec_of
from penstock.formats.tables.nulls import MaskNulls, masked
from penstock.positions import as_positions

_CALL: Final = "LanceDataset"


class LanceRows(FileFormat):
    """The rows of a data set as dictionaries of their columns.

    Args:
        data: a data set of lance, or where one lies.
        version: of it; None for the one that it is at.
        columns: the names of those that are read; None for all.
        mask_nulls: the columns that get a column of booleans beside them.

    Raises:
        InvalidTypeError: no data set, or a column of a type that NumPy does not have.
        InvalidArgumentError: a column that is not there.
        StorageError: there is no such data set, or no such version (any more).
    """

    def __init__(
        self, data: Any, version: int | None, columns: Sequence[str] | None = None, mask_nulls: MaskNulls = None
    ) -> None:
        if not isinstance(data, (str, lance.LanceDataset)) and not hasattr(data, "__fspath__"):
            raise InvalidTypeError(f"{_CALL}(data=...) takes a lance.LanceDataset or where one lies, got {data!r:.200}")
        where = data.uri if isinstance(data, lance.LanceDataset) else str(data)
        wanted = "" if version is None else f" at version {version}, which may have been cleaned up"
        with by_library(f"{_CALL}: {where!r} cannot be opened{wanted}", StorageError):
            found = data if isinstance(data, lance.LanceDataset) else lance.dataset(data, version=version)
            self.dataset = found if version in (None, found.version) else found.checkout_version(version)
        self.version = f"version={self.dataset.version}"
        self.mask_nulls = mask_nulls
        schema = self.dataset.schema
        self.columns = list(schema.names if columns is None else columns)
        if unknown := [column for column in self.columns if column not in schema.names]:
            raise InvalidArgumentError(
                f"{_CALL}(columns=...): {where!r} has no column {unknown[0]!r}; its columns are {schema.names}"
            )

    def count(self, name: str) -> int:
        return int(self.dataset.count_rows())

    def rows_of_version(self, version: int) -> Mapping[str, int]:
        parts = self.dataset.checkout_version(version).get_fragments()
        return {str(part.fragment_id): part.count_rows() for part in parts}

    def read(self, name: str, rows: Rows) -> Any:
        with by_library(f"{name!r}, {self.version}: rows {rows[0]} to {rows[-1]} cannot be read", StorageError):
            table = self._taken(rows)
        return as_columns(masked(table, self.mask_nulls, _CALL), call=_CALL)

    def _taken(self, rows: Rows) -> Any:
        try:
            return self.dataset.take(as_positions(rows), columns=self.columns)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # which lance raises for damage, and is no Exception
                raise
            raise StorageError(str(error)) from error

    def kept(self, filter: str) -> npt.NDArray[np.int64]:
        """The numbers of the rows for which an expression of SQL is true.

        Raises:
            InvalidArgumentError: it does not fit the columns.
        """
        with by_library(f"{_CALL}(filter={filter!r}) does not fit {self.dataset.uri!r}", InvalidArgumentError):
            found = self.dataset.scanner(columns={"selected": filter}).to_table()["selected"]
            return np.flatnonzero(found.fill_null(False).to_numpy())

    def spec(self, name: str) -> Any:
        return spec_of(self.dataset.schema.empty_table().select(self.columns), self.mask_nulls, _CALL)
