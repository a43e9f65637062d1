"""The order in which a mixture takes the elements of its sources: computed for any position, without a table."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.options import INFINITE_CARDINALITY
from penstock.positions import Indices, as_positions, by_part, shifted
from penstock.rng import mix, uniform_position, uniform_positions

_DEVIATION: Final = 2.0
"""How far the number of a source's elements may be from its share, after any number of elements."""
_WINDOW: Final = 1 << 14
"""The number of elements whose sources are found together, and kept for the next calls."""
_FEW: Final = 16
"""Up to this many elements have their sources found one by one, which takes less time than a window."""

Positions = npt.NDArray[np.int64]
Weights = tuple[float, ...]
Part = tuple[int, Positions, Indices]
"""A source, the places of its elements among those asked for, and their positions in the source."""


@dataclass(frozen=True, eq=False)
class _Split:
    """Divides elements between two groups of sources.

    Element j of the lighter group is one of those from j * `each` to (j + 1) * `each`, chosen at random by the key.
    Where the errors of several splits add up, it is chosen around the middle: after any number of elements each group
    is at most `spread`, which is from a half to 1, above or below its share.
    """

    each: float
    key: int
    lighter: "_Split | int"
    heavier: "_Split | int"

    def chosen(self, numbers: Positions, spread: float) -> Positions:
        """Return the positions of elements of the lighter group."""
        draws = uniform_positions(self.key, numbers) * (2 * spread - 1) + (1 - spread)
        positions: Positions = np.ceil((numbers + draws) * self.each).astype(np.int64) - 1
        least: Positions = np.ceil(numbers * self.each).astype(np.int64)
        return np.maximum(positions, least, out=positions)

    def before(self, position: int, spread: float) -> int:
        """Return the number of elements of the lighter group before a position."""
        number = max(0, int(position / self.each) - 1)  # that of the first one which may come after it
        while True:
            draw = uniform_position(self.key, number) * (2 * spread - 1) + (1 - spread)
            if max(math.ceil((number + draw) * self.each) - 1, math.ceil(number * self.each)) >= position:
                return number
            number += 1

    def before_each(self, positions: Positions, spread: float) -> Positions:
        """Variant of `before` for several positions."""
        numbers = np.maximum(0, (positions / self.each).astype(np.int64) - 1)
        found = numbers.copy()
        for later in range(3):
            found += self.chosen(numbers + later, spread) < positions
        return found


class Turns:
    """Elements divided among sources by weight: each source is at most two elements from its share at any position."""

    def __init__(self, weights: Weights, key: int) -> None:
        self._whole = sum(weights)
        self._weights = weights
        numbers = count()
        # Huffman's tree: then a source gets few of the elements by which the splits above it are wrong.
        groups: list[Any] = [
            (weight, next(numbers), source, {source: 0.0}) for source, weight in enumerate(weights) if weight > 0
        ]
        heapify(groups)
        while len(groups) > 1:
            light, heavy = heappop(groups), heappop(groups)
            weight, number = light[0] + heavy[0], next(numbers)
            split = _Split(weight / light[0], mix(key, number), light[2], heavy[2])
            errors = {one: error + weights[one] / part[0] for part in (light, heavy) for one, error in part[3].items()}
            heappush(groups, (weight, number, split, errors))
        self._root: _Split | int = groups[0][2]
        self._spread = min(1.0, _DEVIATION / max(1.0, *groups[0][3].values()))

    def parts(self, indices: Indices) -> Iterator[Part]:
        """Divide the elements at these positions; a range, if it is one, has no gaps."""
        left: list[tuple[_Split | int, Positions, Indices]] = [(self._root, np.arange(len(indices)), indices)]
        while left:
            group, places, own = left.pop()
            if isinstance(group, int):
                yield group, places, own
                continue
            taken, kept, lighter, heavier = self._divided(group, own)
            left += [(group.heavier, places[kept], heavier)] if len(heavier) else []
            left += [(group.lighter, places[taken], lighter)] if len(lighter) else []

    def _divided(self, split: _Split, own: Indices) -> tuple[Any, Any, Indices, Indices]:
        """Return which elements of a split are the lighter and the heavier group's, and their positions in these."""
        if isinstance(own, range):  # then they have no gaps in each group
            first, last = (split.before(position, self._spread) for position in (own.start, own.stop))
            chosen = split.chosen(np.arange(first, last), self._spread) - own.start
            kept = np.ones(len(own), np.bool_)
            kept[chosen] = False
            return chosen, kept, range(first, last), range(own.start - first, own.stop - last)
        before = split.before_each(own, self._spread)
        taken = split.before_each(own + 1, self._spread) > before
        return taken, ~taken, before[taken], (own - before)[~taken]

    def at(self, position: int) -> tuple[int, int]:
        """Return the source of one element, and its position there."""
        group = self._root
        while not isinstance(group, int):
            before, after = (group.before(position + by, self._spread) for by in (0, 1))
            group, position = (group.lighter, before) if after > before else (group.heavier, position - before)
        return group, position

    def counts(self, position: int) -> dict[int, int]:
        """Return the number of elements of each source before a position."""
        found: dict[int, int] = {}
        left = [(self._root, position)]
        while left:
            group, number = left.pop()
            if isinstance(group, int):
                found[group] = number
            else:
                before = group.before(number, self._spread)
                left += [(group.lighter, before), (group.heavier, number - before)]
        return found

    def first_with(self, elements: dict[int, int]) -> int | None:
        """Return the number of elements of all with which one of these sources first has had so many of its own."""
        shares = {one: self._weights[one] / self._whole for one in elements}
        bounds = [((own - 3) / shares[one], (own + 3) / shares[one]) for one, own in elements.items()]
        if not bounds:
            return None
        low, high = max(0, int(min(low for low, _ in bounds))), int(min(high for _, high in bounds)) + 1

        def has(number: int) -> bool:
            counts = self.counts(number)
            return any(counts[one] >= own for one, own in elements.items())

        return low + bisect_left(range(low, high), True, key=has)


