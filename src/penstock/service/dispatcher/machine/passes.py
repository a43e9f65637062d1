"""The passes of an epoch, and the worker that makes each of them, as workers come and go."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.knowledge import Knowledge
from penstock.service.dispatcher.machine.state import Epoch, Ledger, State, Worker
from penstock.service.dispatcher.machine.updates import PassAdded, PassMoved, Update, WorkerLost
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import DatasetInfo, JobParameters, PassInfo


def first_passes(
    parameters: JobParameters, info: DatasetInfo, config: DispatcherConfig, workers: Sequence[Worker], at_least: int = 0
) -> list[PassInfo]:
    """The passes that an epoch begins with; none if they depend on workers, and none has joined yet.

    Args:
        at_least: how many passes the epoch had when its first consumer's state was taken.
    """
    policy = ShardingPolicy(parameters.policy)
    if policy.static:
        count = len(config.addresses)
        by_place = {worker.info.place: worker.info.worker_id for worker in workers}
        return [_shard(i, count, by_place.get(i, -1), policy, info) for i in range(count)]
    fixed = parameters.fixed_passes
    if policy is ShardingPolicy.DYNAMIC and not fixed:
        one = PassInfo(number=0, length=info.length)
        return [one if info.kind != "sequence" else _assigned(one, workers, 0)]
    count = (at_least or len(config.addresses) or len(workers)) if fixed else max(at_least, len(workers))
    if policy is ShardingPolicy.OFF:
        return [_assigned(PassInfo(number=i, length=info.length), workers, i) for i in range(count)]
    return [_assigned(_shard(i, count, -1, policy, info), workers, i) for i in range(count)]


def _shard(index: int, count: int, worker_id: int, policy: ShardingPolicy, info: DatasetInfo) -> PassInfo:
    length = UNKNOWN_CARDINALITY
    if info.length == INFINITE_CARDINALITY:
        length = INFINITE_CARDINALITY
    elif policy is ShardingPolicy.DATA and info.kind == "rows" and info.length >= 0:
        length = -(-(info.length - index) // count)
    return PassInfo(number=index, worker_id=worker_id, shard_index=index, num_shards=count, length=length)


def _assigned(info: PassInfo, workers: Sequence[Worker], index: int) -> PassInfo:
    """The pass, assigned to one of these workers."""
    if not workers:
        return info
    return msgspec.structs.replace(info, worker_id=workers[index % len(workers)].info.worker_id)


def added(epoch_id: int, passes: Iterable[PassInfo]) -> list[PassAdded]:
    """The updates that give an epoch these passes."""
    return [PassAdded(epoch_id=epoch_id, info=info, home=info.worker_id) for info in passes]


def on_join(known: Knowledge, worker: Worker, gone: set[int]) -> Iterator[PassAdded | PassMoved]:
    """The changes of epochs being read when a worker joins, while those others go."""
    state = known.state
    for epoch in state.epochs.values():
        if known.finished(epoch):
            continue
        parameters = state.jobs[epoch.job_id].parameters
        info = state.datasets[parameters.dataset_id].info
        mine = _waiting_for(worker, epoch, parameters, info, {-1, *gone})
        for ledger in mine:
            yield _moved(epoch, ledger, worker.info.worker_id, worker.info.worker_id)
        if parameters.policy == ShardingPolicy.OFF and not parameters.fixed_passes and not mine:
            new = PassInfo(number=len(epoch.ledgers), worker_id=worker.info.worker_id, length=info.length)
            yield from added(epoch.epoch_id, [new])


def _waiting_for(
    worker: Worker, epoch: Epoch, parameters: JobParameters, info: DatasetInfo, gone: set[int]
) -> list[Ledger]:
    """The passes that a new worker takes over: those of its place under a static policy, else one without a worker."""
    policy = ShardingPolicy(parameters.policy)
    if policy.static:
        return [ledger for ledger in epoch.ledgers if ledger.info.number == worker.info.place]
    if policy is ShardingPolicy.DYNAMIC and not parameters.fixed_passes and info.kind != "sequence":
        return []
    return [ledger for ledger in epoch.ledgers if ledger.home in gone and ledger.free != 0][:1]


def _moved(epoch: Epoch, ledger: Ledger, worker_id: int, home: int) -> PassMoved:
    return PassMoved(epoch_id=epoch.epoch_id, pass_number=ledger.info.number, worker_id=worker_id, home=home)


def on_loss(state: State, lost: set[int]) -> Iterator[PassMoved]:
    """Assign every pass of the lost workers to the workers with the fewest passes, or to none."""
    left = [worker.info.worker_id for worker in state.present() if worker.info.worker_id not in lost]
    for epoch in state.epochs.values():
        load = Counter(dict.fromkeys(left, 0))
        load.update(ledger.info.worker_id for ledger in epoch.ledgers if ledger.info.worker_id in load)
        for ledger in epoch.ledgers:
            if ledger.info.worker_id not in lost:
                continue
            heir = min(left, key=lambda worker_id: (load[worker_id], worker_id), default=-1)
            load[heir] += 1
            yield _moved(epoch, ledger, heir, -1 if ledger.home in lost else ledger.home)


def losing(state: State, lost: set[int]) -> Iterator[Update]:
    """The updates for workers that are gone."""
    if lost:
        yield from (WorkerLost(worker_id=worker_id) for worker_id in sorted(lost))
        yield from on_loss(state, lost)
