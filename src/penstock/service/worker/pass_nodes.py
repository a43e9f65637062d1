"""The nodes and the seed that a worker runs for a pass, by its policy."""

from penstock.data.node import Node, Run
from penstock.data.operators.order import Shard
from penstock.data.plan import with_inputs
from penstock.data.shards import EveryNth, NotByFile, divided_at_hints, divided_by_file, hints_of, shard_of_files
from penstock.data.skipped import Skips
from penstock.data.streams.stream import Stream
from penstock.errors import InvalidArgumentError
from penstock.rng import mix
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo
from penstock.service.worker.cut import base_of, without_prefetch


class PassShard(Shard):
    """A pass's shard of elements that every pass makes: only the first reports rows skipped among them."""

    def stream(self, run: Run, epoch: int) -> Stream:
        return super().stream(run if self.index == 0 else run.leaving_to(Skips(run.skips.limit)), epoch)


class OnePass(EveryNth):
    """The shard of one pass."""

    def of(self, node: Node) -> Node:
        return PassShard(node, self.count, self.index)


def nodes_of_pass(node: Node, policy: ShardingPolicy, info: PassInfo) -> Node:
    """The nodes of a pass. Its kind depends on the policy, not on the number of passes.

    Raises:
        InvalidArgumentError: the policy does not fit the pipeline; if there are more passes than files, only for passes
            without one.
    """
    one = OnePass(info.num_shards, info.shard_index)
    if policy is ShardingPolicy.HINT:
        return divided_at_hints(node, one, "ShardingPolicy.HINT")
    hints = hints_of(node)
    if hints:
        raise InvalidArgumentError(f"{hints[0].where()} works under ShardingPolicy.HINT only, got {policy.name}")
    if policy is ShardingPolicy.OFF:
        return node
    if policy is ShardingPolicy.DYNAMIC:
        return node if info.num_shards == 1 else sharded_at_base(node, one)
    if policy is ShardingPolicy.DATA:
        return one.of(node)
    try:
        return divided_by_file(node, lambda reader: shard_of_files(reader, one, "ShardingPolicy.DATA"))
    except NotByFile as reason:
        if policy is ShardingPolicy.FILE:
            raise InvalidArgumentError(
                f"ShardingPolicy.FILE does not fit: {reason}; use ShardingPolicy.DATA or ShardingPolicy.DYNAMIC"
                f"{reason.instead}"
            ) from None
        return one.of(node)


def check_policy(node: Node, policy: ShardingPolicy) -> None:
    """Refuse a pipeline that a policy does not fit, however many workers there are.

    Raises:
        InvalidArgumentError: see `nodes_of_pass`.
    """
    nodes_of_pass(node, policy, PassInfo(number=0))


def seed_of(seed: int, policy: ShardingPolicy, info: PassInfo) -> int:
    """The seed of a pass: under OFF each has its own, the first one the job's."""
    return mix(seed, info.number) if policy is ShardingPolicy.OFF and info.number else seed


def sharded_at_base(node: Node, one: EveryNth) -> Node:
    """The pipeline over every n-th row of its base; if nothing is read by index, over every n-th element."""
    base, above = base_of(without_prefetch(node))
    node = one.of(node if base is None else base)
    for step in above if base is not None else ():
        node = with_inputs(step, [node])
    return node
