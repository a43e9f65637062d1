"""What `penstock status` is told."""

from importlib.metadata import version
from typing import Final

from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import Consumer, Epoch, State, Worker
from penstock.service.wire.dispatcher_messages import ConsumerStatus, EpochStatus, Status, WorkerHeartbeat, WorkerStatus
from penstock.service.wire.spans import count

_VERSION: Final = version("penstock")  # it stands in a file, and there may be no descriptor left when it is asked for


def status(state: State, signs: Signs, now: float) -> Status:
    """What goes on."""
    return Status(
        version=_VERSION,
        seconds_up=now - signs.started,
        workers=[_worker(worker, signs, now) for worker in state.workers.values()],
        epochs=[_epoch(state, epoch, signs, now) for epoch in state.epochs.values()],
        datasets=len(state.datasets),
        stopping=bool(state.stopping),
    )


def _worker(worker: Worker, signs: Signs, now: float) -> WorkerStatus:
    worker_id = worker.info.worker_id
    report = (signs.reports.get(worker_id) if worker.alive else None) or WorkerHeartbeat(worker_id=worker_id)
    seconds = report.seconds or 1.0  # nothing was produced in no time
    return WorkerStatus(
        info=worker.info,
        seconds_since_heard=signs.worker_silence(worker_id, now),
        alive=worker.alive,
        left=worker.leaving and not worker.alive,
        rows_per_second=report.rows / seconds,
        bytes_per_second=report.bytes / seconds,
        busy_fraction=report.busy_seconds / seconds,
        window_hits=report.window_hits,
        window_misses=report.window_misses,
    )


def _epoch(state: State, epoch: Epoch, signs: Signs, now: float) -> EpochStatus:
    job = state.jobs[epoch.job_id]
    owners = [state.consumers[number] for number in epoch.consumers]
    lengths = [ledger.part.length for ledger in epoch.ledgers]
    return EpochStatus(
        job=job.name,
        epoch=epoch.number,
        dataset_id=job.parameters.dataset_id,
        policy=job.parameters.policy,
        finished=state.finished(epoch),
        positions=sum(lengths) if min(lengths, default=-2) >= 0 else (-2 if -2 in lengths or not lengths else -1),
        leased=sum(count(owner.leased) + count(owner.owed) for owner in owners),
        consumed=sum(count(owner.consumed) for owner in owners),
        consumers=[_consumer(owner, signs, now) for owner in owners if owner.alive],
    )


def _consumer(consumer: Consumer, signs: Signs, now: float) -> ConsumerStatus:
    pace = signs.paces.get(consumer.consumer_id)
    return ConsumerStatus(
        consumer_id=consumer.consumer_id,
        consumer=consumer.name,
        trainer=consumer.trainer,
        seconds_since_heard=signs.consumer_silence(consumer.consumer_id, now),
        rows_per_second=pace.rows_per_second if pace is not None else 0.0,
        waiting_fraction=pace.waiting_fraction if pace is not None else 0.0,
        leased_positions=count(consumer.leased) + count(consumer.owed),
        round=sum(pace.rounds) if pace is not None and pace.rounds else -1,
        skipped=pace.skipped if pace is not None else 0,
    )
