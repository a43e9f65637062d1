"""Methods that choose elements by position, and keep them."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.data.methods.base import Element, Methods, as_dataset, options_of, user_site
from penstock.data.methods.tensorflow import DATASET
from penstock.data.operators.cardinality import AssertCardinality
from penstock.data.operators.combine import Concatenate, check_one_kind
from penstock.data.operators.keep import Cache, Kept, Prefetch
from penstock.data.operators.order import EVERYTHING, Enumerate, Repeat, Shard, ShardHint, Skip, Take
from penstock.data.operators.sequence import Unique
from penstock.data.operators.shuffle import Shuffle
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    Hint,
    check_flag,
    check_integer,
)
from penstock.paths import local_path
from penstock.rng import DrawnSeed

if TYPE_CHECKING:
    from penstock.data.dataset import Dataset


@DATASET
class OrderMethods(Methods[Element]):
    """shuffle, repeat, take, skip, shard, concatenate, enumerate, assert_cardinality, unique, cache, prefetch."""

    def shuffle(
        self, buffer_size: int | None = None, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> "Dataset[Element]":
        """The elements in a random order, none of them more than `buffer_size` - 1 places early.

        A buffer as large as the dataset gives a full shuffle. Over what can be read by index only indices move: a full
        shuffle costs 8 bytes a row or less. The order is a function of (seed, epoch, position).

        Args:
            buffer_size: at least 1; 1 changes nothing. None means the whole dataset, where its rows are read by index;
                `ps.UNKNOWN_CARDINALITY` means the whole dataset in any case, and over a stream holds all of it.
            seed: of the order; without one the dataset's seed is used.
            reshuffle_each_iteration: another order in every epoch. Otherwise, where neither this nor the dataset has a
                seed, one is drawn now: all datasets that are made of this one have the same order, so that `take` and
                `skip` divide it.

        Raises:
            InvalidArgumentError: `buffer_size` below 1; or None over a stream or an endless dataset.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.Dataset.range(6).shuffle(seed=1)
            >>> [int(x) for x in dataset], [int(x) for x in dataset]
            ([5, 4, 2, 1, 0, 3], [0, 5, 4, 1, 2, 3])
        """
        if buffer_size is None:
            buffer_size = self._rows_by_index()
        size = EVERYTHING if buffer_size == UNKNOWN_CARDINALITY else buffer_size
        size = check_integer("shuffle", "buffer_size", size, minimum=1)
        if seed is not None:
            check_integer("shuffle", "seed", seed, minimum=0)
        check_flag("shuffle", "reshuffle_each_iteration", reshuffle_each_iteration)
        drawn = DrawnSeed() if seed is None and not reshuffle_each_iteration else None
        return self._then(Shuffle(self.node, size, seed, reshuffle_each_iteration, drawn=drawn, site=user_site()))

    def _rows_by_index(self) -> int:
        """How many rows a shuffle of everything permutes, at least 1."""
        if not self.node.indexable or self.node.cardinality < 0:
            raise InvalidArgumentError(
                "shuffle without a buffer_size is for datasets of known length whose rows are read by index, and "
                f"{self.node.where()} is {'a stream' if not self.node.indexable else 'endless'}: give the number of "
                "rows to hold, shuffle before this step, or say shuffle(ps.UNKNOWN_CARDINALITY) to hold all rows"
            )
        return max(1, self.node.cardinality)

    def repeat(self, count: int | None = None) -> "Dataset[Element]":
        """The dataset's epochs one after the other: `count` of them, or without end (None or -1).

        An epoch without elements ends it. So a dataset of unknown length, repeated without end, is said to be infinite,
        as in TensorFlow, though it may turn out to be empty; `take(3)` of it has an unknown length.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(2).repeat(3)]
            [0, 1, 0, 1, 0, 1]
        """
        if count is not None:
            count = check_integer("repeat", "count", count, minimum=-1)
        return self._then(Repeat(self.node, None if count == -1 else count, site=user_site()))

    def take(self, count: int) -> "Dataset[Element]":
        """The first `count` elements; all of them for -1.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(9).take(2)]
            [0, 1]
        """
        count = check_integer("take", "count", count, minimum=-1)
        return self._then(Take(self.node, EVERYTHING if count == -1 else count, site=user_site()))

    def skip(self, count: int) -> "Dataset[Element]":
        """All elements but the first `count`; none for -1.

        Raises:
            InvalidArgumentError: `count` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(4).skip(2)]
            [2, 3]
        """
        count = check_integer("skip", "count", count, minimum=-1)
        if count == -1:
            return self.take(0)
        return self._then(Skip(self.node, count, site=user_site()))

    def shard(self, num_shards: int | Hint, index: int | Hint) -> "Dataset[Element]":
        """Every `num_shards`-th element, beginning with element `index`.

        `shard(ps.SHARD_HINT, ps.SHARD_HINT)` marks the place where `ps.AutoShardPolicy.HINT` shards for each worker.

        Raises:
            InvalidArgumentError: `num_shards` below 1, or `index` not in [0, num_shards).

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(7).shard(3, 1)]
            [1, 4]
        """
        if num_shards is index is SHARD_HINT:
            return self._then(ShardHint(self.node, site=user_site()))
        if num_shards is SHARD_HINT or index is SHARD_HINT:
            raise InvalidArgumentError(
                f"shard takes ps.SHARD_HINT in place of both numbers or of none, got shard({num_shards!r}, {index!r})"
            )
        num_shards = check_integer("shard", "num_shards", num_shards, minimum=1)
        index = check_integer("shard", "index", index, minimum=0)
        if index >= num_shards:
            raise InvalidArgumentError(f"shard(index=...) must be below num_shards = {num_shards}, got {index}")
        return self._then(Shard(self.node, num_shards, index, site=user_site()))

    def concatenate(self, dataset: "Methods[Any]") -> "Dataset[Element]":
        """All elements of this dataset, then all of the other.

        Raises:
            InvalidTypeError: not a dataset, or one whose elements are of another structure or dtype. Where only a
                function of yours over an index tells, it is called with the first element.
            ElementError: while iterating, such elements of streams of which only a function of yours could tell.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(2).concatenate(ps.Dataset.range(5, 7))]
            [0, 1, 5, 6]
        """
        second = as_dataset("concatenate", dataset)
        check_one_kind("concatenate", (self._kind(), second._kind()))
        joined = Concatenate(self.node, second.node, site=user_site())
        return self._then(joined, options_of("concatenate", [self, dataset]))

    def enumerate(self, start: int = 0) -> "Dataset[tuple[np.int64, Element]]":
        """(position, element) pairs, counted from `start`.

        Raises:
            InvalidTypeError: `start` is not an integer.

        Example:
            >>> import penstock as ps
            >>> [(int(i), str(x)) for i, x in ps.Dataset.from_tensor_slices(["a", "b"]).enumerate(5)]
            [(5, 'a'), (6, 'b')]
        """
        start = check_integer("enumerate", "start", start, minimum=-EVERYTHING)
        return self._then(Enumerate(self.node, start, site=user_site()))

    def assert_cardinality(self, expected_cardinality: int) -> "Dataset[Element]":
        """The same elements, of which there must be so many: for a length that you know and penstock cannot.

        With it the dataset has a length, and the number of steps of a distributed one is known beforehand.

        Args:
            expected_cardinality: the number of elements, or `ps.INFINITE_CARDINALITY`.

        Raises:
            InvalidArgumentError: a number below -1, or the dataset is known to have another length.
            ElementError: while iterating, at the place of the first element too many, or at the end if some are
                missing; the elements before it are given.

        Example:
            >>> import penstock as ps
            >>> even = ps.Dataset.range(10).filter(lambda x: x % 2 == 0).assert_cardinality(5)
            >>> len(even), len(list(even))
            (5, 5)
        """
        expected = check_integer("assert_cardinality", "expected_cardinality", expected_cardinality, minimum=-1)
        if self.node.cardinality not in (UNKNOWN_CARDINALITY, expected):
            found = "never ends" if self.node.cardinality == INFINITE_CARDINALITY else f"has {self.node.cardinality}"
            wanted = "without end" if expected == INFINITE_CARDINALITY else f"of {expected}"
            raise InvalidArgumentError(f"assert_cardinality: expected elements {wanted}, {self.node.where()} {found}")
        return self._then(AssertCardinality(self.node, expected, site=user_site()))

    def unique(self) -> "Dataset[Element]":
        """The elements that have not come before. It remembers all of them; restoring a state reads the input again.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.from_tensor_slices([1, 2, 1, 3, 2]).unique()]
            [1, 2, 3]
        """
        return self._then(Unique(self.node, site=user_site()))

    def cache(self, filename: str | os.PathLike[str] = "") -> "Dataset[Element]":
        """The elements, kept once they were read: in memory, or in the directory `filename`.

        Over what can be read by index each row is kept when it is first read; over a stream, when a pass reaches the
        end. Every epoch gives the rows of the first, so a shuffle below a cache is frozen: shuffle above it.

        Raises:
            StorageError: while iterating, the directory is being written by another iteration, or holds another number
                of rows.

        Example:
            >>> import penstock as ps
            >>> calls = []
            >>> dataset = ps.Dataset.range(3).map(lambda x: (calls.append(x), x)[1]).cache()
            >>> len(list(dataset)), len(list(dataset)), len(calls)
            (3, 3, 3)
        """
        if not isinstance(filename, (str, os.PathLike)):
            raise InvalidTypeError(f"cache(filename=...) takes a path, got {filename!r}")
        return self._then(Cache(self.node, local_path(filename), kept=Kept(), site=user_site()))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> "Dataset[Element]":
        """The same elements, made by a thread up to `buffer_size` of them before they are asked for.

        Args:
            buffer_size: elements made in advance; 0 means none, `ps.AUTOTUNE` two blocks of a size that pays.

        Raises:
            InvalidArgumentError: `buffer_size` below -1.

        Example:
            >>> import penstock as ps
            >>> [int(x) for x in ps.Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        size = check_integer("prefetch", "buffer_size", buffer_size, minimum=AUTOTUNE)
        return self._then(Prefetch(self.node, size, site=user_site()))
