"""Learners of the numbers of each key."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.accumulators.keyed import KeyedMoments, KeyedQuantiles
from penstock.errors import ElementError
from penstock.transform.columns import texts_of, weights_of
from penstock.transform.learners import Learner, Places, boundaries
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


class LearnMomentsPerKey(Learner):
    """Mean, variance, smallest and largest number of each key."""

    accumulator: Places

    def empty(self) -> Places:
        return Places(KeyedMoments)

    def add(self, column: Any, key: Any) -> None:
        values = self.numbers(column)
        if not self.elementwise:
            values, key = spread("per key", column, key)
        names = texts_of(key)
        if len(names) != len(values):
            raise ElementError(f"per key: {len(values)} rows have {len(names)} keys: give a key for each row")
        wide = values.reshape(len(names), -1)
        self.accumulator.add(wide, [names] * wide.shape[1])

    def result(self, assets: Path) -> tuple[Any, ...]:
        found = [place.result() for place in self.accumulator.places or [KeyedMoments()]]
        names = ("mean", "variance", "least", "most")
        columns = [
            np.stack([numbers[name] for _, numbers in found], axis=1).astype(self.float_dtype()) for name in names
        ]
        return found[0][0], *(column if self.elementwise else column[:, 0] for column in columns)
