"""Which part of a dataset each worker reads: the policies of `ps.AutoShardPolicy` as rewrites of its nodes.

Each is a pure function of the dataset, the number of workers and the worker, so that every worker knows what all others
read. None is applied in part: a dataset that a policy does not fit is refused whole, on every worker alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from penstock.data.dataset import Dataset
from penstock.data.node import Node, OneInput
from penstock.data.operators.batching import Batch, BatchShare
from penstock.data.operators.combine import Choose, Zip
from penstock.data.operators.expand import Interleave
from penstock.data.operators.files import ReadFiles
from penstock.data.operators.keep import Cache, Kept, Prefetch
from penstock.data.operators.order import Enumerate, Repeat, Shard, ShardHint, Skip, Take
from penstock.data.operators.sequence import Scan, TakeWhile, Unique
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import with_inputs
from penstock.errors import InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, AutoShardPolicy

# These mean something for all data together, and something else for the files of one worker.
_COUNTING = (Take, Skip, Shard, Enumerate, TakeWhile, Scan, Unique, Zip, Choose)
# Above batches these neither look into a batch nor make one of several.
_BATCH_KEEPING = (Take, Skip, Shard, Repeat, Shuffle, Prefetch)


@dataclass(frozen=True)
class Workers:
    """The workers of a strategy.

    Attributes:
        count: how many there are.
        index: which of them this is about.
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
    def local(self) -> range:
        """The numbers of the worker's own replicas."""
        return range(self.index * self.replicas, (self.index + 1) * self.replicas)


@dataclass(frozen=True)
class WorkerShare:
    """What one worker reads.

    Attributes:
        policy: how the dataset is divided: never AUTO.
        reason: why so, in words.
        node: what the worker reads.
        own_batches: whether these are batches of the worker's own, each of which takes as many steps as there are
            workers; otherwise they are the global batches, of which it takes its replicas' slices.
        pairs: whether an element is the pair that `BatchShare` gives.
    """

    policy: AutoShardPolicy
    reason: str
    node: Node
    own_batches: bool
    pairs: bool = False


class _NotByFile(Exception):
    """Why a dataset cannot be divided by file."""


def share_of_worker(node: Node, policy: AutoShardPolicy | None, workers: Workers) -> WorkerShare:
    """What a worker reads of a dataset under a policy; AUTO where it is None.

    Raises:
        InvalidArgumentError: the policy does not fit the dataset; the same on every worker.
    """
    hints = [below for below in node.walk() if isinstance(below, ShardHint)]
    if policy is AutoShardPolicy.HINT:
        if not hints:
            raise InvalidArgumentError(
                "AutoShardPolicy.HINT needs a place to shard at: put .shard(ps.SHARD_HINT, ps.SHARD_HINT) into the "
                "dataset"
            )
        for hint in hints:
            if any(isinstance(below, ShardHint) for below in hint.input.walk()):
                raise InvalidArgumentError(
                    f"{hint.where()} stands above another shard(SHARD_HINT, SHARD_HINT), which would leave out all but "
                    "a part of each worker's part: keep one of them"
                )
        hinted = _rewritten(node, lambda hint: _sharded(hint.input, workers) if isinstance(hint, ShardHint) else None)
        return WorkerShare(policy, "shard(SHARD_HINT, SHARD_HINT) says where", hinted, own_batches=True)
    if hints:
        raise InvalidArgumentError(
            f"{hints[0].where()} works under AutoShardPolicy.HINT only: set it by "
            "dataset.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT))"
        )
    if policy is AutoShardPolicy.OFF:
        return WorkerShare(policy, "every worker reads everything", node, own_batches=True)
    if policy is AutoShardPolicy.DATA:
        return _by_data(node, workers, "it was asked for")
    try:
        if policy is AutoShardPolicy.FILE_RANGE:
            return _by_file(node, policy, lambda reader: _range_share(reader, workers))
        return _by_file(node, AutoShardPolicy.FILE, lambda reader: _file_share(reader, workers))
    except _NotByFile as reason:
        if policy in (AutoShardPolicy.FILE, AutoShardPolicy.FILE_RANGE):
            raise InvalidArgumentError(
                f"AutoShardPolicy.{policy.name} does not fit: {reason}; use AutoShardPolicy.DATA"
            ) from None
        return _by_data(node, workers, f"{reason}")


def without_hints(node: Node) -> Node:
    """The dataset with all data where `AutoShardPolicy.HINT` would shard it."""
    return _rewritten(node, lambda below: without_hints(below.input) if isinstance(below, ShardHint) else None)


def readers_of(node: Node) -> list[ReadFiles | Interleave]:
    """The nodes that read files by the names that their input gives: readers, and what makes a reader of each name."""
    found: list[ReadFiles | Interleave] = []

    def note(below: Node) -> Node | None:
        if isinstance(below, ReadFiles) or (isinstance(below, Interleave) and _makes_readers(below)):
            found.append(below)
            return below
        return None

    _rewritten(node, note)
    return found


