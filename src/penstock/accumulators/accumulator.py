"""The interface of all accumulators."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
State = dict[str, Any]
"""Arrays, Arrow arrays, plain numbers and strings, and lists and dictionaries of them; see `encoding.py`."""

TEXT = pa.large_binary()


class Accumulator(ABC):
    """A summary of rows that grows by blocks, and merges with a summary of other rows."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what `other` has added."""

    @abstractmethod
    def state(self) -> State:
        """Everything that was added, as plain data; `load` of a new accumulator takes it."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Take the place of what `state` says."""


def elements(column: Array, elementwise: bool) -> Array:
    """A column as numbers along the last axis: one row of them, or one for each position of an element.

    NumPy sums along a contiguous last axis pairwise, along others one by one.

    Example:
        >>> elements(np.array([[1, 2], [3, 4]]), elementwise=True).tolist()
        [[1, 3], [2, 4]]
    """
    if not elementwise or column.ndim == 1:
        return column.reshape(1, -1)
    return np.ascontiguousarray(column.reshape(len(column), -1).T)


def place_shape(column: Array, elementwise: bool) -> tuple[int, ...]:
    """The shape of one result: that of an element, or of a single number."""
    return column.shape[1:] if elementwise else ()
