"""The lasting state of a dispatcher: plain data that the journal can write."""

from collections.abc import Iterable

import msgspec

from penstock.service.wire.spans import clipped, count, merged, without
from penstock.service.wire.subjects import DatasetInfo, JobParameters, PassInfo, Span, WorkerInfo

ENDLESS = 1 << 62
"""The bound of a pass whose length is infinite or not known."""


class Ledger(msgspec.Struct, omit_defaults=True):
    """The free positions of a pass: those in `returned`, and all from `frontier` to the end.

    Methods replace `returned` and never change it in place, so that a shallow copy is independent.

    Attributes:
        home: the worker for which the pass was made, or which has taken it over; -1 if that is gone.
        frontier: the first position that was never granted.
        returned: free positions before the frontier, in order.
    """

    info: PassInfo
    home: int = -1
    frontier: int = 0
    returned: list[Span] = []

    @property
    def bound(self) -> int:
        """The length, or ENDLESS."""
        return self.info.length if self.info.length >= 0 else ENDLESS

    @property
    def free(self) -> int | None:
        """Return the number of free positions; None if it is not known."""
        if self.info.length < 0:
            return None
        return max(0, self.info.length - self.frontier) + count(self.returned)

    def take(self, span: Span) -> None:
        """Remove the positions of a span from the free ones."""
        stop = min(span.stop + (span.more > 0), self.bound)
        if self.frontier < stop and span.first == (self.frontier, 0) and span.end == (stop, 0):  # as most are
            self.frontier = stop
            return
        if stop > self.frontier:
            reached = Span(pass_number=self.info.number, start=self.frontier, stop=stop)
            self.returned = merged([*self.returned, reached])
            self.frontier = stop
        self.returned = without(self.returned, span)

    def give_back(self, spans: Iterable[Span]) -> None:
        """Make positions free again, all at once: a reader may have hundreds of spans."""
        self.returned = merged(clipped([*self.returned, *spans], self.info.number, self.bound))

    def end(self, length: int) -> None:
        """Note the length of the pass; the first one that was found counts."""
        if self.info.length != -2:
            return
        self.info = msgspec.structs.replace(self.info, length=length)
        self.frontier = min(self.frontier, length)
        self.returned = clipped(self.returned, self.info.number, length)


class RegisteredDataset(msgspec.Struct):
    """A registered dataset. `named`: by its user, not by its content."""

    definition: bytes
    info: DatasetInfo
    named: bool


class Worker(msgspec.Struct):
    """A worker. One that is `leaving` completes its requests, and is given no more."""

    info: WorkerInfo
    tags: list[str]
    alive: bool = True
    leaving: bool = False


class Consumer(msgspec.Struct, omit_defaults=True):
    """A reader of an epoch.

    One that is gone is kept with what it has consumed, as long as its job: from a state that names less it comes back,
    and gets the rest again.

    Attributes:
        consumer_index: of coordinated reads; -1 for others.
        alive: false once its lease has run out or it was released.
        leased: spans that it was granted and has not consumed.
        owed: spans that belong to it and were not granted yet: it had them before it was restored.
        consumed: spans that it has consumed.
        answered: the number of the last `Lease` that granted it spans, and these spans.
    """

    consumer_id: int
    epoch_id: int
    name: str
    consumer_index: int = -1
    trainer: str = ""
    alive: bool = True
    leased: list[Span] = []
    owed: list[Span] = []
    consumed: list[Span] = []
    answered: tuple[int, list[Span]] = (0, [])


class Epoch(msgspec.Struct):
    """An epoch of a job.

    Attributes:
        seed: the first consumer's.
        restored: whether it began with a consumer that was restored from a state.
        ledgers: one for each of its passes.
        consumers: the ids of all that ever opened it and were not replaced.
    """

    epoch_id: int
    job_id: int
    number: int
    seed: int
    restored: bool = False
    ledgers: list[Ledger] = []
    consumers: list[int] = []


class Job(msgspec.Struct):
    """A job: consumers that share epochs. `name` is "" for a job of one consumer."""

    job_id: int
    name: str
    parameters: JobParameters
    epochs: list[int] = []


class State(msgspec.Struct):
    """The whole state. Ids are counters, and never used again.

    Attributes:
        stopping: "" while the dispatcher runs. "drain": consumers read to their end, then the workers end, then the
            dispatcher; "now": the same without waiting for consumers; "leave": consumers read to their end, and workers
            stay.
    """

    datasets: dict[str, RegisteredDataset] = {}
    workers: dict[int, Worker] = {}
    jobs: dict[int, Job] = {}
    epochs: dict[int, Epoch] = {}
    consumers: dict[int, Consumer] = {}
    next_worker: int = 0
    next_place: int = 0
    next_job: int = 0
    next_epoch: int = 0
    next_consumer: int = 0
    stopping: str = ""

    def job_named(self, name: str) -> Job | None:
        """The job of that name, if there is one."""
        return next((job for job in self.jobs.values() if name and job.name == name), None)

    def epoch_of(self, job: Job, number: int) -> Epoch | None:
        """An epoch of a job, if it was opened."""
        epochs = (self.epochs[epoch_id] for epoch_id in reversed(job.epochs))  # most ask for the newest
        return next((epoch for epoch in epochs if epoch.number == number), None)

    @property
    def definition_bytes(self) -> int:
        """The size of the definitions of all datasets, in bytes."""
        return sum(len(dataset.definition) for dataset in self.datasets.values())

    def present(self) -> list[Worker]:
        """The workers that can be asked, by place."""
        there = (worker for worker in self.workers.values() if worker.alive and not worker.leaving)
        return sorted(there, key=lambda worker: (worker.info.place, worker.info.worker_id))

    def leased(self, epoch: Epoch) -> bool:
        """Return whether consumers of an epoch lease its positions, instead of owning them all or counting rounds."""
        job = self.jobs[epoch.job_id]
        return bool(job.name) and not job.parameters.num_consumers and not job.parameters.cross_trainer
