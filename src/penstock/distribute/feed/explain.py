"""Description of each worker's data as text: `DistributedDataset.explain()`."""

from collections.abc import Sequence
from typing import Any

from penstock.data.node import OneInput
from penstock.data.shards import names_of, readers_of
from penstock.distribute.feed.inputs import Inputs
from penstock.distribute.feed.shards import WorkerShard
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, AutoShardPolicy
from penstock.sharding import slice_bounds


def idle_replicas(inputs: Inputs) -> str | None:
    """A warning where the global batches leave some replicas without rows in every step; None otherwise."""
    size, cut = inputs.batch_size, inputs.slices_per_batch
    if not size:
        return None
    idle = sum(start == stop for start, stop in slice_bounds(size, cut))
    if not idle:
        return None
    below = size // cut * cut
    sizes = f"{below:,} or {below + cut:,}" if below else f"{cut:,}"
    return (
        f"batches of {size:,} rows leave {idle} of {cut} replicas without rows in every step: {cut} divides batches of "
        f"{sizes} rows"
    )


def explain(inputs: Inputs, steps: int) -> str:
    """The policy, and what each worker reads; for datasets that a function makes, only what this worker reads."""
    total = {INFINITE_CARDINALITY: "without end", UNKNOWN_CARDINALITY: "unknown until it was read"}.get(
        steps, f"{steps:,}"
    )
    workers = inputs.workers
    if inputs.shard is None:
        return f"steps: {total}\nworker {workers.index} of {workers.count} reads what the given function says"
    lines = [f"steps: {total}", f"{inputs.shard.policy.name}: {inputs.shard.reason}"]
    for worker, own in enumerate(inputs.shards()):
        replicas = workers.of(worker).own_slices
        numbers = f"replica {replicas[0]}" if len(replicas) == 1 else f"replicas {_ranges(replicas)}"
        lines.append(f"worker {worker} of {workers.count}, {numbers}:")
        lines.extend("  " + line for line in _reads(own, inputs, replicas))
    idle = idle_replicas(inputs)
    if idle is not None:
        lines.append(idle)
    return "\n".join(lines)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as text: "0 to 3", or "0 to 1, 4 to 5" where some are missing."""
    starts = [place for place, number in enumerate(numbers) if place == 0 or number != numbers[place - 1] + 1]
    ends = [*starts[1:], len(numbers)]
    return ", ".join(f"{numbers[start]:,} to {numbers[end - 1]:,}" for start, end in zip(starts, ends, strict=True))


def _reads(shard: WorkerShard, inputs: Inputs, replicas: Sequence[int]) -> list[str]:
    if shard.policy in (AutoShardPolicy.FILE, AutoShardPolicy.FILE_RANGE):
        return [line for reader in readers_of(shard.node) for line in _files(reader)]
    if shard.policy is AutoShardPolicy.DATA:
        return _slices(shard, inputs, replicas)
    count = shard.node.cardinality
    return [f"{count:,} batches of its own" if count >= 0 else "batches of its own"]


def _files(reader: OneInput) -> list[str]:
    """The files of a reader with their numbers of records, or the ranges of records that it reads."""
    return [_file(reader, name) for name in names_of(reader) or []] or ["nothing"]


def _file(reader: OneInput, name: Any) -> str:
    if isinstance(name, tuple):
        path, start, stop = name
        return f"{path}: records {start:,} to {stop - 1:,}"
    count = reader.records_in(name)
    return str(name) if count is None else f"{name}: {count:,} records"


def _slices(shard: WorkerShard, inputs: Inputs, replicas: Sequence[int]) -> list[str]:
    size = inputs.full_rows and inputs.batch_size
    only = "reads only these" if shard.pairs else "reads all" if inputs.workers.count > 1 else "reads all of them"
    if not size:
        return [f"its slices of each global batch ({only})"]
    bounds = slice_bounds(size, inputs.workers.replicas_in_sync)
    own = [row for replica in replicas for row in range(*bounds[replica])]
    rows = f"rows {_ranges(own)}" if own else "no rows"
    return [f"{rows} of each global batch of {size:,} ({only})"]
