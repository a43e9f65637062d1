"""What workers say: that they have come, are alive, leave; and which passes of an epoch each of them makes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.service.config import PORT_WILDCARD, DispatcherConfig
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import Epoch, Ledger, State, Worker
from penstock.service.dispatcher.machine.updates import (
    PassAdded,
    PassMoved,
    Update,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)
from penstock.service.wire.address import is_address
from penstock.service.wire.dispatcher_messages import WorkerHeartbeat, WorkerHello, WorkerNews, WorkerWelcome
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import DatasetInfo, JobParameters, Pass, WorkerInfo

INFINITE, UNKNOWN = -1, -2


def first_passes(
    parameters: JobParameters, info: DatasetInfo, config: DispatcherConfig, workers: Sequence[Worker], at_least: int = 0
) -> list[Pass]:
    """The passes that an epoch begins with. None where they depend on workers, and none has come yet.

    Args:
        at_least: how many passes the epoch had when the state was taken that its first consumer was restored from.
    """
    policy = ShardingPolicy(parameters.policy)
    if policy.static:
        count = len(config.addresses)
        by_place = {worker.info.place: worker.info.worker_id for worker in workers}
        return [_shard(i, count, by_place.get(i, -1), policy, info) for i in range(count)]
    fixed = parameters.fixed_passes
    if policy is ShardingPolicy.DYNAMIC and not fixed:
        one = Pass(number=0, length=info.length)
        return [one if info.kind != "sequence" else _of(one, workers, 0)]
    if fixed:
        count = at_least or len(config.addresses) or len(workers)
    else:
        count = max(at_least, len(workers))
    if policy is ShardingPolicy.OFF:
        return [_of(Pass(number=i, length=info.length), workers, i) for i in range(count)]
    return [_of(_shard(i, count, -1, policy, info), workers, i) for i in range(count)]


def _shard(index: int, count: int, worker_id: int, policy: ShardingPolicy, info: DatasetInfo) -> Pass:
    length = UNKNOWN
    if info.length == INFINITE:
        length = INFINITE
    elif policy is ShardingPolicy.DATA and info.kind == "rows" and info.length >= 0:
        length = -(-(info.length - index) // count)
    return Pass(number=index, worker_id=worker_id, shard_index=index, num_shards=count, length=length)


def _of(part: Pass, workers: Sequence[Worker], index: int) -> Pass:
    """The pass, best asked of one of these workers."""
    if not workers:
        return part
    return msgspec.structs.replace(part, worker_id=workers[index % len(workers)].info.worker_id)


def added(epoch_id: int, parts: Iterable[Pass]) -> list[PassAdded]:
    """The updates that give an epoch these passes."""
    return [PassAdded(epoch_id=epoch_id, part=part, home=part.worker_id) for part in parts]


def on_join(state: State, worker: Worker, gone: set[int]) -> Iterator[PassAdded | PassMoved]:
    """What a worker that joins, while those others go, means for the epochs that are read."""
    for epoch in state.epochs.values():
        if state.finished(epoch):
            continue
        parameters = state.jobs[epoch.job_id].parameters
        info = state.datasets[parameters.dataset_id].info
        mine = _waiting_for(worker, epoch, parameters, info, {-1, *gone})
        for ledger in mine:
            yield _moved(epoch, ledger, worker.info.worker_id, worker.info.worker_id)
        if parameters.policy == ShardingPolicy.OFF and not parameters.fixed_passes and not mine:
            part = Pass(number=len(epoch.ledgers), worker_id=worker.info.worker_id, length=info.length)
            yield from added(epoch.epoch_id, [part])


def _waiting_for(
    worker: Worker, epoch: Epoch, parameters: JobParameters, info: DatasetInfo, gone: set[int]
) -> list[Ledger]:
    """The passes that a new worker takes over: under a static policy those of its place, else one without a home."""
    policy = ShardingPolicy(parameters.policy)
    if policy.static:
        return [ledger for ledger in epoch.ledgers if ledger.part.number == worker.info.place]
    if policy is ShardingPolicy.DYNAMIC and not parameters.fixed_passes and info.kind != "sequence":
        return []
    return [ledger for ledger in epoch.ledgers if ledger.home in gone and ledger.free != 0][:1]


def _moved(epoch: Epoch, ledger: Ledger, worker_id: int, home: int) -> PassMoved:
    return PassMoved(epoch_id=epoch.epoch_id, pass_number=ledger.part.number, worker_id=worker_id, home=home)


def on_loss(state: State, lost: set[int]) -> Iterator[PassMoved]:
    """Every pass of workers that are gone goes to those that have the fewest, or to whoever will."""
    left = [worker.info.worker_id for worker in state.present() if worker.info.worker_id not in lost]
    for epoch in state.epochs.values():
        load = Counter(dict.fromkeys(left, 0))
        load.update(ledger.part.worker_id for ledger in epoch.ledgers if ledger.part.worker_id in load)
        for ledger in epoch.ledgers:
            if ledger.part.worker_id not in lost:
                continue
            heir = min(left, key=lambda worker_id: (load[worker_id], worker_id), default=-1)
            load[heir] += 1
            yield _moved(epoch, ledger, heir, -1 if ledger.home in lost else ledger.home)


COLOCATED = "COLOCATED"


def welcome(
    state: State, signs: Signs, config: DispatcherConfig, message: WorkerHello, now: float
) -> tuple[list[Update], WorkerWelcome]:
    """A worker offers itself.

    Raises:
        ServiceError: the dispatcher is stopping, or has no place for it.
        InvalidArgumentError: it says no address, or one that is not in the dispatcher's list.
    """
    if state.stopping:
        raise ServiceError("this dispatcher is stopping: it takes no more workers")
    address = message.endpoint.address
    if not is_address(address):
        raise InvalidArgumentError(
            f'a data worker says that others reach it at {address!r:.300}, which is no "host:port": start it with a '
            "--worker-address that is one"
        )
    before = [worker for worker in state.workers.values() if worker.alive and worker.info.endpoint.address == address]
    for worker in before:
        if worker.info.endpoint == message.endpoint and message.endpoint.process and not worker.leaving:
            return [], WorkerWelcome(worker_id=worker.info.worker_id, heartbeat_seconds=config.heartbeat_seconds)
    # Two cannot listen at one address: whoever had it is gone.
    gone = {worker.info.worker_id for worker in before}
    joined = Worker(
        WorkerInfo(
            worker_id=state.next_worker,
            endpoint=message.endpoint,
            place=_place(state, config, address, gone),
            colocated=COLOCATED in message.tags,
        ),
        message.tags,
    )
    updates: list[Update] = [
        *losing(state, gone),
        WorkerJoined(info=joined.info, tags=joined.tags),
        *on_join(state, joined, gone),
    ]
    signs.joined[joined.info.worker_id] = signs.workers[joined.info.worker_id] = now
    return updates, WorkerWelcome(worker_id=joined.info.worker_id, heartbeat_seconds=config.heartbeat_seconds)


def losing(state: State, lost: set[int]) -> Iterator[Update]:
    """The updates for workers that are gone."""
    if lost:
        yield from (WorkerLost(worker_id=worker_id) for worker_id in sorted(lost))
        yield from on_loss(state, lost)


def _place(state: State, config: DispatcherConfig, address: str, gone: set[int]) -> int:
    if not config.addresses:
        return state.next_place
    taken = {
        worker.info.place: worker.info.endpoint.address
        for worker in state.workers.values()
        if worker.alive and worker.info.worker_id not in gone
    }
    mine = [place for place, listed in enumerate(config.addresses) if _matches(listed, address)]
    free = [place for place in mine if place not in taken]
    if free:
        return _preferred(state, config.addresses, address, free)
    listed = ", ".join(repr(listed) for listed in config.addresses)
    if not mine:
        raise InvalidArgumentError(
            f"the address {address!r} of this worker is not in the dispatcher's worker_addresses ({listed}): list it "
            "there, or let the worker advertise one that is listed"
        )
    others = ", ".join(sorted(taken[place] for place in mine))
    raise ServiceError(
        f"all places for {address!r} in the dispatcher's worker_addresses ({listed}) are taken by other workers "
        f"({others}): stop one of them, or list another place"
    )


def _preferred(state: State, listed: Sequence[str], address: str, free: Sequence[int]) -> int:
    """Its own place if the list names its port, else the one that it had before, else the first."""
    exact = [place for place in free if listed[place] == address]
    before = [worker.info.place for worker in state.workers.values() if worker.info.endpoint.address == address]
    return next(iter([*exact, *(place for place in free if place in before), *free]))


def _matches(listed: str, address: str) -> bool:
    return listed == address or listed.removesuffix(f":{PORT_WILDCARD}") == address.rpartition(":")[0]


def news(
    state: State, signs: Signs, config: DispatcherConfig, message: WorkerHeartbeat, now: float
) -> tuple[list[Update], WorkerNews]:
    """A worker is alive, or says that it leaves."""
    worker = state.workers.get(message.worker_id)
    if worker is None or not worker.alive:
        return [], WorkerNews(known=False, datasets=[], stopping=state.stopping in ("drain", "now"))
    updates: list[Update] = []
    if message.left:
        updates = [WorkerLeaving(worker_id=message.worker_id), *losing(state, {message.worker_id})]
    elif message.leaving and not worker.leaving:
        updates = [WorkerLeaving(worker_id=message.worker_id), *on_loss(state, {message.worker_id})]
    return updates, WorkerNews(known=True, datasets=sorted(state.datasets), stopping=workers_may_go(state))


def workers_may_go(state: State) -> bool:
    """Whether nobody needs the workers any more: the service ends, at once or after its last reader."""
    return state.stopping == "now" or (state.stopping == "drain" and not being_read(state))


def may_end(state: State) -> bool:
    """Whether the dispatcher is to end and nobody needs it any more."""
    if state.stopping == "leave":
        return not being_read(state)
    return workers_may_go(state) and not any(worker.alive for worker in state.workers.values())


def being_read(state: State) -> bool:
    """Whether there are readers."""
    return any(consumer.alive for consumer in state.consumers.values())
