"""Learners of analyzers: an accumulator of each kind, and its results in tft's shapes and dtypes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.accumulators.accumulator import Accumulator, State
from penstock.accumulators.covariance import Covariance
from penstock.accumulators.extrema import Extrema
from penstock.accumulators.keyed import KeyedMoments, KeyedQuantiles
from penstock.accumulators.moments import Moments
from penstock.accumulators.quantiles import Quantiles
from penstock.accumulators.sums import Sum
from penstock.errors import ElementError, InvalidTypeError
from penstock.transform.columns import Array, Ragged, is_text, texts_of, weights_of
from penstock.transform.operations import spread
from penstock.transform.term_frequencies import counted_terms
from penstock.transform.tukey import tukey_parameters

SUMS = {"e": "f4", "f": "f4", "d": "f8"}


LEARNERS: dict[str, type["Learner"]] = {}
"""The learners by the names under which graphs hold them."""


class Learner(ABC):
    """Learner of one analyzer: an accumulator that is fed with columns."""

    call: ClassVar[str]
    """The name under which graphs hold it, and errors."""

    _empty: ClassVar[Callable[[bool], Any]]
    """Makes an accumulator of no rows, with a separate result for each position of an element or not."""

    def __init_subclass__(cls, call: str = "", empty: Callable[[bool], Any] | None = None) -> None:
        if empty is not None:
            cls._empty = staticmethod(empty)
        if call:
            cls.call = call
            LEARNERS[call] = cls

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.dtype = ""
        self.shape: list[int] | None = None
        self.accumulator = type(self)._empty(self.elementwise)

    def add(self, *columns: Any) -> None:
        """Learn from a block of rows; by default from the numbers of one column."""
        (column,) = columns
        self.accumulator.add(self.numbers(column))

    @abstractmethod
    def result(self, assets: Path) -> tuple[Any, ...]:
        """Return the learned value; vocabularies are files in the directory `assets`."""

    def merge(self, other: "Learner") -> None:
        """Learn what another one has learned."""
        self.dtype = self.dtype or other.dtype
        self.shape = other.shape if self.shape is None else self.shape
        self.accumulator.merge(other.accumulator)

    def state(self) -> State:
        """Return the learned value as plain data."""
        return {"dtype": self.dtype, "shape": self.shape, "accumulator": self.accumulator.state()}

    def load(self, state: State) -> None:
        """Take the place of what `state` says."""
        self.dtype, self.shape = state["dtype"], state["shape"]
        self.accumulator.load(state["accumulator"])

    @property
    def elementwise(self) -> bool:
        """Return whether each position of an element has a separate result."""
        return bool(self.arguments.get("elementwise"))

    def numbers(self, column: Any) -> Array:
        """The numbers to learn from, of a dense column with its shape, of a ragged one all of them.

        Raises:
            InvalidTypeError: strings, or ragged rows where each position has a result.
        """
        if is_text(column) or (isinstance(column, Ragged) and is_text(column.values)):
            raise InvalidTypeError(f"{self.call} is learned from numbers, got strings")
        if isinstance(column, Ragged) and self.elementwise:
            raise InvalidTypeError(f"{self.call} of each position is learned from rows of one length, got ragged rows")
        values = column.values if isinstance(column, Ragged) else np.asarray(column)
        self.dtype = self.dtype or values.dtype.str
        return values

    def float_dtype(self) -> np.dtype[Any]:
        """The dtype of means and deviations: that of floats, float32 for integers, or the one asked for."""
        wanted = self.arguments.get("dtype")
        found = np.dtype(wanted or self.dtype or "f4")
        return found if found.kind == "f" else np.dtype("f4")


class LearnExtrema(Learner, call="min_and_max", empty=Extrema):
    """The smallest and the largest number."""

    def result(self, assets: Path) -> tuple[Any, ...]:
        found, dtype = self.accumulator.result(), np.dtype(self.dtype or "f4")
        if found is not None:
            return found[0].astype(dtype), found[1].astype(dtype)
        if dtype.kind == "f":
            return np.asarray(np.inf, dtype), np.asarray(-np.inf, dtype)
        most = np.iinfo(dtype).max
        return np.asarray(most, dtype), np.asarray(0 if dtype.kind == "u" else -most, dtype)


class LearnSum(Learner, call="sum", empty=Sum):
    """The sum of all numbers."""

    def result(self, assets: Path) -> tuple[Any, ...]:
        found, dtype = self.accumulator.result(), np.dtype(self.dtype or "f4")
        return (found.astype(SUMS[dtype.char]) if dtype.kind == "f" else found,)


class LearnSize(Learner, call="size", empty=Sum):
    """Number of values."""

    def add(self, column: Any) -> None:
        values = column.values if isinstance(column, Ragged) else column
        self.accumulator.add(np.ones(len(values) if is_text(values) else values.shape, np.int64))

    def result(self, assets: Path) -> tuple[Any, ...]:
        return (self.accumulator.result().astype(np.int64),)


class LearnMoments(Learner, call="mean_and_var", empty=Moments):
    """The mean and the variance of the finite numbers."""

    def result(self, assets: Path) -> tuple[Any, ...]:
        dtype = self.float_dtype()
        return np.asarray(self.accumulator.mean, dtype), np.asarray(self.accumulator.variance, dtype)


class Places(Accumulator):
    """A separate accumulator for each position of an element.

    Args:
        kind: makes one of no rows.
    """

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._kind = kind
        self.places: list[Any] = []

    def add(self, values: Array, weights_or_keys: Sequence[Any] | None = None) -> None:
        """Add a row for each element, with a column for each position; weights or keys are given for each position."""
        self.places = self.places or [self._kind() for _ in range(values.shape[1])]
        for number, place in enumerate(self.places):
            place.add(values[:, number], None if weights_or_keys is None else weights_or_keys[number])

    def merge(self, other: "Places") -> None:
        self.places = self.places or [self._kind() for _ in other.places]
        for mine, others in zip(self.places, other.places, strict=True):
            mine.merge(others)

    def state(self) -> State:
        return {"places": [place.state() for place in self.places]}

    def load(self, state: State) -> None:
        self.places = [self._kind() for _ in state["places"]]
        for place, part in zip(self.places, state["places"], strict=True):
            place.load(part)


class LearnQuantiles(Learner, call="quantiles", empty=lambda _: Places(Quantiles)):
    """The boundaries between buckets of equal weight."""

    def add(self, column: Any, weights: Any = None) -> None:
        values = self.numbers(column)
        heavy = None if weights is None else weights_of("quantiles", spread("quantiles", column, weights)[1])
        wide = values.reshape(len(values), -1) if self.elementwise else values.reshape(-1, 1)
        if wide.size:
            self.accumulator.add(wide, None if heavy is None else list(heavy.reshape(wide.shape).T))

    def result(self, assets: Path) -> tuple[Any, ...]:
        buckets = self.arguments["num_buckets"]
        rows = [boundaries(place, buckets) for place in self.accumulator.places]
        return (np.array(rows, np.float32) if rows else np.zeros((1, buckets - 1), np.float32),)


def boundaries(quantiles: Quantiles, buckets: int) -> Array:
    """Boundaries between buckets; zeros where nothing was learned."""
    found = quantiles.result(buckets)
    return np.zeros(buckets - 1, np.float32) if found is None else found[1:-1].astype(np.float32)


class LearnCovariance(Learner, call="covariance", empty=lambda _: Covariance()):
    """The covariance matrix of vectors, or its largest eigenvectors."""

    def add(self, column: Any) -> None:
        values = self.numbers(column)
        if isinstance(column, Ragged) or values.ndim != 2:
            raise InvalidTypeError(f"covariance and pca take a vector for each row, got shape {values.shape[1:]}")
        self.accumulator.add(values)

    def result(self, assets: Path) -> tuple[Any, ...]:
        return self.accumulator.result().astype(self.arguments["dtype"]), self.accumulator.components(
            self.arguments["output_dim"]
        ).astype(self.arguments["dtype"])


class LearnTukey(Learner, call="tukey", empty=lambda _: Places(Quantiles)):
    """Location, scale and tails of a Tukey HH distribution."""

    def add(self, column: Any) -> None:
        values = self.numbers(column).astype(self.float_dtype(), copy=False)
        values = np.where(np.isfinite(values), values, np.nan)  # as in means, whose scale goes with these
        wide = values.reshape(len(values), -1) if self.elementwise else values.reshape(-1, 1)
        if wide.size:
            self.shape = list(values.shape[1:]) if self.elementwise else []
            self.accumulator.add(wide)

    def result(self, assets: Path) -> tuple[Any, ...]:
        found = [tukey_parameters(*place.l_moments()) for place in self.accumulator.places] or [(0.0, 1.0, 0.0, 0.0)]
        return tuple(np.array(part, self.float_dtype()).reshape(self.shape or []) for part in zip(*found, strict=True))


class LearnHistogram(Learner, call="histogram", empty=lambda _: Sum(elementwise=True)):
    """Numbers of values between boundaries."""

    def add(self, column: Any, borders: Any) -> None:
        values = self.numbers(column).astype(np.float32).reshape(-1)
        # As in tft: between inner boundaries, the left of which belong to the bin before; NaN is in the first one.
        inner = np.asarray(borders, np.float32).reshape(-1)[1:-1]
        bins = np.where(np.isnan(values), 0, np.searchsorted(inner, values, side="left"))
        self.accumulator.add(np.bincount(bins, minlength=len(inner) + 1)[None])

    def result(self, assets: Path) -> tuple[Any, ...]:
        return (self.accumulator.result(),)


class LearnDocumentCounts(Learner, call="document_counts", empty=lambda _: Sum(elementwise=True)):
    """In how many rows each token occurs, and how many rows there are."""

    def add(self, column: Any, vocab_size: Any) -> None:
        lengths, _, terms, _ = counted_terms(column, vocab_size)
        self.dtype = "<i8"
        found = np.bincount(terms, minlength=int(vocab_size))
        self.accumulator.add(np.append(found, len(lengths))[None])

    def result(self, assets: Path) -> tuple[Any, ...]:
        found = self.accumulator.result()
        return (found[:-1], found[-1]) if found.ndim else (np.zeros(0, np.int64), np.int64(0))


class LearnQuantilesPerKey(Learner, call="quantiles_per_key", empty=lambda _: KeyedQuantiles()):
    """The boundaries of the buckets of each key."""

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


class LearnMomentsPerKey(Learner, call="moments_per_key", empty=lambda _: Places(KeyedMoments)):
    """Mean, variance, smallest and largest number of each key."""

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
