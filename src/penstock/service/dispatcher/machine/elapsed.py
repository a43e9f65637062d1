"""What happens because time goes by: the silent are taken for dead, and what nobody can ask for is forgotten."""

from collections.abc import Iterator

from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import Epoch, Job, State
from penstock.service.dispatcher.machine.updates import ConsumerGone, DatasetDropped, JobDropped, Update, WorkerDropped
from penstock.service.dispatcher.machine.workers import added, first_passes, losing


def elapsed(state: State, signs: Signs, config: DispatcherConfig, now: float) -> list[Update]:
    """The changes that are due. Asked regularly; what is found late happens late."""
    signs.keep(state)
    dropped = list(_jobs(state, signs, config, now))
    gone = {update.job_id for update in dropped}
    return [
        *_workers(state, signs, config, now),
        *_forgotten_workers(state, signs, config, now),
        *_consumers(state, signs, config, now, gone),
        *_late_passes(state, signs, config, now, gone),
        *dropped,
        *_datasets(state, signs, config, now),
    ]


def _workers(state: State, signs: Signs, config: DispatcherConfig, now: float) -> Iterator[Update]:
    lost = {
        worker_id
        for worker_id, worker in state.workers.items()
        if worker.alive and signs.worker_silence(worker_id, now) > config.worker_timeout_seconds
    }
    yield from losing(state, lost)


def _forgotten_workers(state: State, signs: Signs, config: DispatcherConfig, now: float) -> Iterator[Update]:
    for worker_id, worker in state.workers.items():
        if not worker.alive and now - signs.lost.setdefault(worker_id, now) >= config.worker_gc_seconds:
            yield WorkerDropped(worker_id=worker_id)


def _consumers(state: State, signs: Signs, config: DispatcherConfig, now: float, gone: set[int]) -> Iterator[Update]:
    for consumer_id, consumer in state.consumers.items():
        epoch = state.epochs[consumer.epoch_id]
        # Nobody waits for what a consumer has that leases nothing: it may be silent for as long as its job is kept.
        waited_for = state.leased(epoch) or state.stopping
        patience = config.lease_seconds if waited_for else max(config.job_gc_seconds, config.lease_seconds)
        if consumer.alive and epoch.job_id not in gone and signs.consumer_silence(consumer_id, now) > patience:
            yield ConsumerGone(consumer_id=consumer_id)


def _late_passes(state: State, signs: Signs, config: DispatcherConfig, now: float, gone: set[int]) -> Iterator[Update]:
    """Passes of coordinated reads that were begun without workers: when the first one has been there for a while."""
    workers = state.present()
    first = min((signs.joined.setdefault(worker.info.worker_id, now) for worker in workers), default=now)
    if not workers or now - first < config.heartbeat_seconds:
        return
    for epoch in state.epochs.values():
        job = state.jobs[epoch.job_id]
        if not epoch.ledgers and epoch.job_id not in gone:
            info = state.datasets[job.parameters.dataset_id].info
            yield from added(epoch.epoch_id, first_passes(job.parameters, info, config, workers))


def _jobs(state: State, signs: Signs, config: DispatcherConfig, now: float) -> Iterator[JobDropped]:
    for job in state.jobs.values():
        epochs = [state.epochs[epoch_id] for epoch_id in job.epochs]
        if any(state.readers(epoch) for epoch in epochs):
            signs.idle.pop(job.job_id, None)
        elif now - signs.idle.setdefault(job.job_id, now) >= _remembered_seconds(state, config, job, epochs):
            yield JobDropped(job_id=job.job_id)


def _remembered_seconds(state: State, config: DispatcherConfig, job: Job, epochs: list[Epoch]) -> float:
    if not job.name:
        return 0.0
    finished = all(state.finished(epoch) for epoch in epochs)
    return config.finished_job_seconds if finished else config.job_gc_seconds


def _datasets(state: State, signs: Signs, config: DispatcherConfig, now: float) -> Iterator[DatasetDropped]:
    read = {job.parameters.dataset_id for job in state.jobs.values()}
    for dataset_id, dataset in state.datasets.items():
        if dataset_id in read or dataset.named:
            signs.asked[dataset_id] = now
        elif now - signs.asked.setdefault(dataset_id, now) >= config.dataset_gc_seconds:
            yield DatasetDropped(dataset_id=dataset_id)
