"""Division of a dataset among workers: the policies of `ps.AutoShardPolicy` as rewrites of its nodes.

Each is a pure function of the dataset, the number of workers and the worker, so every worker knows what all others
read. A dataset that a policy does not fit is refused as a whole, by the same error on every worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from penstock.data.batches.batching import Batching
from penstock.data.dataset import Dataset
from penstock.data.mixtures.node import Mix
from penstock.data.node import Node, OneInput
from penstock.data.operators.choose import Choose
from penstock.data.operators.combine import Concatenate, Zip
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.order import AssertCardinality, Repeat, Shard, ShardHint, Skip, Take
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.sequence import Scan
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import with_inputs
from penstock.data.shards import (
    EveryNth,
    NotByFile,
    below_order,
    divided_at_hints,
    divided_by_file,
    hints_of,
    names_of,
    rewritten,
    shard_of_files,
)
from penstock.errors import InvalidArgumentError
from penstock.options import AutoShardPolicy
from penstock.sharding import SliceRule

_BY_FILE = "every source reads files"


@dataclass(frozen=True)
class StrategyWorkers:
    """The workers of a strategy.

    Attributes:
        count: how many there are.
        index: the number of one of them, from 0.
        replicas: the number of replicas of each.
    """

    count: int
    index: int
    replicas: int

    @property
    def replicas_in_sync(self) -> int:
        """The number of replicas on all workers."""
        return self.count * self.replicas

    @property
    def shares(self) -> int:
        """The number of shares into which the workers divide data; several workers may read the same one."""
        return self.count

    @property
    def share(self) -> int:
        """The number of the share that the worker reads, from 0."""
        return self.index

    @property
    def every_nth(self) -> EveryNth:
        """The worker's shard of data that is divided among all workers."""
        return EveryNth(self.shares, self.share)

    @property
    def local(self) -> range:
        """The numbers of the worker's own replicas."""
        return range(self.index * self.replicas, (self.index + 1) * self.replicas)

    @property
    def own_slices(self) -> Sequence[int]:
        """The numbers of the slices of a batch that the worker takes, in order."""
        return self.local

    def of(self, worker: int) -> Self:
        """The same workers, as another one of them sees them."""
        return replace(self, index=worker)


@dataclass(frozen=True)
class WorkerShard:
    """Part of a dataset that one worker reads.

    Attributes:
        policy: how the dataset is divided: never AUTO.
        reason: why, for logs and `explain()`.
        node: what the worker reads.
        own_batches: whether these are batches of this worker alone, each of which takes a step for each of the
            workers; otherwise they are the global batches, of which it takes its replicas' slices.
        pairs: whether an element is a pair of slices and the rows of their batch, as `local_slices` gives it.
        same_order: the nodes of the whole dataset whose elements must come in one order on all workers, because each
            worker takes some by their numbers.
    """

    policy: AutoShardPolicy
    reason: str
    node: Node
    own_batches: bool
    pairs: bool = False
    same_order: tuple[Node, ...] = ()


def shard_of_worker(
    node: Node, policy: AutoShardPolicy | None, workers: StrategyWorkers, rule: SliceRule
) -> WorkerShard:
    """Return a worker's part of a dataset under a policy, AUTO where it is None; `rule` cuts the batches.

    Raises:
        InvalidArgumentError: the policy does not fit the dataset; the same on every worker.
    """
    if any(below.divided for below in node.walk()):
        return WorkerShard(AutoShardPolicy.OFF, "a named job of the data service divides it", node, own_batches=True)
    hints = hints_of(node)
    if policy is AutoShardPolicy.HINT:
        hinted = divided_at_hints(node, workers.every_nth, "AutoShardPolicy.HINT")
        reason = "shard(SHARD_HINT, SHARD_HINT) says where"
        return WorkerShard(policy, reason, hinted, own_batches=True, same_order=tuple(hint.input for hint in hints))
    if hints:
        raise InvalidArgumentError(
            f"{hints[0].where()} works under AutoShardPolicy.HINT only: set it by "
            "dataset.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT))"
        )
    if policy is AutoShardPolicy.OFF:
        return WorkerShard(policy, "every worker reads everything", node, own_batches=True)
    if policy is AutoShardPolicy.DATA:
        return _by_data(node, workers, rule, "it was asked for")
    if policy in (None, AutoShardPolicy.AUTO) and any(below.reads_files and below.indexable for below in node.walk()):
        return _by_data(node, workers, rule, "rows of its files are read by index")
    try:
        if policy is AutoShardPolicy.FILE_RANGE:
            divided = divided_by_file(node, lambda reader: _range_shard(reader, workers))
            return WorkerShard(policy, _BY_FILE, divided, own_batches=True)
        instead = "AutoShardPolicy.DATA, AutoShardPolicy.FILE_RANGE"
        divided = divided_by_file(node, lambda reader: shard_of_files(reader, workers.every_nth, instead))
        return WorkerShard(AutoShardPolicy.FILE, _BY_FILE, divided, own_batches=True)
    except NotByFile as reason:
        if policy in (AutoShardPolicy.FILE, AutoShardPolicy.FILE_RANGE):
            raise InvalidArgumentError(
                f"AutoShardPolicy.{policy.name} does not fit: {reason}; use AutoShardPolicy.DATA{reason.instead}"
            ) from None
        return _by_data(node, workers, rule, f"{reason}")


