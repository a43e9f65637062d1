"""Lists of objects, and maps: columns whose rows are arrays of Python's own values.

| in the table                              | an entry of a row                                                   |
|-------------------------------------------|---------------------------------------------------------------------|
| list of structs                           | a dictionary                                                        |
| map                                       | a pair (key, value): `dict(row["x"])` makes a dictionary of a row   |
| lists and structs within those            | lists and dictionaries                                              |
| numbers, strings, bytes, times within     | Python's numbers, strings and bytes, NumPy's times                  |
| a null anywhere within                    | None                                                                |
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Objects:
    """A column as Arrow holds it. `np.asarray` makes new rows each time, so that changes to some reach no others.

    Args:
        array: lists of objects, or maps, without nulls.
    """

    dtype = np.dtype(object)

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    @property
    def shape(self) -> tuple[int]:
        """One axis, as of all columns of arrays that may differ in length."""
        return (len(self._array),)

    @property
    def nbytes(self) -> int:
        """The bytes of Arrow's values."""
        return int(self._array.nbytes)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> "Objects":
        return Objects(self._array[rows] if isinstance(rows, slice) else self._array.take(pa.array(rows)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        rows = [np.fromiter(row, object, len(row)) for row in _values(self._array)]
        return np.fromiter(rows, object, len(rows))


def holds_objects(kind: pa.DataType) -> bool:
    """True for lists of structs, also within lists, and for maps."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds_objects(kind.storage_type)
    if pa.types.is_map(kind):
        return True
    return is_list(kind) and (pa.types.is_struct(kind.value_type) or holds_objects(kind.value_type))


def is_list(kind: pa.DataType) -> bool:
    """True for lists of each kind, but not for maps."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def innermost(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of the values within a type that have no others within them."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from innermost(kind.storage_type)
    elif pa.types.is_dictionary(kind):
        yield kind.value_type
    elif pa.types.is_struct(kind) or pa.types.is_map(kind) or is_list(kind):
        for number in range(kind.num_fields):
            yield from innermost(kind.field(number).type)
    else:
        yield kind


def _values(array: pa.Array) -> list[Any]:
    """The values of an array as Python has them, and None for nulls."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        names, columns = [field.name for field in kind], list(map(_values, array.flatten()))
        found: list[Any] = (
            [dict(zip(names, row)) for row in zip(*columns)] if names else [{} for _ in range(len(array))]
        )
    elif pa.types.is_map(kind):
        offsets = array.offsets.to_pylist()
        within = slice(offsets[0], offsets[-1])
        pairs = list(zip(_values(array.keys[within]), _values(array.items[within]), strict=True))
        found = [pairs[start - within.start : end - within.start] for start, end in pairwise(offsets)]
    elif is_list(kind):
        values, ends = _values(array.flatten()), np.cumsum(array.value_lengths().fill_null(0)).tolist()
        found = [values[start:end] for start, end in zip([0, *ends], ends)]
    elif pa.types.is_temporal(kind):
        found = list(array.to_numpy(zero_copy_only=False))
    else:
        return list(array.to_pylist())
    if array.null_count:
        return [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
    return found
