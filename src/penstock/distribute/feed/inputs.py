"""Inputs of a distributed dataset: one dataset that the workers divide, or datasets that a function makes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from penstock.data.batches.by_size import balanced
from penstock.data.contents import NodeFacts, facts_of
from penstock.data.dataset import Dataset, iterations_of
from penstock.data.iterator import Iterations, PositionedElements
from penstock.data.listed_names import listings_of, names_of_listings, with_listings
from penstock.data.node import Node, scaled
from penstock.data.operators.expand import Interleave
from penstock.data.operators.grouping import GroupByWindow
from penstock.data.shards import rewritten, without_hints
from penstock.distribute.contexts import InputContext
from penstock.distribute.control.messages import RowShape
from penstock.distribute.feed.options import InputReplicationMode, PartialBatch
from penstock.distribute.feed.shards import (
    StrategyWorkers,
    WorkerShard,
    batch_lengths,
    shard_of_worker,
    sources_of_batches,
)
from penstock.distribute.feed.step_sources import Elements, GlobalBatches, JoinedWorkers, StepSource, WorkerBatches
from penstock.distribute.feed.steps import Layout, Sizes, check_spec
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, AutoShardPolicy
from penstock.sharding import SliceRule
from penstock.structure import flatten


@dataclass(frozen=True)
class Lengths:
    """Number of a worker's own batches, and their rows; only the last may differ.

    Attributes:
        count: the number of batches, or INFINITE_CARDINALITY.
        rows: the rows of each.
        last: the rows of the last one.
    """

    count: int
    rows: int
    last: int

    def rows_of_batch(self, number: int) -> int:
        """The rows of a batch; 0 after the end."""
        if self.count == INFINITE_CARDINALITY or number < self.count - 1:
            return self.rows
        return self.last if number == self.count - 1 else 0


class Inputs(ABC):
    """Inputs of a strategy's replicas."""

    workers: StrategyWorkers
    has_own_data: bool
    """Whether each worker reads different data, so that one worker's batches tell nothing about another's."""
    shard: WorkerShard | None = None
    """What this worker reads of a dataset that the workers divide; None where a function of the user's decides."""
    ahead: bool = True
    """Whether elements may be made before they are asked for."""

    def shards(self) -> list[WorkerShard]:
        """Return what each worker reads of such a dataset; none where a function of the user's decides."""
        return []

    @property
    def drawn(self) -> list[int]:
        """The seeds that were drawn when nodes were made, which this worker would use."""
        return []

    @property
    def listed(self) -> list[list[str]]:
        """The names of files that were listed when the dataset was made, where all workers must read the same ones."""
        return []

    def over_files(self, names: list[list[str]]) -> "Inputs":
        """The same input with these files instead of those that were listed.

        Raises:
            StorageError: one of them cannot be read.
        """
        return self

    def fix_seeds(self, seed: int, drawn: list[int]) -> None:  # noqa: B027  # a function's datasets are each worker's own
        """Use the seeds that all workers have agreed on.

        Args:
            seed: for everything that has no seed, unless the dataset was given one.
            drawn: replace the seeds that were drawn here, also in other datasets that are made of the same nodes.
        """

    def fix_seeds_alone(self) -> None:  # noqa: B027  # as `fix_seeds`
        """Choose seeds if this worker has no channel to the others.

        Raises:
            InvalidArgumentError: the workers would have to draw the same random numbers.
        """

    @abstractmethod
    def open(self) -> StepSource:
        """A new pass over this worker's steps."""

    @property
    @abstractmethod
    def lengths(self) -> Lengths | None:
        """The lengths of this worker's data, where they follow from its operators."""

    def lengths_of_all(self) -> list[Lengths] | None:
        """The lengths of every worker's data, where this worker can know them without asking."""
        return None if self.lengths is None or self.workers.count > 1 else [self.lengths]

    def kinds_of_steps(self, lengths: list[Lengths]) -> Iterator[tuple[int, Sizes]]:
        """The rows of every replica at each kind of step, per worker, and how many neighbours are alike.

        Where some worker's data has no end, the number of the last kind means nothing.
        """
        turns = max(1, self.steps_of(1))
        ends = [self.steps_of(one.count) // turns for one in lengths if one.count != INFINITE_CARDINALITY]
        # Between these batches all are alike.
        edges = sorted({0, *ends, *(max(end - 1, 0) for end in ends)})
        if len(ends) < len(lengths):
            edges.append(edges[-1] + 1)
        for start, stop in pairwise(edges):
            for turn in range(turns):
                yield stop - start, self.sizes_at(lengths, start * turns + turn)

    def steps_with_rows(self, lengths: list[Lengths]) -> int:
        """The number of steps in which some replica gets a row, given every worker's lengths."""
        if any(one.count == INFINITE_CARDINALITY for one in lengths):
            return INFINITE_CARDINALITY
        return sum(count for count, sizes in self.kinds_of_steps(lengths) if any(map(any, sizes)))

    @abstractmethod
    def sizes_at(self, lengths: list[Lengths], step: int) -> Sizes:
        """The rows of every replica at a step, per worker, given every worker's lengths."""

    @abstractmethod
    def steps_of(self, batches: int) -> int:
        """The number of steps that this number of batches makes."""

    def full_steps_of(self, batches: int) -> int:
        """The number of steps that this number of batches fills completely."""
        return self.steps_of(batches)

    @abstractmethod
    def cardinality(self) -> int:
        """The number of this worker's steps that have data, infinite or unknown."""

    @property
    @abstractmethod
    def dataset(self) -> Dataset:
        """A dataset with the specification of what the steps are made of."""

    @property
    def datasets(self) -> list[Dataset]:
        """All of them."""
        return [self.dataset]

    @property
    @abstractmethod
    def slices_per_batch(self) -> int:
        """The number of slices into which a batch is cut."""

    @property
    def labels(self) -> list[str]:
        """The policy and other settings that must be the same on all workers; none for a function's datasets."""
        return []

    def facts(self) -> list[NodeFacts]:
        """Return what must be the same on all workers that read the same share of a dataset, of its nodes."""
        return []

    @cached_property
    def leaves_out(self) -> bool:
        """Return whether rows that fail may be skipped, also in datasets that functions make."""
        nodes = [node for dataset in self.datasets for node in dataset.node.walk()]
        return any(node.leaves_out_failures or isinstance(node, (Interleave, GroupByWindow)) for node in nodes)

    @cached_property
    def batch_size(self) -> int:
        """The one size of batches that an operator was given, or a specification; 0 where none is known."""
        return self._batch_size(through_functions=True)

    def _batch_size(self, *, through_functions: bool) -> int:
        sizes: set[int] = set()
        for dataset in self.datasets:
            known = rows_of_batches(dataset.node.spec)
            sources = [] if known else sources_of_batches(dataset.node, through_functions=through_functions)
            sizes |= {source.rows_per_batch or rows_of_batches(source.spec) or 0 for source in sources} or {known or 0}
        return sizes.pop() if len(sizes) == 1 else 0

    @cached_property
    def exact(self) -> bool:
        """Return whether no user function above `batch` might change the rows of its batches."""
        return self._batch_size(through_functions=False) > 0

    @property
    def full_rows(self) -> int:
        """The rows of a replica in a full step; 0 where no batch size is known."""
        return -(-self.batch_size // self.slices_per_batch)

    def layout(self) -> Layout | None:
        """Dtype and shape without the rows of each leaf; None where they are not fixed."""
        if self.dataset.node.spec is None:
            return None
        leaves, _ = flatten(self.dataset.node.spec)
        if any(None in leaf.shape[1:] or leaf.dtype.kind == "O" or leaf.ragged_rank for leaf in leaves):
            return None
        return tuple(RowShape(str(leaf.dtype), leaf.shape[1:]) for leaf in leaves)


class DividedInput(Inputs):
    """One dataset, of which every worker reads its shard.

    Args:
        dataset: the whole dataset.
        workers: which worker this is, of how many.
        partial: what happens to a batch that does not fill all replicas equally.
        division: words for how rows are divided, which must be the same on all workers.
        padded_at_end: whether padding is at the end of a batch, not of each slice.
    """

    shard: WorkerShard

    def __init__(
        self,
        dataset: Any,
        workers: StrategyWorkers,
        partial: PartialBatch = PartialBatch.RAGGED,
        division: Sequence[str] = (),
        *,
        padded_at_end: bool = False,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise InvalidTypeError(
                f"distribute_dataset(dataset) takes a ps.Dataset, got {type(dataset).__name__}: "
                "make one by ps.Dataset.from_tensor_slices(...) or ps.Dataset.from_generator(...)"
            )
        check_spec(dataset.node.spec, dataset.node)
        self.workers = workers
        self.partial = partial
        self.division = list(division)
        self._padded_at_end = padded_at_end
        self._whole = dataset
        self.shard = self.shard_of(workers.index)
        self.has_own_data = self.shard.own_batches
        self._part = dataset

    def shard_of(self, worker: int) -> WorkerShard:
        """Return what a worker reads."""
        workers = self.workers.of(worker)
        shard = shard_of_worker(self._node, self._policy(), workers, self.rule)
        if workers.count > 1:
            return shard
        # A single worker reads everything, whatever the policy, and its batches are the global ones.
        whole = shard.node if shard.policy is AutoShardPolicy.HINT else self._node
        return replace(shard, node=whole, own_batches=False)

    @cached_property
    def _node(self) -> Node:
        """The whole dataset, with batches whose slices for these workers cost alike where that is asked for."""
        return rewritten(self._whole.node, lambda node: balanced(node, self.rule))

    def _policy(self) -> AutoShardPolicy | None:
        policy = self._whole.options().auto_shard_policy
        assert not isinstance(policy, str)  # the options have turned a name into the member
        return policy

    def shards(self) -> list[WorkerShard]:
        return [self.shard_of(worker) for worker in range(self.workers.count)]

    @property
    def listed(self) -> list[list[str]]:
        return [] if self.shard.policy is AutoShardPolicy.OFF else names_of_listings(self._whole.node)

    def over_files(self, names: list[list[str]]) -> "DividedInput":
        whole = Dataset(with_listings(self._whole.node, names), self._whole.options())
        return type(self)(whole, self.workers, self.partial, self.division)

    @property
    def drawn(self) -> list[int]:
        return [drawn.seed for drawn in self._whole.node.drawn_seeds]

    def fix_seeds(self, seed: int, drawn: list[int]) -> None:
        # Where each worker reads all of a different dataset, another one may have other nodes.
        for own, agreed in zip(self._whole.node.drawn_seeds, drawn, strict=False):
            own.seed = agreed
        options = self._whole.options()
        given = options.seed is not None
        iterations = Iterations(options.seed if given else seed, seeded=given)
        self._part = Dataset(self.shard.node, options, iterations)

    def fix_seeds_alone(self) -> None:
        options = self._whole.options()
        unseeded = [node for node in self.shard.same_order if node.unseeded]
        if self.workers.count > 1 and unseeded and options.seed is None:
            random = next((node for top in unseeded for node in top.walk() if node.draws_unseeded), None)
            if random is not None:
                raise InvalidArgumentError(
                    f"{random.where()} has no seed, so every worker could take its shard of another order: give the "
                    "dataset one by with_options(ps.Options(seed=...))"
                )
            # Only datasets that functions make may draw, such as those of `flat_map`: on all workers alike.
            self._part = Dataset(self.shard.node, options, Iterations(0, seeded=True))
            return
        # With other workers not the user's own dataset, whose iterations here would count as epochs here alone.
        if self.workers.count > 1 or self.shard.node is not self._whole.node:
            self._part = Dataset(self.shard.node, options)

    @cached_property
    def dataset(self) -> Dataset:
        # Without sharding hints, with which it cannot be read.
        readable = without_hints(self._whole.node)
        return self._whole if readable is self._whole.node else Dataset(readable, self._whole.options())

    @property
    def labels(self) -> list[str]:
        classes = [f"classes {listing.classes}" for listing in listings_of(self._whole.node) if listing.classes]
        seed = self._whole.options().seed
        seeds = [] if seed is None else [f"Options(seed={seed})"]
        return [f"policy {self.shard.policy.name}", *classes, *seeds, *self.division]

    def facts(self) -> list[NodeFacts]:
        # A named job compares the datasets of its readers itself.
        divided = any(node.divided for node in self._whole.node.walk())
        return [] if divided else facts_of(self._whole.node)

    @property
    def slices_per_batch(self) -> int:
        return self.workers.replicas_in_sync

    @cached_property
    def rule(self) -> SliceRule:
        """Return how a batch is cut."""
        least = self.full_rows if self._padded_at_end and self.partial is PartialBatch.PAD else 0
        return SliceRule(self.slices_per_batch, least, even=self.partial is PartialBatch.DROP and not self.exact)

    def steps_of(self, batches: int) -> int:
        return batches * self.workers.shares if self.has_own_data else batches

    def cardinality(self) -> int:
        return scaled(self.shard.node.cardinality, self.steps_of)

    @cached_property
    def lengths(self) -> Lengths | None:
        return _lengths(self.shard.node)

    def lengths_of_all(self) -> list[Lengths] | None:
        if self.lengths is None:
            return None
        if not self.has_own_data:  # all workers have slices of the same batches
            return [self.lengths] * self.workers.count
        every = [_lengths(shard.node) for shard in self.shards()]
        known = [one for one in every if one is not None]
        return known if len(known) == len(every) else None

    def sizes_at(self, lengths: list[Lengths], step: int) -> Sizes:
        batch, turn = divmod(step, self.steps_of(1))
        replicas = self.workers.replicas
        taken: list[Sequence[int]] = [range(turn * replicas, (turn + 1) * replicas)] * len(lengths)
        if not self.has_own_data:  # several processes may be one worker, and each has said its lengths
            lengths = lengths[: self.workers.count]
            taken = [self.workers.of(worker).own_slices for worker in range(len(lengths))]
        bounds = [self.rule.bounds(own.rows_of_batch(batch)) for own in lengths]
        return [
            tuple(stop - start for start, stop in (cut[number] for number in numbers))
            for cut, numbers in zip(bounds, taken, strict=True)
        ]

    def open_joined(self, states: list[dict[str, Any]]) -> JoinedWorkers:
        """The steps that the workers with these states would take, each with different data; in this worker's epochs.

        They are at the beginning of an epoch: the states are yet to be restored.
        """
        replicas = [state.get("replicas", self.workers.replicas) for state in states]
        workers = [StrategyWorkers(len(states), index, own) for index, own in enumerate(replicas)]
        at_end = self._padded_at_end
        others = [DividedInput(self._whole, one, self.partial, padded_at_end=at_end) for one in workers]
        for other in others:
            other.ahead = self.ahead
            other._part = Dataset(other.shard.node, self._whole.options(), iterations_of(self._part))
        steps = [other.open() for other in others]
        return JoinedWorkers(steps, self.rule, self.workers.own_slices)

    def open(self) -> StepSource:
        workers = self.workers
        batches = PositionedElements(iter(self._part), ahead=self.ahead)
        if self.has_own_data:
            return WorkerBatches(batches, workers.shares, workers.share, workers.replicas, self.rule)
        return GlobalBatches(batches, self.rule, workers.own_slices, pairs=self.shard.pairs)


class FunctionInput(Inputs):
    """Datasets that the user's function makes, whose elements go to the replicas as they are.

    Args:
        dataset_fn: gives a dataset for an `InputContext`.
        workers: which worker this is, of how many.
        mode: whether the function is called once per worker or once per replica.
    """

    has_own_data = True

    def __init__(
        self, dataset_fn: Callable[[InputContext], Any], workers: StrategyWorkers, mode: InputReplicationMode
    ) -> None:
        if not callable(dataset_fn):
            raise InvalidTypeError(
                "distribute_datasets_from_function(dataset_fn) takes a function that gives a dataset for a "
                f"ps.InputContext, got {dataset_fn!r}"
            )
        self.workers = workers
        per_worker = workers.replicas if mode is InputReplicationMode.PER_REPLICA else 1
        pipelines = range(workers.index * per_worker, (workers.index + 1) * per_worker)
        total = workers.count * per_worker
        self._datasets = [
            self._checked(dataset_fn(InputContext(total, pipeline, workers.replicas_in_sync))) for pipeline in pipelines
        ]

    def _checked(self, dataset: Any) -> Dataset:
        if not isinstance(dataset, Dataset):
            raise InvalidTypeError(
                f"the function given to distribute_datasets_from_function must return a ps.Dataset, got "
                f"{type(dataset).__name__}"
            )
        if not self._takes_scalars(dataset):
            check_spec(dataset.node.spec, dataset.node)
        return dataset

    def _takes_scalars(self, dataset: Dataset) -> bool:
        """Return whether no replica can ever need an empty batch, which scalars do not have."""
        return self.workers.replicas_in_sync == 1 or dataset.cardinality() == INFINITE_CARDINALITY

    @property
    def dataset(self) -> Dataset:
        return self._datasets[0]

    @property
    def datasets(self) -> list[Dataset]:
        return self._datasets

    @property
    def slices_per_batch(self) -> int:
        return 1

    def steps_of(self, batches: int) -> int:
        return -(-batches // self._at_once)

    def full_steps_of(self, batches: int) -> int:
        return batches // self._at_once

    @property
    def _at_once(self) -> int:
        """The number of elements that a step takes of one dataset."""
        return self.workers.replicas if len(self._datasets) == 1 else 1

    @property
    def lengths(self) -> Lengths | None:
        return _lengths(self.dataset.node) if len(self._datasets) == 1 else None

    def sizes_at(self, lengths: list[Lengths], step: int) -> Sizes:
        replicas = self.workers.replicas
        return [tuple(own.rows_of_batch(step * replicas + replica) for replica in range(replicas)) for own in lengths]

    def cardinality(self) -> int:
        return longest([scaled(dataset.cardinality(), self.steps_of) for dataset in self._datasets])

    def open(self) -> StepSource:
        workers = self.workers
        scalars = all(map(self._takes_scalars, self._datasets))
        iterators = [PositionedElements(iter(dataset), ahead=self.ahead) for dataset in self._datasets]
        return Elements(iterators, workers.replicas, workers.count, workers.index, scalars=scalars)


def longest(cardinalities: list[int]) -> int:
    """The cardinality of the longest of several datasets."""
    if INFINITE_CARDINALITY in cardinalities:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in cardinalities else max(cardinalities)


def rows_of_batches(spec: Any) -> int | None:
    """The rows of every batch, where all leaves say how many."""
    rows = {leaf.shape[0] if leaf.shape else None for leaf in flatten(spec)[0]}
    return rows.pop() if len(rows) == 1 else None


def _lengths(node: Node) -> Lengths | None:
    """The lengths of a node's batches, where they follow from its operators."""
    found = batch_lengths(node)
    return None if found is None or node.cardinality == UNKNOWN_CARDINALITY else Lengths(node.cardinality, *found)
