"""What workers say: that they have come, that they are alive, that they leave."""

from collections.abc import Iterator, Sequence

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.service.config import PORT_WILDCARD, DispatcherConfig
from penstock.service.dispatcher.machine.passes import on_join, on_loss
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import State, Worker
from penstock.service.dispatcher.machine.updates import Update, WorkerJoined, WorkerLeaving, WorkerLost
from penstock.service.wire.address import is_address
from penstock.service.wire.dispatcher_messages import WorkerHeartbeat, WorkerHello, WorkerNews, WorkerWelcome
from penstock.service.wire.subjects import WorkerInfo

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
