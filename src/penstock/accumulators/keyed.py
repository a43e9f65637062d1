"""Accumulators of each key: one for all numbers whose rows have that key."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.accumulator import TEXT, Accumulator, Array, Integers, State
from penstock.accumulators.moments import together
from penstock.accumulators.quantiles import Quantiles
from penstock.positions import by_part

_MOMENTS = ("count", "mean", "squares")


class KeyedMoments(Accumulator):
    """The count, mean, variance, smallest and largest of the finite numbers of each key.

    Example:
        >>> keyed = KeyedMoments()
        >>> keyed.add(np.array([1.0, 5.0, 3.0]), pa.array([b"a", b"b", b"a"], TEXT))
        >>> keys, results = keyed.result()
        >>> keys.to_pylist(), results["mean"].tolist(), results["variance"].tolist()
        ([b'a', b'b'], [2.0, 5.0], [1.0, 0.0])
    """

    def __init__(self) -> None:
        self._keys = pa.array([], TEXT)
        self._numbers = _none(0)

    def add(self, values: Array, keys: pa.LargeBinaryArray) -> None:
        """Add numbers, each with its key."""
        encoded = keys.dictionary_encode()
        names, places, doubles = encoded.dictionary, encoded.indices.to_numpy(), values.astype(np.float64, copy=False)
        found = _none(len(names))
        with np.errstate(invalid="ignore"):  # NaN makes those of its key NaN
            np.minimum.at(found["least"], places, doubles)
            np.maximum.at(found["most"], places, doubles)
        finite = np.isfinite(doubles)
        if not finite.all():
            places, doubles = places[finite], doubles[finite]
        found["count"] = np.bincount(places, minlength=len(names)).astype(np.float64)
        found["mean"] = np.bincount(places, doubles, len(names)) / np.maximum(found["count"], 1)
        rest = doubles - found["mean"][places]
        found["squares"] = np.bincount(places, rest * rest, len(names))
        self._take(names, found)

    def _take(self, names: pa.LargeBinaryArray, found: dict[str, Array]) -> None:
        places = _places(self, names)
        numbers = self._numbers
        merged = together([numbers[name][places] for name in _MOMENTS], [found[name] for name in _MOMENTS])
        for name, column in zip(_MOMENTS, merged, strict=True):
            numbers[name][places] = column
        numbers["least"][places] = np.minimum(numbers["least"][places], found["least"])
        numbers["most"][places] = np.maximum(numbers["most"][places], found["most"])

    def grow(self, count: int) -> None:
        """Make room for more keys."""
        more = _none(count)
        self._numbers = {name: np.concatenate([column, more[name]]) for name, column in self._numbers.items()}

    def merge(self, other: "KeyedMoments") -> None:
        self._take(other._keys, other._numbers)

    def result(self) -> tuple[pa.LargeBinaryArray, dict[str, Array]]:
        """The keys in order, and their count, mean, variance, least and most."""
        order = pc.sort_indices(self._keys)
        numbers = {name: column[order.to_numpy()] for name, column in self._numbers.items()}
        numbers["variance"] = numbers.pop("squares") / np.maximum(numbers["count"], 1)
        return self._keys.take(order), numbers

    def state(self) -> State:
        return {"keys": self._keys, "numbers": self._numbers}

    def load(self, state: State) -> None:
        self._keys = state["keys"]
        self._numbers = {name: np.array(column) for name, column in state["numbers"].items()}


class KeyedQuantiles(Accumulator):
    """The quantiles of the numbers of each key.

    Example:
        >>> keyed = KeyedQuantiles()
        >>> keyed.add(np.array([1, 2, 3, 9]), pa.array([b"a", b"a", b"a", b"b"], TEXT))
        >>> keyed.result()[b"a"].result(2).tolist()
        [1, 2, 3]
    """

    def __init__(self) -> None:
        self._quantiles: dict[bytes, Quantiles] = {}

    def add(self, values: Array, keys: pa.LargeBinaryArray, weights: Array | None = None) -> None:
        """Add numbers, each with its key and its weight."""
        encoded = keys.dictionary_encode()
        places = encoded.indices.to_numpy()
        names = encoded.dictionary.to_pylist()
        for number, rows, part in by_part(values, places):
            own = None if weights is None else weights[rows]
            self._quantiles.setdefault(names[number], Quantiles()).add(part, own)

    def merge(self, other: "KeyedQuantiles") -> None:
        for key, quantiles in other._quantiles.items():
            self._quantiles.setdefault(key, Quantiles()).merge(quantiles)

    def result(self) -> dict[bytes, Quantiles]:
        """The quantiles of each key, in the order of the keys."""
        return dict(sorted(self._quantiles.items()))

    def state(self) -> State:
        keys = list(self._quantiles)
        return {"keys": pa.array(keys, TEXT), "quantiles": [self._quantiles[key].state() for key in keys]}

    def load(self, state: State) -> None:
        self._quantiles = {}
        for key, part in zip(state["keys"].to_pylist(), state["quantiles"], strict=True):
            self._quantiles[key] = Quantiles()
            self._quantiles[key].load(part)


def _places(keyed: KeyedMoments, names: pa.LargeBinaryArray) -> Integers:
    """The numbers of these keys; those that are new get the next ones."""
    found = pc.index_in(names, value_set=keyed._keys)
    if found.null_count:
        new = names.filter(found.is_null())
        keyed._keys = pa.concat_arrays([keyed._keys, new])
        keyed.grow(len(new))
        found = pc.index_in(names, value_set=keyed._keys)
    return found.to_numpy().astype(np.int64)  # type: ignore[no-any-return]  # Arrow has no types


def _none(count: int) -> dict[str, Array]:
    """Return the moments of keys without numbers."""
    zeros = {name: np.zeros(count) for name in _MOMENTS}
    return zeros | {"least": np.full(count, np.inf), "most": np.full(count, -np.inf)}
