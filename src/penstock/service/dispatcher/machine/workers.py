"""Workers join, report and leave."""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.addresses import split_address
from penstock.errors import InvalidArgumentError, ServiceError
from penstock.service.config import PORT_WILDCARD
from penstock.service.dispatcher.machine.knowledge import Change, Decision, Knowledge
from penstock.service.dispatcher.machine.passes import losing, on_join, on_loss
from penstock.service.dispatcher.machine.state import Worker
from penstock.service.dispatcher.machine.updates import WorkerJoined, WorkerLeaving
from penstock.service.wire.address import is_address
from penstock.service.wire.dispatcher_messages import WorkerHeartbeat, WorkerHello, WorkerNews, WorkerWelcome
from penstock.service.wire.subjects import WorkerInfo

COLOCATED: Final = "COLOCATED"
"""The tag of a worker that runs beside a trainer."""


def admit_worker(known: Knowledge, message: WorkerHello) -> Decision:
    """Admit a worker.

    Raises:
        ServiceError: the dispatcher is stopping, or has no place for it.
        InvalidArgumentError: its address is malformed, or not in the dispatcher's list.
    """
    state = known.state
    if state.stopping == "now" or (state.stopping and not known.being_read):
        raise ServiceError("this dispatcher is stopping: it takes no more workers")
    address = message.endpoint.address
    if not is_address(address):
        raise InvalidArgumentError(
            f'a data worker says that others reach it at {address!r:.300}, which is no "host:port": start it with '
            "a --worker-address that is one"
        )
    before = [worker for worker in state.workers.values() if worker.alive and worker.info.endpoint.address == address]
    for worker in before:
        if worker.info.endpoint == message.endpoint and message.endpoint.process and not worker.leaving:
            return [], _welcome(known, worker.info.worker_id)
    # Two cannot listen at one address, so an earlier worker with this address is gone.
    gone = {worker.info.worker_id for worker in before}
    place, colocated = _place(known, address, gone), COLOCATED in message.tags
    info = WorkerInfo(worker_id=state.next_worker, endpoint=message.endpoint, place=place, colocated=colocated)
    joined = WorkerJoined(info=info, tags=message.tags)
    moved = on_join(known, Worker(info, message.tags), gone)
    return [*losing(state, gone), joined, *moved], _welcome(known, info.worker_id)


def _welcome(known: Knowledge, worker_id: int) -> WorkerWelcome:
    return WorkerWelcome(worker_id=worker_id, heartbeat_seconds=known.config.heartbeat_seconds)


def hear_worker(known: Knowledge, message: WorkerHeartbeat) -> Decision:
    """Note that a worker is alive, or that it leaves."""
    state = known.state
    worker = state.workers.get(message.worker_id)
    if worker is None or not worker.alive:
        return [], WorkerNews(known=False, datasets=[], stopping=state.stopping in ("drain", "now"))
    changes: list[Change] = []
    if message.left:
        changes = [WorkerLeaving(worker_id=message.worker_id), *losing(state, {message.worker_id})]
    elif message.leaving and not worker.leaving:
        changes = [WorkerLeaving(worker_id=message.worker_id), *on_loss(state, {message.worker_id})]
    datasets, silent = sorted(state.datasets), tuple(sorted(_silent_readers(known)))
    return changes, WorkerNews(known=True, datasets=datasets, stopping=known.workers_may_go, silent=silent)


def _silent_readers(known: Knowledge) -> Iterator[str]:
    """The readers of cross-trainer caches that are not heard: their processes are stopped, or cut off."""
    state = known.state
    for epoch_id, consumers in known.volatile.readers.items():
        if state.jobs[state.epochs[epoch_id].job_id].parameters.cross_trainer:
            for number in consumers:
                if known.consumer_silence(number) > known.config.lease_seconds:
                    yield state.consumers[number].name


def _place(known: Knowledge, address: str, gone: set[int]) -> int:
    """The place of a worker at this address, while those others go."""
    state, listed_places = known.state, known.config.addresses
    if not listed_places:
        return state.next_place
    taken = {
        worker.info.place: worker.info.endpoint.address
        for worker in state.workers.values()
        if worker.alive and worker.info.worker_id not in gone
    }
    mine = [place for place, listed in enumerate(listed_places) if _matches(listed, address)]
    free = [place for place in mine if place not in taken]
    if free:
        return _preferred(known, address, free)
    listed = ", ".join(repr(listed) for listed in listed_places)
    if not mine:
        raise InvalidArgumentError(
            f"the address {address!r} of this worker is not in the dispatcher's worker_addresses ({listed}): list "
            "it there, or let the worker advertise one that is listed"
        )
    others = ", ".join(sorted(taken[place] for place in mine))
    raise ServiceError(
        f"all places for {address!r} in the dispatcher's worker_addresses ({listed}) are taken by other workers "
        f"({others}): stop one of them, or list another place"
    )


def _preferred(known: Knowledge, address: str, free: Sequence[int]) -> int:
    """The place that names its port, else the one that it had before, else the first free one."""
    workers, listed = known.state.workers.values(), known.config.addresses
    exact = [place for place in free if listed[place] == address]
    before = [worker.info.place for worker in workers if worker.info.endpoint.address == address]
    return next(iter([*exact, *(place for place in free if place in before), *free]))


def _matches(listed: str, address: str) -> bool:
    return listed == address or listed.removesuffix(f":{PORT_WILDCARD}").strip("[]") == split_address(address)[0]
