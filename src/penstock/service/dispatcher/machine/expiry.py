"""Changes that time brings: silent peers are given up, and unused jobs, datasets and workers are forgotten."""

from collections.abc import Iterator

from penstock.service.dispatcher.machine.knowledge import Change, Knowledge
from penstock.service.dispatcher.machine.passes import added, first_passes, losing
from penstock.service.dispatcher.machine.state import Job
from penstock.service.dispatcher.machine.updates import ConsumerGone, DatasetDropped, JobDropped, Update, WorkerDropped
from penstock.service.dispatcher.machine.volatile import DatasetAsked


class Expiry:
    """Finds the changes that are due; call it regularly."""

    def __init__(self, known: Knowledge) -> None:
        self._known = known

    def due(self) -> list[Change]:
        """The changes that are due now."""
        jobs = list(self._expired_jobs())
        dropped = {job.job_id for job in jobs}
        return [
            *self._silent_workers(),
            *self._forgotten_workers(),
            *self._silent_consumers(dropped),
            *self._late_passes(dropped),
            *(JobDropped(job_id=job.job_id) for job in jobs),
            *self._unused_datasets(),
            *(DatasetAsked(dataset_id=job.parameters.dataset_id) for job in jobs),
        ]

    def _silent_workers(self) -> Iterator[Update]:
        known = self._known
        lost = {
            worker_id
            for worker_id, worker in known.state.workers.items()
            if worker.alive and known.worker_silence(worker_id) > known.config.worker_timeout_seconds
        }
        yield from losing(known.state, lost)

    def _forgotten_workers(self) -> Iterator[Update]:
        for worker_id, worker in self._known.volatile.workers.items():
            if self._known.now - worker.lost_at >= self._known.config.worker_gc_seconds:
                yield WorkerDropped(worker_id=worker_id)

    def _silent_consumers(self, dropped_jobs: set[int]) -> Iterator[Update]:
        state, config = self._known.state, self._known.config
        for epoch_id, consumers in self._known.volatile.readers.items():
            epoch = state.epochs[epoch_id]
            if epoch.job_id in dropped_jobs:
                continue
            # No other consumer waits for the elements of one that leases nothing, so it may be silent as long as its
            # job is kept.
            waited_for = state.leased(epoch) or state.stopping
            patience = config.lease_seconds if waited_for else max(config.job_gc_seconds, config.lease_seconds)
            silent = (number for number in consumers if self._known.consumer_silence(number) > patience)
            yield from (ConsumerGone(consumer_id=number) for number in silent)

    def _late_passes(self, dropped_jobs: set[int]) -> Iterator[Update]:
        """The passes of coordinated reads that began without workers, some time after the first worker joined."""
        known = self._known
        workers = known.state.present()
        first = min((known.volatile.workers[worker.info.worker_id].joined_at for worker in workers), default=known.now)
        if not workers or known.now - first < known.config.heartbeat_seconds:
            return
        for epoch in known.state.epochs.values():
            job = known.state.jobs[epoch.job_id]
            if not epoch.ledgers and epoch.job_id not in dropped_jobs:
                info = known.state.datasets[job.parameters.dataset_id].info
                yield from added(epoch.epoch_id, first_passes(job.parameters, info, known.config, workers))

    def _expired_jobs(self) -> Iterator[Job]:
        for job_id, idle_since in self._known.volatile.idle_since.items():
            job = self._known.state.jobs[job_id]
            if self._known.now - idle_since >= self._remembered_seconds(job):
                yield job

    def _remembered_seconds(self, job: Job) -> float:
        """Return for how many seconds a job without readers is kept."""
        if not job.name:
            return 0.0
        epochs = [self._known.state.epochs[epoch_id] for epoch_id in job.epochs]
        finished = all(self._known.finished(epoch) for epoch in epochs)
        return self._known.config.finished_job_seconds if finished else self._known.config.job_gc_seconds

    def _unused_datasets(self) -> Iterator[DatasetDropped]:
        state = self._known.state
        read = {job.parameters.dataset_id for job in state.jobs.values()}
        for dataset_id, dataset in state.datasets.items():
            unused = dataset_id not in read and not dataset.named
            asked_at = self._known.volatile.asked_at[dataset_id]
            if unused and self._known.now - asked_at >= self._known.config.dataset_gc_seconds:
                yield DatasetDropped(dataset_id=dataset_id)