def _by_data(node: Node, workers: Workers, reason: str) -> WorkerShare:
    if workers.count > 1:
        share = _batch_share(node, workers)
        if share is not None:
            return WorkerShare(AutoShardPolicy.DATA, reason, share, own_batches=False, pairs=True)
    return WorkerShare(AutoShardPolicy.DATA, reason, node, own_batches=False)


def _batch_share(node: Node, workers: Workers) -> Node | None:
    """The dataset with only this worker's rows of each batch; None where it needs to see whole batches."""
    if type(node) is Batch and node.input.indexable:
        local = workers.local
        return BatchShare(
            node.input,
            node.batch_size,
            node.drop_remainder,
            workers.replicas_in_sync,
            local.start,
            len(local),
            site=node.site,
        )
    if not isinstance(node, _BATCH_KEEPING):
        return None
    below = _batch_share(node.inputs[0], workers)
    return None if below is None else with_inputs(node, [below])


def _by_file(node: Node, policy: AutoShardPolicy, share: Callable[[OneInput], Node]) -> WorkerShare:
    readers = []

    def checked(below: Node) -> Node | None:
        if isinstance(below, ReadFiles) or (isinstance(below, Interleave) and _makes_readers(below)):
            readers.append(below)
            return below
        if not below.inputs:
            raise _NotByFile(f"{below.where()} reads no files")
        if isinstance(below, _COUNTING) or (isinstance(below, Cache) and below.filename):
            raise _NotByFile(f"{below.where()} is about the data of all workers together")
        return None

    _rewritten(node, checked)  # before any share is made: what does not fit is said of the dataset as a whole
    shares = {id(reader): share(reader) for reader in readers}
    divided = _rewritten(node, lambda below: shares.get(id(below)))
    return WorkerShare(policy, "every source reads files", divided, own_batches=True)


def _file_share(reader: OneInput, workers: Workers) -> Node:
    """The reader with every n-th file."""
    names = names_of(reader)
    if names is not None and len(names) < workers.count:
        raise InvalidArgumentError(
            f"{reader.where()} reads {len(names)} {'file' if len(names) == 1 else 'files'}, fewer than the "
            f"{workers.count} workers: use AutoShardPolicy.DATA, AutoShardPolicy.FILE_RANGE, or more and smaller files"
        )
    return with_inputs(reader, [_below_order(reader.input, lambda names: _sharded(names, workers))])


def _range_share(reader: OneInput, workers: Workers) -> Node:
    """The reader with the records from w / n to (w + 1) / n of all its files' records."""
    names = names_of(reader)
    if not isinstance(reader, ReadFiles) or names is None or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"AutoShardPolicy.FILE_RANGE counts the records of a reader that is given its files by name, got "
            f"{reader.where()}: use AutoShardPolicy.FILE or AutoShardPolicy.DATA"
        )
    counts = [reader.format.count(name, reader.compression_type) for name in names]
    total = sum(counts)
    first, last = total * workers.index // workers.count, total * (workers.index + 1) // workers.count
    ranges, before = [], 0
    for name, count in zip(names, counts, strict=True):
        start, stop = max(first - before, 0), min(last - before, count)
        if start < stop:
            ranges.append((name, start, stop))
        before += count
    columns = ([name for name, _, _ in ranges], [start for _, start, _ in ranges], [stop for _, _, stop in ranges])
    pieces = Dataset.from_tensor_slices(columns).node
    return with_inputs(reader, [_below_order(reader.input, lambda _: pieces)])


def names_of(reader: OneInput) -> list[Any] | None:
    """What a reader is given in an epoch, in order and without repetition; None where that never ends."""
    source = reader.input
    while isinstance(source, (Repeat, Shuffle, Prefetch)):
        source = source.input
    if source.cardinality == INFINITE_CARDINALITY:
        return None
    with iter(Dataset(source)) as names:
        return list(names)


def _makes_readers(node: Interleave) -> bool:
    """Whether the datasets that this node makes of its input's elements read files; told by the first one."""
    if not node.input.indexable or node.input.cardinality == 0:
        return False
    with iter(Dataset(node.input)) as elements:
        element = next(elements)
    made = node.function(*element) if isinstance(element, tuple) else node.function(element)
    if not isinstance(made, Dataset):
        return False
    return bool(readers_of(made.node))


def _below_order(names: Node, change: Callable[[Node], Node]) -> Node:
    """`change` applied below what only orders or repeats names: a worker's files are then the same in every epoch."""
    if isinstance(names, (Repeat, Shuffle, Prefetch)):
        return with_inputs(names, [_below_order(names.input, change)])
    return change(names)


def _sharded(node: Node, workers: Workers) -> Node:
    return Shard(node, workers.count, workers.index)


def _rewritten(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """The nodes with what `change` gives in place of each, from the top; where it gives None its inputs are visited."""
    changed = change(node)
    if changed is not None:
        return changed
    inputs = [_rewritten(below, change) for below in node.inputs]
    if all(old is new for old, new in zip(node.inputs, inputs, strict=True)):
        return node
    node = with_inputs(node, inputs)
    # Other rows than those that the user's own iterations keep.
    return replace(node, kept=Kept()) if isinstance(node, Cache) else node
