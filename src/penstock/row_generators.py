"""Generators of NumPy for single rows, keyed by position: counter-based Philox (Salmon et al., SC 2011).

What a generator gives first is a function of its key and its position. For many rows it is computed here by array
arithmetic, and is bit for bit what NumPy's own generator gives.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.positions import as_positions

_Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_ROUNDS = 10
_WORDS_AT_ONCE = 4
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_FACTORS_LOW, _FACTORS_HIGH = _FACTORS & _LOW_HALF, _FACTORS >> _HALF
# Below this number of rows, NumPy's generators, set to one row after the other, are faster.
_MANY_ROWS = 40


class RowGenerators:
    """The generators of the rows at some positions.

    Iterating gives one `numpy.random.Generator` for each row. It is the same object, set to the start of that row's own
    stream of random numbers: it is valid until the next is taken.

    Args:
        key: that of all rows, 64 bits.
        positions: of the rows; each has separate numbers.
    """

    def __init__(self, key: int, positions: range | npt.ArrayLike) -> None:
        self._key = key
        self._positions = as_positions(positions)

    def __iter__(self) -> Iterator["np.random.Generator"]:  # evaluated, it would import numpy.random
        bits = np.random.Philox(key=self._key)
        generator = np.random.Generator(bits)
        state: Any = bits.state
        for position in self._positions.tolist():
            # Word 2 of the counter: 2**128 draws lie between two positions.
            state["state"]["counter"][2] = position
            bits.state = state
            yield generator

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return the first result of `random(count)` of each row's generator: an array of shape (rows, count).

        Example:
            >>> rows = RowGenerators(key=7, positions=range(100))
            >>> rows.uniform(2).tolist() == [generator.random(2).tolist() for generator in rows]
            True
        """
        rows = len(self._positions)
        if rows < _MANY_ROWS:
            return np.array([generator.random(count) for generator in self]).reshape(rows, count)
        # NumPy counts on before it draws, so the first number comes from counter 1.
        counters = np.arange(1, -(-count // _WORDS_AT_ONCE) + 1, dtype=np.uint64)
        words = _philox(self._key, np.tile(counters, rows), np.repeat(self._positions, len(counters)))
        return (words.reshape(rows, -1)[:, :count] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _philox(key: int, counters: _Words, positions: npt.NDArray[np.int64]) -> _Words:
    """Philox4x64-10 of (counter, 0, position, 0): four words for each, as an array of shape (n, 4)."""
    # Words 0 and 2 stand together, and so do 1 and 3: each round does to both the same.
    even = np.stack([counters, positions.astype(np.uint64)])
    odd = np.zeros_like(even)
    low, high, cross, carry = (np.empty_like(even) for _ in range(4))
    for number in range(_ROUNDS):
        # The high half of a product of 64 bits by 64 bits, from four products of 32 by 32.
        np.bitwise_and(even, _LOW_HALF, out=low)
        np.right_shift(even, _HALF, out=high)
        np.multiply(low, _FACTORS_LOW, out=cross)
        cross >>= _HALF
        np.multiply(high, _FACTORS_LOW, out=carry)
        cross += carry
        low *= _FACTORS_HIGH
        np.bitwise_and(cross, _LOW_HALF, out=carry)
        low += carry
        high *= _FACTORS_HIGH
        cross >>= _HALF
        high += cross
        low >>= _HALF
        high += low
        np.multiply(even, _FACTORS, out=low)
        np.bitwise_xor(high[::-1], odd, out=even)
        even ^= _round_key(key, number)
        odd[...] = low[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]], axis=1)


def _round_key(key: int, number: int) -> _Words:
    return np.array([[key + number * _WEYL[0] & _MASK], [number * _WEYL[1] & _MASK]], np.uint64)
