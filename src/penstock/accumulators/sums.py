"""Sums: of integers exactly, of floats with a second number that holds what rounding has cut off."""

import numpy as np

from penstock.accumulators.accumulator import Accumulator, Array, Doubles, State, elements, place_shape
from penstock.errors import InvalidArgumentError

_MOST = np.iinfo(np.int64).max


class Sum(Accumulator):
    """The sum of all numbers, or of each position of an element.

    Args:
        elementwise: whether each position of an element has its own sum.

    Example:
        >>> numbers = Sum(elementwise=False)
        >>> numbers.add(np.array([2**62, -3])), numbers.add(np.array([-(2**62)]))
        (None, None)
        >>> numbers.result()
        array(-3)
    """

    def __init__(self, elementwise: bool) -> None:
        self._elementwise = elementwise
        self._kind = ""
        self._shape: list[int] = []
        self._exact: list[int] = []
        self._high: Doubles = np.zeros(0)
        self._low: Doubles = np.zeros(0)

    def add(self, column: Array) -> None:
        """Add the numbers of a column: integers, booleans or floats."""
        if len(column) == 0:
            return
        values = elements(column, self._elementwise)
        part = Sum(self._elementwise)
        part._shape = list(place_shape(column, self._elementwise))
        if values.dtype.kind in "iub":
            part._kind = "u" if values.dtype.kind == "u" else "i"
            part._exact = _exact_sums(values)
        else:
            part._kind = "f"
            part._high, part._low = values.sum(axis=-1, dtype=np.float64), np.zeros(len(values))
        self.merge(part)

    def merge(self, other: "Sum") -> None:
        if not other._kind:
            return
        if not self._kind:
            self.load(other.state())
            return
        _check_same(self._kind, self._shape, other._kind, other._shape)
        self._exact = [a + b for a, b in zip(self._exact, other._exact, strict=True)]
        self._high, self._low = _two_sum(self._high, self._low, other._high, other._low)

    def result(self) -> Array:
        """int64, uint64 or float64; 0 where nothing was added.

        Raises:
            InvalidArgumentError: a sum of integers that int64, or uint64 for unsigned ones, cannot hold.
        """
        if self._kind == "f" or not self._kind:
            return np.asarray((self._high + self._low).reshape(self._shape) if self._kind else np.float64(0))
        dtype = np.dtype(np.uint64 if self._kind == "u" else np.int64)
        if any(not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max for value in self._exact):
            raise InvalidArgumentError(f"sum: {max(self._exact, key=abs)} does not fit {dtype}: cast to float64 first")
        return np.array(self._exact, dtype).reshape(self._shape)

    def state(self) -> State:
        exact = [str(value) for value in self._exact]
        return {"kind": self._kind, "shape": self._shape, "exact": exact, "high": self._high, "low": self._low}

    def load(self, state: State) -> None:
        self._kind, self._shape = state["kind"], list(state["shape"])
        self._exact = [int(value) for value in state["exact"]]
        self._high, self._low = state["high"], state["low"]


def _exact_sums(values: Array) -> list[int]:
    """The sums along the last axis as Python's integers; halves of 64 bits are summed apart, so nothing overflows."""
    if values.dtype.itemsize < 8:
        return [int(value) for value in values.sum(axis=-1, dtype=np.int64)]
    high = (values >> 32).sum(axis=-1)
    low = (values & 0xFFFFFFFF).sum(axis=-1)
    return [(int(a) << 32) + int(b) for a, b in zip(high, low, strict=True)]


def _two_sum(high: Doubles, low: Doubles, high2: Doubles, low2: Doubles) -> tuple[Doubles, Doubles]:
    """The sum of two sums, each a number and its rounding error (Knuth's TwoSum)."""
    total = high + high2
    part = total - high
    with np.errstate(invalid="ignore"):
        error = (high - (total - part)) + (high2 - part)
    error = np.where(np.isfinite(error), error, 0.0)
    return total, low + low2 + error


def _check_same(kind: str, shape: list[int], kind2: str, shape2: list[int]) -> None:
    if (kind, shape) != (kind2, shape2):
        raise InvalidArgumentError(
            f"sum: all rows must have one dtype and shape, got {kind} {tuple(shape)} and {kind2} {tuple(shape2)}"
        )
