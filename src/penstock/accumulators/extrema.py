"""The smallest and the largest number."""

import numpy as np

from penstock.accumulators.accumulator import Accumulator, Array, State, elements, place_shape


class Extrema(Accumulator):
    """The smallest and the largest of all numbers, or of each position of an element.

    Example:
        >>> both = Extrema(elementwise=False)
        >>> both.add(np.array([3, 1])); both.add(np.array([2]))
        >>> [int(x) for x in both.result()]
        [1, 3]
    """

    def __init__(self, elementwise: bool) -> None:
        self._elementwise = elementwise
        self._least: Array | None = None
        self._most: Array | None = None

    def add(self, column: Array) -> None:
        """Add the numbers of a column. A NaN makes the results of its position NaN."""
        if column.size == 0:
            return
        values, shape = elements(column, self._elementwise), place_shape(column, self._elementwise)
        self._take(values.min(axis=-1).reshape(shape), values.max(axis=-1).reshape(shape))

    def _take(self, least: Array, most: Array) -> None:
        self._least = least if self._least is None else np.minimum(self._least, least)
        self._most = most if self._most is None else np.maximum(self._most, most)

    def merge(self, other: "Extrema") -> None:
        if other._least is not None and other._most is not None:
            self._take(other._least, other._most)

    def result(self) -> tuple[Array, Array] | None:
        """The smallest and the largest; None where nothing was added."""
        if self._least is None or self._most is None:
            return None
        return np.asarray(self._least), np.asarray(self._most)

    def state(self) -> State:
        result = self.result()
        return {} if result is None else {"least": result[0], "most": result[1]}

    def load(self, state: State) -> None:
        self._least, self._most = state.get("least"), state.get("most")
