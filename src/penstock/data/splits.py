"""The parts of `split`: which rows belong to each, by their positions or by a hash of their keys."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from penstock.data.block import Column
from penstock.errors import InvalidTypeError
from penstock.rng import mix, permuted
from penstock.structure import leaf_of

_HASHES = 1 << 64


def parts_by_position(fractions: Sequence[float], rows: int, seed: int | None) -> list[range | Column]:
    """Return the positions of each part, which rise: consecutive ones, or with a seed those drawn by it."""
    edges = [0, *(round(rows * share) for share in accumulate(fractions[:-1])), rows]
    if seed is None:
        return [range(start, stop) for start, stop in pairwise(edges)]
    order = permuted(mix(seed), rows, range(rows))
    return [_short(np.sort(order[start:stop]), rows) for start, stop in pairwise(edges)]


def parts_of_numbers(count: int, numbers: Column) -> list[range | Column]:
    """Return the positions of each part, given the number of the part of each row."""
    return [_short(np.flatnonzero(numbers == part), len(numbers)) for part in range(count)]


def _short(positions: Column, rows: int) -> Column:
    """The positions in as few bytes as those of so many rows need."""
    return positions.astype(np.min_scalar_type(rows))


def part_of_key(fractions: Sequence[float], key: Callable[..., Any] | str, seed: int | None) -> Callable[..., int]:
    """Return a function that gives the number of a row's part.

    A change of it would move rows from one part to another: the hash is that of BLAKE2b, of the key's text in UTF-8.
    """
    edges = [round(_HASHES * share) for share in accumulate(fractions[:-1])]
    salt = b"" if seed is None else mix(seed).to_bytes(8)

    def part_of(*row: Any) -> int:
        found = leaf_of(f"split(key={key!r})", row[0], key) if isinstance(key, str) else key(*row)
        if isinstance(found, (int, np.integer)):
            found = str(int(found))
        if not isinstance(found, (str, bytes)):
            raise InvalidTypeError(
                f"split(key=...) takes keys that are strings, bytes or integers, got {found!r:.200}: join several in a "
                'string, as f"{user}/{day}"'
            )
        data = found.encode() if isinstance(found, str) else found
        return bisect_right(edges, int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=salt).digest()))

    return part_of
