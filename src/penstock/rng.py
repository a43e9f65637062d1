"""Randomness as a pure function.

Nothing here has a state, so every order and every number can be computed again from its key.

The one primitive is the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014, figure 16; constants of variant 13 by David Stafford). Keys are chains of it, a random order
is a sort by it, and an order too long to be sorted is a Feistel network of it (Luby and Rackoff, 1988) walked until it
falls inside the range (Black and Rogaway, 2002).
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.positions import as_positions

Indices = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SORTED_LIMIT = 1 << 17
_SHORT = 16
_FEISTEL_ROUNDS = 6
_TABLE_BITS = 32
"""Up to this many bits per word, the hashes of all halves are kept in a table: 3 MB at most."""
_CELLS_EACH = 8
"""How many cells a table has for each number that it finds."""
_PIECE = 1 << 14
"""How many positions are processed at a time, so that their halves stay in the processor's cache."""


def draw_seed() -> int:
    """A new seed from the operating system, small enough to be exact in JSON readers that only know doubles."""
    return int.from_bytes(os.urandom(7)) >> 3


class DrawnSeed:
    """A seed that was drawn when something was made, and that all who hold this object share.

    Attributes:
        seed: the seed; a state that is restored puts its own here.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = draw_seed() if seed is None else seed

    def __reduce__(self) -> tuple[type["DrawnSeed"], tuple[int]]:
        return DrawnSeed, (self.seed,)


def mix(*words: int) -> int:
    """One 64-bit key from any number of integers; the order of the integers matters.

    Example:
        >>> mix(1, 2) == mix(1, 2), mix(1, 2) == mix(2, 1)
        (True, False)
    """
    key = 0
    for word in words:
        key = _finalise((key ^ (word & _MASK)) + _GOLDEN & _MASK)
        key = _finalise(key + (word >> 64 & _MASK) & _MASK) if word >> 64 > 0 else key
    return key


def _finalise(word: int) -> int:
    word = (word ^ (word >> 30)) * _FIRST & _MASK
    word = (word ^ (word >> 27)) * _SECOND & _MASK
    return word ^ (word >> 31)


def hash_positions(key: int, positions: range | npt.ArrayLike) -> _Words:
    """64 random bits for each position."""
    return _hash(key, as_positions(positions).astype(np.uint64))


def _hash(key: int, words: _Words) -> _Words:
    """The hash of every word, in place."""
    words += np.uint64(1)
    words *= np.uint64(_GOLDEN)
    words ^= np.uint64(key)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def uniform_positions(key: int, positions: range | npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each position, with the 53 bits that a double holds."""
    return (hash_positions(key, positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_position(key: int, position: int) -> float:
    """Variant of `uniform_positions` for one position from 0 on, without an array, which costs ten times as much."""
    return (_finalise((position + 1) * _GOLDEN & _MASK ^ key) >> 11) * 2.0**-53


class Shares:
    """Divides [0, 1) among numbers by their weights.

    A table of many more cells than there are numbers says where the search for a number begins, which is nearly always
    where it ends: a search by halves costs more with every number, since no processor can foresee its steps.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._edges = np.cumsum(np.asarray(weights, np.float64))
        self._whole = self._edges[-1]
        self._cells = 1 << (_CELLS_EACH * len(weights)).bit_length()
        self._first = self._found(np.arange(self._cells) / self._cells * self._whole)

    def _found(self, points: npt.NDArray[np.float64]) -> Indices:
        return np.searchsorted(self._edges, points, side="right").astype(np.int64)

    def at(self, places: npt.NDArray[np.float64]) -> Indices:
        """The number to whose share each place in [0, 1) belongs."""
        points = places * self._whole
        numbers = self._first.take((places * self._cells).astype(np.int64))
        behind = (self._edges.take(numbers, mode="clip") <= points).nonzero()[0]
        numbers[behind] = self._found(points[behind])
        return numbers


def permuted(key: int, length: int, positions: range | npt.ArrayLike) -> Indices:
    """Return the entries at these positions of a random order of `range(length)`.

    Up to 131,072 every order is equally likely: it is sorted once and kept for the next call. Longer orders come from a
    keyed permutation that needs no memory and is entered anywhere at the same cost.

    Example:
        >>> sorted(permuted(key=7, length=5, positions=range(5)).tolist())
        [0, 1, 2, 3, 4]
    """
    if length <= _SORTED_LIMIT:
        order = _sorted_order(key, length)
        if isinstance(positions, range) and positions.step == 1:
            return order[positions.start : positions.stop]
        return order.take(as_positions(positions))
    return _feistel(key, length, as_positions(positions))


@lru_cache(maxsize=16)
def _sorted_order(key: int, length: int) -> Indices:
    order = _short_order(key, length) if length <= _SHORT else _long_order(key, length)
    order.flags.writeable = False
    return order


def _short_order(key: int, length: int) -> Indices:
    """Variant of `_long_order`, without arrays, which cost more than their few numbers."""
    if length <= 1:
        return np.zeros(length, np.int64)
    row_bits = (1 << length.bit_length()) - 1
    words = [_finalise((row + 1) * _GOLDEN & _MASK ^ key) & ~row_bits | row for row in range(length)]
    return np.array([word & row_bits for word in sorted(words)])


def _long_order(key: int, length: int) -> Indices:
    # The number of a row takes the low bits of its hash: sorting values is far faster than sorting an index by them.
    row_bits = np.uint64((1 << length.bit_length()) - 1)
    words = (hash_positions(key, range(length)) & ~row_bits) | np.arange(length, dtype=np.uint64)
    words.sort()
    return (words & row_bits).astype(np.int64)


def _feistel(key: int, length: int, positions: Indices) -> Indices:
    """An alternating Feistel network over the smallest power of two that holds `length`.

    It is walked until it falls inside.
    """
    network = _network(key, (length - 1).bit_length())
    result = network.once(positions)
    outside = np.flatnonzero(result >= length)
    while outside.size:
        moved = network.once(result[outside])
        result[outside] = moved
        outside = outside[moved >= length]
    return result


class _Network:
    """One permutation of the words of `bits` bits: each half is changed in turn by a hash of the other."""

    def __init__(self, key: int, bits: int) -> None:
        self._low_bits = bits // 2
        self._masks = ((1 << (bits - bits // 2)) - 1, (1 << (bits // 2)) - 1)
        self._keys = [mix(key, number) for number in range(_FEISTEL_ROUNDS)]
        # A half has few values where the words are not huge: their hashes are computed once.
        # That takes as long as the first numbers by themselves, so it is done when that number was asked for.
        self._tables: list[Indices] | None = None
        self._until_tables = self._masks[0] + 1 if bits <= _TABLE_BITS else math.inf

    def _all_hashes(self) -> list[Indices]:
        return [self._hashes(number, np.arange(self._masks[1 - number % 2] + 1)) for number in range(_FEISTEL_ROUNDS)]

    def _hashes(self, number: int, halves: Indices) -> Indices:
        """Return the change of the other half in a round."""
        return _hash(self._keys[number], halves.astype(np.uint64)).view(np.int64) & self._masks[number % 2]

    def once(self, words: Indices) -> Indices:
        """The words at these places of the permutation."""
        self._until_tables -= len(words)
        if self._until_tables <= 0 and self._tables is None:
            self._tables = self._all_hashes()
        if len(words) <= _PIECE:
            return self._once(words)
        found = np.empty_like(words)
        for start in range(0, len(words), _PIECE):
            found[start : start + _PIECE] = self._once(words[start : start + _PIECE])
        return found

    def _once(self, words: Indices) -> Indices:
        halves = [words >> self._low_bits, words & self._masks[1]]
        change = np.empty_like(words)
        for number in range(_FEISTEL_ROUNDS):
            other = halves[1 - number % 2]
            if self._tables is None:
                change = self._hashes(number, other)
            else:  # a half is always in its table: nothing has to be checked
                self._tables[number].take(other, out=change, mode="clip")
            halves[number % 2] ^= change
        high, low = halves
        high <<= self._low_bits
        high |= low
        return high


@lru_cache(maxsize=16)
def _network(key: int, bits: int) -> _Network:
    return _Network(key, bits)