@dataclass(frozen=True)
class Start:
    """A position from which on an order is computed, and how many elements of each source come before."""

    position: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class _Segment:
    """The elements from a position on that are divided by the same weights."""

    start: Start
    turns: Turns


@dataclass(frozen=True)
class MixOrder:
    """Order of a mixture: for each element, its source and the number of the element there.

    Attributes:
        lengths: of the sources, or INFINITE_CARDINALITY.
        stages: positions, rising, with the weights from there on.
        seed: of the order.
        stops: whether it ends at the first element for which its source has none; otherwise the others continue.
        start: where it begins.
    """

    lengths: tuple[int, ...]
    stages: tuple[tuple[int, Weights], ...]
    seed: int
    stops: bool
    start: Start

    @property
    def length(self) -> int:
        """The number of elements, or INFINITE_CARDINALITY."""
        return self._segments_and_length[1]

    @cached_property
    def _segments_and_length(self) -> tuple[list[_Segment], int]:
        segments: list[_Segment] = []
        start = self.start
        stage = max([0, *(number for number, (begin, _) in enumerate(self.stages) if begin <= start.position)])
        while True:
            upcoming = self.stages[stage + 1][0] if stage + 1 < len(self.stages) else None
            weights, left = self._live(stage, start)
            if not any(weights):  # the sources of this stage have ended
                if upcoming is None:
                    return segments, start.position
                stage += 1
                continue
            turns = Turns(weights, mix(self.seed, start.position))
            segments.append(_Segment(start, turns))
            end = turns.first_with(left)
            ends = end is not None and (upcoming is None or start.position + end <= upcoming)
            if ends and self.stops:
                assert end is not None
                return segments, start.position + end - 1
            if not ends:
                if upcoming is None:
                    return segments, INFINITE_CARDINALITY
                stage += 1
                end = max(0, upcoming - start.position)
            start = _later(segments[-1], start.position + (end or 0))

    def _live(self, stage: int, start: Start) -> tuple[Weights, dict[int, int]]:
        """Return the weights of sources that have elements left, and with how many elements more each ends."""
        weights = list(self.stages[stage][1])
        left = {}
        for source, length in enumerate(self.lengths):
            if length != INFINITE_CARDINALITY and weights[source] > 0:
                rows = length - start.counts[source] + self.stops
                if rows > 0:
                    left[source] = rows
                else:
                    weights[source] = 0.0
        return tuple(weights), left

    @cached_property
    def _segments(self) -> list[_Segment]:
        return self._segments_and_length[0]

    @cached_property
    def _begins(self) -> Positions:
        return np.array([segment.start.position for segment in self._segments])

    def _segment(self, position: int) -> _Segment:
        return self._segments[int(np.searchsorted(self._begins, position, side="right")) - 1]

    def parts(self, indices: Indices) -> Iterator[Part]:
        """Divide the elements at these positions."""
        if len(indices) <= _FEW:
            found = [self.at(int(position)) for position in indices]
            sources, own = np.array([source for source, _ in found]), np.array([row for _, row in found])
        else:
            positions = as_positions(indices)
            low, high = int(positions.min()), int(positions.max())
            if high - low > 8 * len(positions) + _WINDOW:
                yield from self._parts(positions)
                return
            first, last = low // _WINDOW, high // _WINDOW
            tables = [self._window(number) for number in range(first, last + 1)]
            sources, own = (np.concatenate(table)[positions - first * _WINDOW] for table in zip(*tables, strict=True))
        dense = isinstance(indices, range) and indices.step == 1
        for source, places, rows in by_part(own, sources):
            yield source, places, range(int(rows[0]), int(rows[-1]) + 1) if dense else rows

    @cached_property
    def _window(self) -> Any:
        return lru_cache(maxsize=4)(self._table)

    def _table(self, number: int) -> tuple[Positions, Positions]:
        """Return the sources of a window of elements, and their positions there."""
        begin, end = number * _WINDOW, (number + 1) * _WINDOW
        begin = max(begin, self.start.position)
        sources, own = np.zeros((2, _WINDOW), np.int64)
        if self.length != INFINITE_CARDINALITY:
            end = min(end, self.length)
        for source, places, rows in self._parts(range(begin, end)):
            places += begin - number * _WINDOW
            sources[places], own[places] = source, as_positions(rows)
        return sources, own

    def _parts(self, indices: Indices) -> Iterator[Part]:
        numbers = np.searchsorted(self._begins, as_positions(indices), side="right") - 1
        for number, which, positions in by_part(indices, numbers):
            segment = self._segments[number]
            for source, places, rows in segment.turns.parts(shifted(positions, -segment.start.position)):
                yield source, which[places], shifted(rows, segment.start.counts[source])

    def at(self, position: int) -> tuple[int, int]:
        """Return the source of the element at a position, and its position there."""
        segment = self._segment(position)
        source, row = segment.turns.at(position - segment.start.position)
        return source, row + segment.start.counts[source]

    def counts(self, position: int) -> tuple[int, ...]:
        """Return the number of elements of each source before a position."""
        return _later(self._segment(position), position).counts if self._segments else self.start.counts


def _later(segment: _Segment, position: int) -> Start:
    """Return the start of a segment moved to a position in it."""
    more = segment.turns.counts(position - segment.start.position)
    return Start(position, tuple(had + more.get(source, 0) for source, had in enumerate(segment.start.counts)))