def _by_data(node: Node, workers: StrategyWorkers, rule: SliceRule, reason: str) -> WorkerShard:
    if workers.count > 1:
        node = _in_order(node)
        shard = slices_of_batches(node, rule, workers.own_slices)
        if shard is not None:
            return WorkerShard(AutoShardPolicy.DATA, reason, shard, own_batches=False, pairs=True, same_order=(node,))
    return WorkerShard(AutoShardPolicy.DATA, reason, node, own_batches=False, same_order=(node,))


def _in_order(node: Node) -> Node:
    """The dataset in an order that is the same on every worker."""
    return rewritten(node, _ordered_or_refused)


def _ordered_or_refused(node: Node) -> Node | None:
    ordered = node.in_order()
    if ordered is None:
        raise InvalidArgumentError(
            f"{node.where()} gives its elements in an order of its own on every worker, so that they cannot be divided "
            "by rows: give it a job_name, and the job divides them"
        )
    return None if ordered is node else _in_order(ordered)


def _range_shard(reader: OneInput, workers: StrategyWorkers) -> Node:
    """The reader with the records from w / n to (w + 1) / n of all its files' records."""
    names = names_of(reader)
    counts = [count for name in names or [] if isinstance(name, str) and (count := reader.records_in(name)) is not None]
    if names is None or len(counts) < len(names):
        raise InvalidArgumentError(
            f"AutoShardPolicy.FILE_RANGE counts the records of a reader that is given its files by name, got "
            f"{reader.where()}: use AutoShardPolicy.FILE or AutoShardPolicy.DATA"
        )
    total = sum(counts)
    first, last = total * workers.share // workers.shares, total * (workers.share + 1) // workers.shares
    ranges, before = [], 0
    for name, count in zip(names, counts, strict=True):
        start, stop = max(first - before, 0), min(last - before, count)
        if start < stop:
            ranges.append((name, start, stop))
        before += count
    columns = ([name for name, _, _ in ranges], [start for _, start, _ in ranges], [stop for _, _, stop in ranges])
    pieces = replace(Dataset.from_tensor_slices(columns).node, part=workers.share)
    return with_inputs(reader, [below_order(reader.input, lambda _: pieces)])


_BY_POSITION: Final = (Shuffle, Repeat, Take, Skip, Shard, Prefetch, AssertCardinality)
"""What decides by the positions of its input's elements alone which of them it gives, and when."""
_CALLING: Final = (Map, Scan)
"""What gives batches as functions of the user's leave them: these are taken to keep their rows together."""
_KEEPING: Final = (*_BY_POSITION, IgnoreErrors, Filter, Choose, Mix, ShardHint, Cache, Zip, Concatenate)
"""What gives batches as they are, though perhaps not all, those of several inputs in turn or side by side."""


def sources_of_batches(node: Node, *, through_functions: bool) -> list[Node]:
    """The nodes that make the batches that a node gives as they are, or as functions of the user's leave them."""
    while isinstance(node, _KEEPING) or node.remote is not None or (through_functions and isinstance(node, _CALLING)):
        if len(node.spec_inputs) != 1:
            found = [sources_of_batches(below, through_functions=through_functions) for below in node.spec_inputs]
            return [one for several in found for one in several] or [node]
        (node,) = node.spec_inputs
    return [node]


def gives_batches(node: Node) -> bool:
    """Return whether batches come from below a node, and are neither taken apart nor joined on their way."""
    return all(source.rows_per_batch for source in sources_of_batches(node, through_functions=True))


def last_may_be_short(node: Node) -> bool:
    """Return whether the last of these batches may have fewer rows than the others."""
    sources = sources_of_batches(node, through_functions=True)
    return any(one.rows_per_batch and not (isinstance(one, Batching) and one.rows) for one in sources)


def slices_of_batches(node: Node, rule: SliceRule, local: Sequence[int]) -> Node | None:
    """The dataset with only this worker's rows of each batch; None where it needs to see whole batches."""
    if isinstance(node, Batching):
        return node.local_slices(rule, local)
    if not isinstance(node, (*_BY_POSITION, Mix)):
        return None
    below = [slices_of_batches(input, rule, local) for input in node.inputs]
    known = [one for one in below if one is not None]
    return with_inputs(node, known) if len(known) == len(below) else None


def batch_lengths(node: Node) -> tuple[int, int] | None:
    """The rows of each batch of a dataset, and those of the last one, where they follow from its operators."""
    batch = node
    while isinstance(batch, _BY_POSITION):
        batch = batch.input
    if not isinstance(batch, Batching) or batch.lengths is None:
        return None
    while isinstance(node, (Prefetch, AssertCardinality)):
        node = node.input
    rows, last = batch.lengths
    return (rows, last) if last == rows or node is batch else None  # another may have moved the short batch
