"""The changes of the lasting state, as data that can be journalled."""

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.service.dispatcher.machine.state import Consumer, Epoch, Job, Ledger, RegisteredDataset, State, Worker
from penstock.service.wire.spans import clipped, insert, overlap, without
from penstock.service.wire.subjects import DatasetInfo, JobParameters, Message, PassInfo, Span, WorkerInfo


class _Update(Message, frozen=True):
    """A change of the lasting state."""

    def apply(self, state: State) -> None:
        """Make the change. `Draft` copies the entries of the state's dictionaries; ledgers are copied here.

        Raises:
            LookupError, ValueError: it concerns something that the state does not have.
        """
        raise NotImplementedError


class DatasetKept(_Update, frozen=True, tag="dataset_kept"):
    """A dataset was registered."""

    dataset_id: str
    definition: bytes
    info: DatasetInfo
    named: bool

    def apply(self, state: State) -> None:
        state.datasets[self.dataset_id] = RegisteredDataset(self.definition, self.info, self.named)


class DatasetDropped(_Update, frozen=True, tag="dataset_dropped"):
    """A dataset is forgotten; no reader can ask for it any more."""

    dataset_id: str

    def apply(self, state: State) -> None:
        del state.datasets[self.dataset_id]


class WorkerJoined(_Update, frozen=True, tag="worker_joined"):
    """A worker has joined."""

    info: WorkerInfo
    tags: list[str]

    def apply(self, state: State) -> None:
        state.workers[self.info.worker_id] = Worker(self.info, self.tags)
        state.next_worker = self.info.worker_id + 1
        state.next_place = max(state.next_place, self.info.place + 1)


class WorkerLeaving(_Update, frozen=True, tag="worker_leaving"):
    """A worker completes its requests, and is given no more."""

    worker_id: int

    def apply(self, state: State) -> None:
        state.workers[self.worker_id].leaving = True


class WorkerLost(_Update, frozen=True, tag="worker_lost"):
    """A worker is gone."""

    worker_id: int

    def apply(self, state: State) -> None:
        state.workers[self.worker_id].alive = False


class WorkerDropped(_Update, frozen=True, tag="worker_dropped"):
    """A lost worker is forgotten."""

    worker_id: int

    def apply(self, state: State) -> None:
        del state.workers[self.worker_id]


class JobCreated(_Update, frozen=True, tag="job_created"):
    """A job begins."""

    job_id: int
    name: str
    parameters: JobParameters

    def apply(self, state: State) -> None:
        state.jobs[self.job_id] = Job(self.job_id, self.name, self.parameters)
        state.next_job = self.job_id + 1


class JobDropped(_Update, frozen=True, tag="job_dropped"):
    """A job is forgotten with its epochs and consumers; its name is free."""

    job_id: int

    def apply(self, state: State) -> None:
        for epoch_id in state.jobs.pop(self.job_id).epochs:
            for consumer_id in state.epochs.pop(epoch_id).consumers:
                del state.consumers[consumer_id]


class EpochCreated(_Update, frozen=True, tag="epoch_created"):
    """An epoch of a job begins."""

    epoch_id: int
    job_id: int
    number: int
    seed: int
    restored: bool

    def apply(self, state: State) -> None:
        epoch = Epoch(self.epoch_id, self.job_id, self.number, self.seed, restored=self.restored)
        state.epochs[self.epoch_id] = epoch
        state.jobs[self.job_id].epochs.append(self.epoch_id)
        state.next_epoch = self.epoch_id + 1


class PassAdded(_Update, frozen=True, tag="pass_added"):
    """An epoch has one more pass."""

    epoch_id: int
    info: PassInfo
    home: int

    def apply(self, state: State) -> None:
        state.epochs[self.epoch_id].ledgers.append(Ledger(self.info, home=self.home))


class PassMoved(_Update, frozen=True, tag="pass_moved"):
    """A pass is assigned to another worker."""

    epoch_id: int
    pass_number: int
    worker_id: int
    home: int

    def apply(self, state: State) -> None:
        ledger = _ledger(state.epochs[self.epoch_id], self.pass_number)
        ledger.info = replace(ledger.info, worker_id=self.worker_id)
        ledger.home = self.home


class PassEnded(_Update, frozen=True, tag="pass_ended"):
    """The length of a pass has become known."""

    epoch_id: int
    pass_number: int
    length: int

    def apply(self, state: State) -> None:
        epoch = state.epochs[self.epoch_id]
        _ledger(epoch, self.pass_number).end(self.length)
        for consumer_id in epoch.consumers:
            owner = state.consumers[consumer_id]
            owner.leased = clipped(owner.leased, self.pass_number, self.length)
            owner.owed = clipped(owner.owed, self.pass_number, self.length)
            owner.consumed = clipped(owner.consumed, self.pass_number, self.length)


