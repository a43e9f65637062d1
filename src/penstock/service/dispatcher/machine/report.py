"""Reports of a dispatcher for people: the answer to `penstock status`, and the lines of its log."""

from collections import Counter
from collections.abc import Iterator, Sequence

from penstock.printing import one_line
from penstock.service.dispatcher.machine.knowledge import Knowledge
from penstock.service.dispatcher.machine.state import Consumer, Epoch, State, Worker
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
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    ConsumerStatus,
    EpochStatus,
    Status,
    WorkerHeartbeat,
    WorkerStatus,
)
from penstock.service.wire.spans import count, without
from penstock.version import VERSION


def status(known: Knowledge) -> Status:
    """The answer to `penstock status`."""
    state = known.state
    return Status(
        version=VERSION,
        seconds_up=known.now - known.volatile.started,
        workers=[_worker(known, worker) for worker in state.workers.values()],
        epochs=[_epoch(known, epoch) for epoch in _shown_epochs(known)],
        datasets=len(state.datasets),
        stopping=bool(state.stopping),
        definition_bytes=state.definition_bytes,
    )


def _shown_epochs(known: Knowledge) -> Iterator[Epoch]:
    """For each job, the epochs that are read, and the newest down to the first that is finished."""
    state = known.state
    for job in state.jobs.values():
        epochs = [state.epochs[epoch_id] for epoch_id in job.epochs]
        newest = next(
            (number for number, epoch in enumerate(reversed(epochs), 1) if known.finished(epoch)), len(epochs)
        )
        yield from (epoch for epoch in epochs[:-newest] if epoch.epoch_id in known.volatile.readers)
        yield from epochs[len(epochs) - newest :]


def _worker(known: Knowledge, worker: Worker) -> WorkerStatus:
    worker_id = worker.info.worker_id
    reported = known.volatile.workers[worker_id].report if worker.alive else None
    report = reported or WorkerHeartbeat(worker_id=worker_id)
    seconds = report.seconds or 1.0  # of nothing produced in no time
    return WorkerStatus(
        info=worker.info,
        seconds_since_heard=known.worker_silence(worker_id),
        alive=worker.alive,
        left=worker.leaving and not worker.alive,
        elements_per_second=report.rows / seconds,
        bytes_per_second=report.bytes / seconds,
        busy_fraction=report.busy_seconds / seconds,
        window_hits=report.window_hits,
        window_misses=report.window_misses,
    )


def _epoch(known: Knowledge, epoch: Epoch) -> EpochStatus:
    state = known.state
    job = state.jobs[epoch.job_id]
    owners = [state.consumers[number] for number in epoch.consumers]
    lengths = [ledger.info.length for ledger in epoch.ledgers]
    return EpochStatus(
        job=job.name,
        epoch=epoch.number,
        dataset_id=job.parameters.dataset_id,
        policy=job.parameters.policy,
        finished=known.finished(epoch),
        positions=sum(lengths) if min(lengths, default=-2) >= 0 else (-2 if -2 in lengths or not lengths else -1),
        leased=sum(count(owner.leased) + count(owner.owed) for owner in owners),
        consumed=sum(count(owner.consumed) for owner in owners),
        consumers=[_consumer(known, owner) for owner in owners if owner.alive],
    )


def _consumer(known: Knowledge, consumer: Consumer) -> ConsumerStatus:
    reported = known.volatile.consumers[consumer.consumer_id].report
    report = reported or ConsumerHeartbeat(consumer_id=consumer.consumer_id)
    return ConsumerStatus(
        consumer_id=consumer.consumer_id,
        consumer=consumer.name,
        trainer=consumer.trainer,
        seconds_since_heard=known.consumer_silence(consumer.consumer_id),
        elements_per_second=report.elements_per_second,
        waiting_fraction=report.waiting_fraction,
        leased_positions=count(consumer.leased) + count(consumer.owed),
        round=sum(report.rounds) if report.rounds else -1,
        skipped=report.skipped,
        process=report.process,
    )


def log_lines(state: State, updates: Sequence[Update]) -> Iterator[str]:
    """Log lines for the notable ones of the changes that are about to be made together."""
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
        case WorkerLost() if not leaves(state, update, updates):
            return f"data worker {update.worker_id} at {_address(state, update.worker_id)} is lost"
        case EpochCreated():
            return f"epoch {update.number} of {_job(state, update.job_id)}: begun"
        case JobCreated() if update.name:
            return f"job {update.name!r}: begun, as job {update.job_id}"
        case JobDropped():
            return f"{_job(state, update.job_id)}: forgotten"
        case ConsumerGone():
            held = _held_positions(state, update.consumer_id, updates)
            return f"reader {update.consumer_id}: gone, gives back {held} positions" if held else None
        case Stopping():
            return _stopping(state, update.mode)
        case _:
            return None


def leaves(state: State, update: Update, updates: Sequence[Update]) -> bool:
    """Return whether an update is about a worker that had announced its end, before or now; others are lost."""
    if not isinstance(update, WorkerLost):
        return False
    leaving = {other.worker_id for other in updates if isinstance(other, WorkerLeaving)}
    return state.workers[update.worker_id].leaving or update.worker_id in leaving


def _stopping(state: State, mode: str) -> str:
    alive = Counter(consumer.epoch_id for consumer in state.consumers.values() if consumer.alive)
    readers = [
        f"{alive[number]} of epoch {epoch.number} of {_job(state, epoch.job_id)}"
        for number, epoch in state.epochs.items()
        if alive[number]
    ]
    if not readers:
        return "stopping"
    if mode == "now":
        return f"stopping, and with it readers: {', '.join(readers)}"
    return f"stopping after the last reader: {', '.join(readers)}; none of them can begin another epoch"


def _held_positions(state: State, consumer_id: int, updates: Sequence[Update]) -> int:
    """Return the number of positions of a consumer, without those that it acknowledges now."""
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
