"""Dtypes as plain data: in messages of the data service, and in states."""

from typing import Any

import numpy as np


def dtype_to_data(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data."""
    if dtype.kind == "T":
        return "T"
    # Extension dtypes such as bfloat16 have a name that NumPy knows, and a `str` that says nothing.
    return dtype.name if dtype.isbuiltin == 2 else np.lib.format.dtype_to_descr(dtype)


def dtype_of_data(data: Any) -> np.dtype[Any]:
    """The dtype that `dtype_to_data` wrote, also where JSON has made lists of its tuples.

    Raises:
        TypeError, ValueError: this process does not know it.
    """
    if data == "T":
        return np.dtypes.StringDType()
    return np.dtype(data) if isinstance(data, str) else np.lib.format.descr_to_dtype(_fields(data))


def _fields(data: Any) -> Any:
    """A structured dtype's fields with the tuples that lists have become on the way."""
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], (list, tuple)):
        return [tuple(_fields(part) if isinstance(part, list) else part for part in field) for field in data]
    return tuple(data) if isinstance(data, list) else data
