"""What is said to the dispatcher, and what it answers: typed messages, never pickles.

A request and its reply are msgspec structs in MessagePack; a message is known by its tag. Seconds are those of the
dispatcher's clock unless a name says otherwise.
"""

import msgspec

from penstock.service.wire.subjects import (
    DatasetInfo,
    Endpoint,
    JobParameters,
    Message,
    Name,
    Pass,
    Refused,
    Span,
    WorkerInfo,
)

# Between consumers and the dispatcher


class RegisterDataset(Message, frozen=True, tag="register_dataset"):
    """Keep a dataset; answered by `DatasetRegistered`. `dataset_id` "" lets its content name it."""

    definition: bytes
    info: DatasetInfo
    dataset_id: Name = ""


class DatasetRegistered(Message, frozen=True, tag="dataset_registered"):
    """The answer to `RegisterDataset`."""

    dataset_id: str


class GetDataset(Message, frozen=True, tag="get_dataset"):
    """Ask for a dataset; answered by `DatasetFound`."""

    dataset_id: str
    with_definition: bool = True


class DatasetFound(Message, frozen=True, tag="dataset_found"):
    """The answer to `GetDataset`."""

    definition: bytes
    info: DatasetInfo


class OpenEpoch(Message, frozen=True, tag="open_epoch"):
    """Begin to read an epoch of a job; answered by `EpochOpened`.

    Attributes:
        job_name: "" for a job that this consumer has for itself.
        epoch: of a named job, its n-th epoch, which is the same for all consumers; else the dataset's.
        seed: what all randomness without a seed comes from. Of a named job the first consumer's counts.
        consumer: a name of this reader's own, which it keeps when it is restored from a state.
        consumer_index: of coordinated reads; -1 for others.
        trainer: the id of a CrossTrainerCache; "" for others.
        resumed: what this consumer had of each pass when its state was taken, where it is restored: these spans
            and no others are its own past.
    """

    job_name: Name
    parameters: JobParameters
    epoch: int
    seed: int
    consumer: Name
    consumer_index: int = -1
    trainer: Name = ""
    resumed: list[Span] | None = None


class EpochOpened(Message, frozen=True, tag="epoch_opened"):
    """The answer to `OpenEpoch`.

    Attributes:
        consumer_id: to be named in every further message of this reader.
        leased: whether spans must be leased from the dispatcher; otherwise all positions are this consumer's.
        version: as in `ConsumerNews`; `passes` and `workers` are all that there are.
        rounds: of coordinated reads, where the consumer goes on that takes the place of one that died, as in
            `ConsumerHeartbeat`: where the others are.
    """

    consumer_id: int
    epoch: int
    seed: int
    passes: list[Pass]
    workers: list[WorkerInfo]
    leased: bool
    version: int = -1
    rounds: list[int] = msgspec.field(default_factory=list)
    turn: int = 0


class Lease(Message, frozen=True, tag="lease"):
    """Ask for spans of a shared job; answered by `Leased`.

    Attributes:
        positions: how many positions are wanted at most, all spans together; 0 only acknowledges.
        consumed: spans of which this consumer has handed all elements on.
        returned: spans that it will not read.
        ended: passes of unknown length that have ended, with their length as `stop`.
        number: counts this consumer's requests for positions, from 1: one that is sent again, because its answer was
            lost, is answered again. 0 is carried out anew every time.
        unread: about how many of its positions it has not handed on, and could give back; -1 where it cannot tell.
        waiting: whether its caller waits for an element.
    """

    consumer_id: int
    positions: int
    number: int = 0
    unread: int = -1
    waiting: bool = False
    consumed: list[Span] = msgspec.field(default_factory=list)
    returned: list[Span] = msgspec.field(default_factory=list)
    ended: list[Span] = msgspec.field(default_factory=list)


class Leased(Message, frozen=True, tag="leased"):
    """The answer to `Lease`.

    Attributes:
        spans: are this consumer's from now on.
        ended: nothing is left for this consumer in this epoch.
        retry_after: seconds after which to ask again, where there are neither spans nor an end.
        wanted: another reader has nothing to hand on: this one is to give back what it does not need soon.
        near_end: little of the epoch is free, so that somebody may soon want what this consumer has.
    """

    spans: list[Span] = msgspec.field(default_factory=list)
    ended: bool = False
    retry_after: float = 0.0
    wanted: bool = False
    near_end: bool = False


class ConsumerHeartbeat(Message, frozen=True, tag="consumer_heartbeat"):
    """A consumer is alive; answered by `ConsumerNews`.

    Attributes:
        rounds: of coordinated reads, how many rounds of each pass its caller is done with.
        turn: the pass of the round that it is at.
        rows_per_second: what it hands on.
        waiting_fraction: the part of the time since the last message in which its caller waited for it.
        lost_workers: workers that it cannot reach.
        skipped: elements that it has left out because workers were lost over them.
        version: up to which change it knows the workers and passes: that of the last `ConsumerNews`; -1 for none.
    """

    consumer_id: int
    version: int = -1
    rounds: list[int] = msgspec.field(default_factory=list)
    turn: int = 0
    rows_per_second: float = 0.0
    waiting_fraction: float = 0.0
    lost_workers: list[int] = msgspec.field(default_factory=list)
    skipped: int = 0


