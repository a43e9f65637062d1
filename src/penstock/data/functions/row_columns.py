"""Results of several rows as one array for each leaf, which is how they cross between processes.

Pickling the arrays of each row takes longer than all else that a row costs on its way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.structure import Structure, flatten, quick_leaves


@dataclass(frozen=True)
class RowColumns:
    """Results that are alike.

    Attributes:
        structure: of each.
        columns: for each leaf an array of all rows, or the list of their values.
    """

    structure: Structure
    columns: list[Any]

    def rows(self) -> Iterable[Any]:
        """The results as they were; their arrays are views of the columns."""
        if self.structure.kind == "leaf":
            return self.columns[0]  # type: ignore[no-any-return]  # an array or a list
        leaves = zip(*self.columns, strict=True)
        return leaves if self.structure.is_flat_tuple else map(self.structure.unflatten, leaves)


def as_columns(results: Sequence[Any]) -> RowColumns | None:
    """The results as columns; None where they are not alike, or not flat."""
    if not results:
        return None
    _, structure = flatten(results[0])
    if not structure.is_flat or structure.leaf_count == 0:
        return None
    leaves = list(map(quick_leaves(structure), results))
    if None in leaves:
        return None
    return RowColumns(structure, [_column_of(values) for values in zip(*leaves, strict=True)])


def _column_of(values: tuple[Any, ...]) -> Any:
    """An array whose entries are these values again; a list where there is none."""
    kind, first = type(values[0]), values[0]
    array = kind is np.ndarray and first.ndim > 0
    if not array and not issubclass(kind, np.number | np.bool_):
        return list(values)
    dtype, shape = first.dtype, first.shape
    if dtype.kind not in "biufc" or any(
        type(value) is not kind or value.dtype is not dtype or value.shape != shape for value in values
    ):
        return list(values)
    return np.stack(values, dtype=dtype) if array else np.array(values, dtype)
