"""What analyzers learn of the numbers of each key."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.accumulators.accumulator import Accumulator, State
from penstock.accumulators.keyed import KeyedMoments, KeyedQuantiles
from penstock.errors import ElementError
from penstock.transform.columns import Array, texts_of, weights_of
from penstock.transform.learners import Learner, boundaries
from penstock.transform.operations import spread


class LearnQuantilesPerKey(Learner):
    """The boundaries of the buckets of each key."""

    accumulator: KeyedQuantiles

    def empty(self) -> KeyedQuantiles:
        return KeyedQuantiles()

    def add(self, column: Any, key: Any, weights: Any = None) -> None:
        self.numbers(column)
        values, names, *given = spread("bucketize_per_key", column, key, *([] if weights is None else [weights]))
        heavy = [weights_of("bucketize_per_key", part) for part in given]
        self.accumulator.add(values, texts_of(names), *heavy)

    def result(self, assets: Path) -> tuple[Any, ...]:
        buckets = self.arguments["num_buckets"]
        found = self.accumulator.result()
        rows = [boundaries(quantiles, buckets) for quantiles in found.values()]
        return pa.array(list(found), pa.large_binary()), np.array(rows, np.float32).reshape(len(rows), buckets - 1)


class KeyedPlaces(Accumulator):
    """The moments of each key, for each position of an element."""

    def __init__(self) -> None:
        self.places: list[KeyedMoments] = []

    def add(self, values: Array, keys: pa.LargeBinaryArray) -> None:
        """Add a row for each element, with a column for each position, and the key of each row."""
        self.places = self.places or [KeyedMoments() for _ in range(values.shape[1])]
        for number, place in enumerate(self.places):
            place.add(values[:, number], keys)

    def merge(self, other: "KeyedPlaces") -> None:
        self.places = self.places or [KeyedMoments() for _ in other.places]
        for mine, others in zip(self.places, other.places, strict=True):
            mine.merge(others)

    def result(self) -> tuple[pa.LargeBinaryArray, dict[str, Array]]:
        """The keys in order, and their mean, variance, least and most: a row for each, a column for each position."""
        found = [place.result() for place in self.places or [KeyedMoments()]]
        names = ("mean", "variance", "least", "most")
        return found[0][0], {name: np.stack([numbers[name] for _, numbers in found], axis=1) for name in names}

    def state(self) -> State:
        return {"places": [place.state() for place in self.places]}

    def load(self, state: State) -> None:
        self.places = [KeyedMoments() for _ in state["places"]]
        for place, part in zip(self.places, state["places"], strict=True):
            place.load(part)


class LearnMomentsPerKey(Learner):
    """Mean, variance, smallest and largest number of each key."""

    accumulator: KeyedPlaces

    def empty(self) -> KeyedPlaces:
        return KeyedPlaces()

    def add(self, column: Any, key: Any) -> None:
        values = self.numbers(column)
        if not self.elementwise:
            values, key = spread("per key", column, key)
        names = texts_of(key)
        if len(names) != len(values):
            raise ElementError(f"per key: {len(values)} rows have {len(names)} keys: give a key for each row")
        self.accumulator.add(values.reshape(len(names), -1), names)

    def result(self, assets: Path) -> tuple[Any, ...]:
        keys, found = self.accumulator.result()
        dtype = self.float_dtype()
        columns = slice(None) if self.elementwise else 0
        return keys, *(found[name][:, columns].astype(dtype) for name in ("mean", "variance", "least", "most"))