class ConsumerNews(Message, frozen=True, tag="consumer_news"):
    """The answer to `ConsumerHeartbeat`: what has changed since the version that it names.

    Attributes:
        version: to be named in the next heartbeat.
        workers: those that have come; all of them where `whole`.
        gone: those that are not to be asked any more.
        whole: whether the dispatcher cannot tell what has changed, and says all that there is.
        passes: all that there are; None where none has changed.
        wanted: that of `Leased`.
        left: those of the workers that could not be reached that had said that they end.
    """

    version: int
    workers: list[WorkerInfo] = msgspec.field(default_factory=list)
    gone: list[int] = msgspec.field(default_factory=list)
    whole: bool = False
    passes: list[Pass] | None = None
    stopping: bool = False
    wanted: bool = False
    left: list[int] = msgspec.field(default_factory=list)


class ReleaseConsumer(Message, frozen=True, tag="release_consumer"):
    """A consumer reads no further; what it has not consumed goes to others. Answered by `Done`."""

    consumer_id: int
    consumed: list[Span] = msgspec.field(default_factory=list)


# Between workers and the dispatcher


class WorkerHello(Message, frozen=True, tag="worker_hello"):
    """A worker offers itself; answered by `WorkerWelcome`."""

    endpoint: Endpoint
    tags: list[Name] = msgspec.field(default_factory=list)
    versions: dict[Name, Name] = msgspec.field(default_factory=dict)


class WorkerWelcome(Message, frozen=True, tag="worker_welcome"):
    """The answer to `WorkerHello`. The worker reports every `heartbeat_seconds`."""

    worker_id: int
    heartbeat_seconds: float


class WorkerHeartbeat(Message, frozen=True, tag="worker_heartbeat"):
    """A worker is alive; answered by `WorkerNews`. What it reports is since its last message.

    Attributes:
        leaving: it ends once it has answered what it was asked: nobody is to ask it anything more.
        left: it has ended.
    """

    worker_id: int
    leaving: bool = False
    left: bool = False
    rows: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    seconds: float = 0.0
    window_hits: int = 0
    window_misses: int = 0


class WorkerNews(Message, frozen=True, tag="worker_news"):
    """The answer to `WorkerHeartbeat`.

    Attributes:
        known: whether the dispatcher knows this worker; otherwise it must say hello again.
        datasets: those that somebody may still ask for.
        stopping: the worker is to end when what it is doing is done.
    """

    known: bool
    datasets: list[str]
    stopping: bool = False


# Anybody and the dispatcher


class GetStatus(Message, frozen=True, tag="get_status"):
    """Ask what goes on; answered by `Status`."""


class WorkerStatus(Message, frozen=True):
    """A line of `penstock status`.

    Attributes:
        left: it is not alive because it was told to end.
    """

    info: WorkerInfo
    seconds_since_heard: float
    alive: bool
    rows_per_second: float
    bytes_per_second: float
    busy_fraction: float
    window_hits: int = 0
    window_misses: int = 0
    left: bool = False


class ConsumerStatus(Message, frozen=True):
    """A line of `penstock status`."""

    consumer_id: int
    consumer: str
    trainer: str
    seconds_since_heard: float
    rows_per_second: float
    waiting_fraction: float
    leased_positions: int
    round: int = -1
    skipped: int = 0


class EpochStatus(Message, frozen=True):
    """A paragraph of `penstock status`.

    Attributes:
        positions: how many there are in all passes; -1 infinite, -2 unknown.
        leased: how many are with consumers.
        consumed: how many are done.
    """

    job: str
    epoch: int
    dataset_id: str
    policy: int
    finished: bool
    positions: int
    leased: int
    consumed: int
    consumers: list[ConsumerStatus]


class Status(Message, frozen=True, tag="status"):
    """The answer to `GetStatus`."""

    version: str
    seconds_up: float
    workers: list[WorkerStatus]
    epochs: list[EpochStatus]
    datasets: int
    stopping: bool = False


class Stop(Message, frozen=True, tag="stop"):
    """Let all workers and then the dispatcher end; answered by `Done`.

    Attributes:
        drain: let consumers read to their end first.
    """

    drain: bool = True


class Done(Message, frozen=True, tag="done"):
    """It is done."""


ToDispatcher = (
    RegisterDataset
    | GetDataset
    | OpenEpoch
    | Lease
    | ConsumerHeartbeat
    | ReleaseConsumer
    | WorkerHello
    | WorkerHeartbeat
    | GetStatus
    | Stop
)
FromDispatcher = (
    DatasetRegistered
    | DatasetFound
    | EpochOpened
    | Leased
    | ConsumerNews
    | WorkerWelcome
    | WorkerNews
    | Status
    | Done
    | Refused
)