class ConsumerOpened(_Update, frozen=True, tag="consumer_opened"):
    """A consumer reads an epoch.

    Attributes:
        consumer_index: of coordinated reads; -1 for others.
        replaces: the consumer that it replaces, which is forgotten; -1 for none.
        owed: spans that belong to it from the beginning.
        consumed: spans that it has consumed already.
        returned: spans that become free.
    """

    consumer_id: int
    epoch_id: int
    name: str
    consumer_index: int
    trainer: str
    replaces: int
    owed: list[Span]
    consumed: list[Span]
    returned: list[Span]

    def apply(self, state: State) -> None:
        epoch = state.epochs[self.epoch_id]
        if self.replaces >= 0:
            del state.consumers[self.replaces]
            epoch.consumers.remove(self.replaces)
        for span in self.returned:
            ledger = _ledger(epoch, span.pass_number)
            ledger.take(span)
            ledger.give_back([span])
        for span in [*self.owed, *self.consumed]:
            _ledger(epoch, span.pass_number).take(span)
        state.consumers[self.consumer_id] = Consumer(
            consumer_id=self.consumer_id,
            epoch_id=self.epoch_id,
            name=self.name,
            consumer_index=self.consumer_index,
            trainer=self.trainer,
            owed=self.owed,
            consumed=list(self.consumed),
        )
        epoch.consumers.append(self.consumer_id)
        state.next_consumer = self.consumer_id + 1


class ConsumerGone(_Update, frozen=True, tag="consumer_gone"):
    """A consumer was released or lost: the positions that it has not consumed are free."""

    consumer_id: int

    def apply(self, state: State) -> None:
        consumer = state.consumers[self.consumer_id]
        epoch = state.epochs[consumer.epoch_id]
        _give_back(epoch, [*consumer.leased, *consumer.owed])
        consumer.alive, consumer.leased, consumer.owed, consumer.answered = False, [], [], (0, [])


class Consumed(_Update, frozen=True, tag="consumed"):
    """A consumer has consumed these positions."""

    consumer_id: int
    spans: list[Span]

    def apply(self, state: State) -> None:
        consumer = state.consumers[self.consumer_id]
        consumer.consumed = list(consumer.consumed)
        for span in self.spans:
            for consumed in overlap(consumer.leased, span):
                insert(consumer.consumed, consumed)
            consumer.leased = without(consumer.leased, span)


class Returned(_Update, frozen=True, tag="returned"):
    """A consumer gives positions back."""

    consumer_id: int
    spans: list[Span]

    def apply(self, state: State) -> None:
        consumer = state.consumers[self.consumer_id]
        epoch = state.epochs[consumer.epoch_id]
        for span in self.spans:
            consumer.leased, consumer.owed = without(consumer.leased, span), without(consumer.owed, span)
        _give_back(epoch, self.spans)


class Granted(_Update, frozen=True, tag="granted"):
    """A consumer owns these positions from now on, by the answer to its `Lease` of that number."""

    consumer_id: int
    number: int
    spans: list[Span]

    def apply(self, state: State) -> None:
        consumer = state.consumers[self.consumer_id]
        epoch = state.epochs[consumer.epoch_id]
        consumer.leased = list(consumer.leased)
        for span in self.spans:
            if overlap(consumer.owed, span):
                consumer.owed = without(consumer.owed, span)
            else:
                _ledger(epoch, span.pass_number).take(span)
            insert(consumer.leased, span)
        if self.number:
            consumer.answered = (self.number, self.spans)


class Stopping(_Update, frozen=True, tag="stopping"):
    """The dispatcher is to end."""

    mode: str

    def apply(self, state: State) -> None:
        state.stopping = self.mode


Update = (
    DatasetKept
    | DatasetDropped
    | WorkerJoined
    | WorkerLeaving
    | WorkerLost
    | WorkerDropped
    | JobCreated
    | JobDropped
    | EpochCreated
    | PassAdded
    | PassMoved
    | PassEnded
    | ConsumerOpened
    | ConsumerGone
    | Consumed
    | Returned
    | Granted
    | Stopping
)


def _ledger(epoch: Epoch, pass_number: int) -> Ledger:
    """The ledger of a pass, to be changed."""
    epoch.ledgers[pass_number] = ledger = replace(epoch.ledgers[pass_number])  # its methods replace its lists
    return ledger


def _give_back(epoch: Epoch, spans: Sequence[Span]) -> None:
    for number in {span.pass_number for span in spans}:
        _ledger(epoch, number).give_back(span for span in spans if span.pass_number == number)
