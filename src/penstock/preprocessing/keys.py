"""The keys of a lookup, numbered in order, in memory."""

from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]

# Arrow builds a new hash table in every call, so a Python dictionary is faster for a few values.
_FEW = 64
_SHARE = 8


class MemoryKeys:
    """Distinct keys in an Arrow array, numbered from 0.

    Example:
        >>> import pyarrow as pa
        >>> MemoryKeys(pa.array([30, 10])).find(pa.array([10, 20, 30])).tolist()
        [1, -1, 0]
    """

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, values: pa.Array) -> npt.NDArray[np.integer[Any]]:
        """The number of each value, or -1, in int32 or int64."""
        if len(values) <= max(_FEW, len(self._keys) // _SHARE):
            few = values.to_numpy(zero_copy_only=False).tolist()
            return np.fromiter(map(self._table.get, few, repeat(-1)), np.int64, len(few))
        found = pc.fill_null(pc.index_in(values, value_set=self._keys), -1)
        return found.to_numpy()  # type: ignore[no-any-return]  # Arrow has no types

    def take(self, numbers: Numbers) -> pa.Array:
        """The keys of these numbers."""
        return self._keys.take(pa.array(numbers))

    @cached_property
    def _table(self) -> dict[Any, int]:
        return {key: number for number, key in enumerate(self._keys.to_numpy(zero_copy_only=False).tolist())}

    def __getstate__(self) -> dict[str, Any]:
        return {"_keys": self._keys}
