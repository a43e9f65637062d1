"""What a dispatcher's log says of the changes that somebody may want to know of."""

from collections.abc import Iterator, Sequence

from penstock.printing import one_line
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import (
    Consumed,
    ConsumerGone,
    DatasetKept,
    EpochCreated,
    JobCreated,
    JobDropped,
    Stopping,
    Update,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)
from penstock.service.wire.spans import count, without


def told(state: State, updates: Sequence[Update]) -> Iterator[str]:
    """Lines about those changes that are about to be made together that are something special."""
    for update in updates:
        if (line := _line(state, update, updates)) is not None:
            yield one_line(line)


def _line(state: State, update: Update, updates: Sequence[Update]) -> str | None:
    match update:
        case DatasetKept():
            return f"dataset {update.dataset_id}: registered, {len(update.definition):,} bytes"
        case WorkerJoined():
            info = update.info
            return f"data worker {info.worker_id} at {info.endpoint.address} joined, place {info.place}"
        case WorkerLeaving() if not state.workers[update.worker_id].leaving:
            return f"data worker {update.worker_id} at {_address(state, update.worker_id)} left"
        case WorkerLost() if not _leaves(state, update.worker_id, updates):
            return f"data worker {update.worker_id} at {_address(state, update.worker_id)} is lost"
        case EpochCreated():
            return f"epoch {update.number} of {_job(state, update.job_id)}: begun"
        case JobCreated() if update.name:
            return f"job {update.name!r}: begun, as job {update.job_id}"
        case JobDropped():
            return f"{_job(state, update.job_id)}: forgotten"
        case ConsumerGone():
            held = _held(state, update.consumer_id, updates)
            return f"reader {update.consumer_id}: gone, gives back {held} positions" if held else None
        case Stopping():
            return _stopping(state, update.mode)
        case _:
            return None


def _leaves(state: State, worker_id: int, updates: Sequence[Update]) -> bool:
    """Whether a worker has said that it ends, before or now."""
    leaving = {update.worker_id for update in updates if isinstance(update, WorkerLeaving)}
    return state.workers[worker_id].leaving or worker_id in leaving


def _stopping(state: State, mode: str) -> str:
    readers = [
        f"{len(alive)} of epoch {epoch.number} of {_job(state, epoch.job_id)}"
        for epoch in state.epochs.values()
        if (alive := state.readers(epoch))
    ]
    if not readers:
        return "stopping"
    if mode == "now":
        return f"stopping, and with it readers: {', '.join(readers)}"
    return f"stopping after the last reader: {', '.join(readers)}; none of them can begin another epoch"


def _held(state: State, consumer_id: int, updates: Sequence[Update]) -> int:
    """How many positions a consumer has, after what it acknowledges now."""
    consumer = state.consumers[consumer_id]
    left = consumer.leased
    for update in updates:
        for span in update.spans if isinstance(update, Consumed) else ():
            left = without(left, span)
    return count(left) + count(consumer.owed)


def _address(state: State, worker_id: int) -> str:
    return state.workers[worker_id].info.endpoint.address


def _job(state: State, job_id: int) -> str:
    job = state.jobs.get(job_id)
    return f"job {job.name!r}" if job is not None and job.name else f"job {job_id}"
