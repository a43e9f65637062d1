"""Changes that time brings: silent peers are given up, and unused jobs, datasets and workers are forgotten."""

from collections.abc import Iterator

from penstock.service.dispatcher.machine.knowledge import Change, Knowledge
from penstock.service.dispatcher.machine.passes import added, first_passes, losing
from penstock.service.dispatcher.machine.state import Job
from penstock.service.dispatcher.machine.updates import ConsumerGone, DatasetDropped, JobDropped, Update, WorkerDropped
from penstock.service.dispatcher.machine.volatile import DatasetAsked


def due_changes(known: Knowledge) -> list[Change]:
    """The changes that are due now."""
    jobs = list(_expired_jobs(known))
    dropped = {job.job_id for job in jobs}
    return [
        *_silent_workers(known),
        *_forgotten_workers(known),
        *_silent_consumers(known, dropped),
        *_late_passes(known, dropped),
        *(JobDropped(job_id=job.job_id) for job in jobs),
        *_unused_datasets(known),
        *(DatasetAsked(dataset_id=job.parameters.dataset_id) for job in jobs),
    ]


def _silent_workers(known: Knowledge) -> Iterator[Update]:
    lost = {
        worker_id
        for worker_id, worker in known.state.workers.items()
        if worker.alive and known.worker_silence(worker_id) > known.config.worker_timeout_seconds
    }
    yield from losing(known.state, lost)


def _forgotten_workers(known: Knowledge) -> Iterator[Update]:
    for worker_id, worker in known.volatile.workers.items():
        if known.now - worker.lost_at >= known.config.worker_gc_seconds:
            yield WorkerDropped(worker_id=worker_id)


def _silent_consumers(known: Knowledge, dropped_jobs: set[int]) -> Iterator[Update]:
    state, config = known.state, known.config
    for epoch_id, consumers in known.volatile.readers.items():
        epoch = state.epochs[epoch_id]
        if epoch.job_id in dropped_jobs:
            continue
        # No other consumer waits for the elements of one that leases nothing, so it may be silent as long as its
        # job is kept.
        waited_for = state.leased(epoch) or state.stopping
        patience = config.lease_seconds if waited_for else max(config.job_gc_seconds, config.lease_seconds)
        silent = (number for number in consumers if known.consumer_silence(number) > patience)
        yield from (ConsumerGone(consumer_id=number) for number in silent)


def _late_passes(known: Knowledge, dropped_jobs: set[int]) -> Iterator[Update]:
    """The passes of coordinated reads that began without workers, some time after the first worker joined."""
    workers = known.state.present()
    first = min((known.volatile.workers[worker.info.worker_id].joined_at for worker in workers), default=known.now)
    if not workers or known.now - first < known.config.heartbeat_seconds:
        return
    for epoch in known.state.epochs.values():
        job = known.state.jobs[epoch.job_id]
        if not epoch.ledgers and epoch.job_id not in dropped_jobs:
            info = known.state.datasets[job.parameters.dataset_id].info
            yield from added(epoch.epoch_id, first_passes(job.parameters, info, known.config, workers))


def _expired_jobs(known: Knowledge) -> Iterator[Job]:
    for job_id, idle_since in known.volatile.idle_since.items():
        job = known.state.jobs[job_id]
        if known.now - idle_since >= _remembered_seconds(known, job):
            yield job


def _remembered_seconds(known: Knowledge, job: Job) -> float:
    """Return for how many seconds a job without readers is kept."""
    if not job.name:
        return 0.0
    epochs = [known.state.epochs[epoch_id] for epoch_id in job.epochs]
    finished = all(known.finished(epoch) for epoch in epochs)
    return known.config.finished_job_seconds if finished else known.config.job_gc_seconds


def _unused_datasets(known: Knowledge) -> Iterator[DatasetDropped]:
    state = known.state
    read = {job.parameters.dataset_id for job in state.jobs.values()}
    for dataset_id, dataset in state.datasets.items():
        unused = dataset_id not in read and not dataset.named
        asked_at = known.volatile.asked_at[dataset_id]
        if unused and known.now - asked_at >= known.config.dataset_gc_seconds:
            yield DatasetDropped(dataset_id=dataset_id)
