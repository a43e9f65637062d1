"""The changes of the lasting state, as data that can be journalled; and `apply`, which makes them."""

from collections.abc import Sequence
from functools import singledispatch

from msgspec.structs import replace

from penstock.service.dispatcher.machine.state import Consumer, Epoch, Job, Ledger, RegisteredDataset, State, Worker
from penstock.service.wire.spans import clipped, insert, overlap, without
from penstock.service.wire.subjects import DatasetInfo, JobParameters, Message, PassInfo, Span, WorkerInfo


class DatasetKept(Message, frozen=True, tag="dataset_kept"):
    """A dataset was registered."""

    dataset_id: str
    definition: bytes
    info: DatasetInfo
    named: bool


class DatasetDropped(Message, frozen=True, tag="dataset_dropped"):
    """Nobody can ask for a dataset any more."""

    dataset_id: str


class WorkerJoined(Message, frozen=True, tag="worker_joined"):
    """A worker has joined."""

    info: WorkerInfo
    tags: list[str]


class WorkerLeaving(Message, frozen=True, tag="worker_leaving"):
    """A worker completes its requests, and is given no more."""

    worker_id: int


class WorkerLost(Message, frozen=True, tag="worker_lost"):
    """A worker is gone."""

    worker_id: int


class WorkerDropped(Message, frozen=True, tag="worker_dropped"):
    """A lost worker is forgotten."""

    worker_id: int


class JobCreated(Message, frozen=True, tag="job_created"):
    """A job begins."""

    job_id: int
    name: str
    parameters: JobParameters


class JobDropped(Message, frozen=True, tag="job_dropped"):
    """A job is forgotten with its epochs and consumers; its name is free."""

    job_id: int


class EpochCreated(Message, frozen=True, tag="epoch_created"):
    """An epoch of a job begins."""

    epoch_id: int
    job_id: int
    number: int
    seed: int
    restored: bool


class PassAdded(Message, frozen=True, tag="pass_added"):
    """An epoch has one more pass."""

    epoch_id: int
    info: PassInfo
    home: int


class PassMoved(Message, frozen=True, tag="pass_moved"):
    """A pass is assigned to another worker."""

    epoch_id: int
    pass_number: int
    worker_id: int
    home: int


class PassEnded(Message, frozen=True, tag="pass_ended"):
    """The length of a pass has become known."""

    epoch_id: int
    pass_number: int
    length: int


class ConsumerOpened(Message, frozen=True, tag="consumer_opened"):
    """A consumer reads an epoch.

    Attributes:
        consumer_index: of coordinated reads; -1 for others.
        replaces: the consumer that it replaces, which is forgotten; -1 for none.
        owed: spans that belong to it from the beginning.
        consumed: what it has consumed already.
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


class ConsumerGone(Message, frozen=True, tag="consumer_gone"):
    """A consumer was released or lost: what it has not consumed is free."""

    consumer_id: int


class Consumed(Message, frozen=True, tag="consumed"):
    """A consumer has consumed these positions."""

    consumer_id: int
    spans: list[Span]


class Returned(Message, frozen=True, tag="returned"):
    """A consumer gives positions back."""

    consumer_id: int
    spans: list[Span]


class Granted(Message, frozen=True, tag="granted"):
    """A consumer owns these positions from now on; the answer to its `Lease` of that number tells it."""

    consumer_id: int
    number: int
    spans: list[Span]


class Stopping(Message, frozen=True, tag="stopping"):
    """The dispatcher is to end."""

    mode: str


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


def apply(state: State, update: Update) -> None:
    """Make a change. `Draft` copies the entries of the state's dictionaries; ledgers are copied here.

    Raises:
        LookupError, ValueError: it concerns something that the state does not have.
    """
    _apply(update, state)


def _ledger(epoch: Epoch, pass_number: int) -> Ledger:
    """The ledger of a pass, to be changed."""
    epoch.ledgers[pass_number] = ledger = replace(epoch.ledgers[pass_number])  # its methods replace its lists
    return ledger


def _give_back(epoch: Epoch, spans: Sequence[Span]) -> None:
    for number in {span.pass_number for span in spans}:
        _ledger(epoch, number).give_back(span for span in spans if span.pass_number == number)


@singledispatch
def _apply(update: Update, state: State) -> None:
    raise TypeError(f"no update: {update!r}")


@_apply.register
def _(update: DatasetKept, state: State) -> None:
    state.datasets[update.dataset_id] = RegisteredDataset(update.definition, update.info, update.named)


@_apply.register
def _(update: DatasetDropped, state: State) -> None:
    del state.datasets[update.dataset_id]


@_apply.register
def _(update: WorkerJoined, state: State) -> None:
    state.workers[update.info.worker_id] = Worker(update.info, update.tags)
    state.next_worker = update.info.worker_id + 1
    state.next_place = max(state.next_place, update.info.place + 1)


@_apply.register
def _(update: WorkerLeaving, state: State) -> None:
    state.workers[update.worker_id].leaving = True


@_apply.register
def _(update: WorkerLost, state: State) -> None:
    state.workers[update.worker_id].alive = False


@_apply.register
def _(update: WorkerDropped, state: State) -> None:
    del state.workers[update.worker_id]


@_apply.register
def _(update: JobCreated, state: State) -> None:
    state.jobs[update.job_id] = Job(update.job_id, update.name, update.parameters)
    state.next_job = update.job_id + 1


@_apply.register
def _(update: JobDropped, state: State) -> None:
    for epoch_id in state.jobs.pop(update.job_id).epochs:
        for consumer_id in state.epochs.pop(epoch_id).consumers:
            del state.consumers[consumer_id]


@_apply.register
def _(update: EpochCreated, state: State) -> None:
    state.epochs[update.epoch_id] = Epoch(
        update.epoch_id, update.job_id, update.number, update.seed, restored=update.restored
    )
    state.jobs[update.job_id].epochs.append(update.epoch_id)
    state.next_epoch = update.epoch_id + 1


@_apply.register
def _(update: PassAdded, state: State) -> None:
    state.epochs[update.epoch_id].ledgers.append(Ledger(update.info, home=update.home))


@_apply.register
def _(update: PassMoved, state: State) -> None:
    ledger = _ledger(state.epochs[update.epoch_id], update.pass_number)
    ledger.info = replace(ledger.info, worker_id=update.worker_id)
    ledger.home = update.home


@_apply.register
def _(update: PassEnded, state: State) -> None:
    epoch = state.epochs[update.epoch_id]
    _ledger(epoch, update.pass_number).end(update.length)
    for consumer_id in epoch.consumers:
        owner = state.consumers[consumer_id]
        owner.leased = clipped(owner.leased, update.pass_number, update.length)
        owner.owed = clipped(owner.owed, update.pass_number, update.length)
        owner.consumed = clipped(owner.consumed, update.pass_number, update.length)


@_apply.register
def _(update: ConsumerOpened, state: State) -> None:
    epoch = state.epochs[update.epoch_id]
    if update.replaces >= 0:
        del state.consumers[update.replaces]
        epoch.consumers.remove(update.replaces)
    for span in update.returned:
        ledger = _ledger(epoch, span.pass_number)
        ledger.take(span)
        ledger.give_back([span])
    for span in [*update.owed, *update.consumed]:
        _ledger(epoch, span.pass_number).take(span)
    state.consumers[update.consumer_id] = Consumer(
        consumer_id=update.consumer_id,
        epoch_id=update.epoch_id,
        name=update.name,
        consumer_index=update.consumer_index,
        trainer=update.trainer,
        owed=update.owed,
        consumed=list(update.consumed),
    )
    epoch.consumers.append(update.consumer_id)
    state.next_consumer = update.consumer_id + 1


@_apply.register
def _(update: ConsumerGone, state: State) -> None:
    consumer = state.consumers[update.consumer_id]
    epoch = state.epochs[consumer.epoch_id]
    _give_back(epoch, [*consumer.leased, *consumer.owed])
    consumer.alive, consumer.leased, consumer.owed = False, [], []


@_apply.register
def _(update: Consumed, state: State) -> None:
    consumer = state.consumers[update.consumer_id]
    consumer.consumed = list(consumer.consumed)
    for span in update.spans:
        for consumed in overlap(consumer.leased, span):
            insert(consumer.consumed, consumed)
        consumer.leased = without(consumer.leased, span)


@_apply.register
def _(update: Returned, state: State) -> None:
    consumer = state.consumers[update.consumer_id]
    epoch = state.epochs[consumer.epoch_id]
    for span in update.spans:
        consumer.leased, consumer.owed = without(consumer.leased, span), without(consumer.owed, span)
    _give_back(epoch, update.spans)


@_apply.register
def _(update: Granted, state: State) -> None:
    consumer = state.consumers[update.consumer_id]
    epoch = state.epochs[consumer.epoch_id]
    consumer.leased = list(consumer.leased)
    for span in update.spans:
        if overlap(consumer.owed, span):
            consumer.owed = without(consumer.owed, span)
        else:
            _ledger(epoch, span.pass_number).take(span)
        insert(consumer.leased, span)
    if update.number:
        consumer.answered = (update.number, update.spans)


@_apply.register
def _(update: Stopping, state: State) -> None:
    state.stopping = update.mode
