"""The messages to the dispatcher, and its answers: typed data, never pickles.

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
    PassInfo,
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
        job_name: "" for a job of this consumer alone.
        epoch: the number of the epoch: of a named job, which all consumers share, or of the dataset.
        seed: the seed of all randomness without another one. In a named job the first consumer's counts.
        consumer: the name of this reader, which a restored one keeps.
        consumer_index: of coordinated reads; -1 for others.
        trainer: the id of a CrossTrainerCache; "" for others.
        resumed: for a restored consumer, the spans that it had consumed when its state was taken; None for others.
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
        consumer_id: the id to use in all further messages of this reader.
        leased: whether spans must be leased from the dispatcher; otherwise all positions are this consumer's.
        version: as in `ConsumerNews`; `passes` and `workers` are all that there are.
        rounds: for a consumer of coordinated reads that replaces a dead one, the rounds to continue with, as in
            `ConsumerHeartbeat`.
    """

    consumer_id: int
    epoch: int
    seed: int
    passes: list[PassInfo]
    workers: list[WorkerInfo]
    leased: bool
    version: int = -1
    rounds: list[int] = msgspec.field(default_factory=list)
    turn: int = 0


class Lease(Message, frozen=True, tag="lease"):
    """Ask for spans of a shared job; answered by `Leased`.

    Attributes:
        positions: the most positions that are wanted, all spans together; 0 only acknowledges.
        consumed: spans of which this consumer has delivered all elements.
        returned: spans that it gives back.
        ended: passes of unknown length that have ended, with their length as `stop`.
        number: counts this consumer's requests for positions, from 1. A request that is sent again, because its answer
            was lost, gets the same answer. A request with number 0 is carried out every time.
        unread: about how many of its positions it has not delivered, and could give back; -1 if it does not know.
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
        spans: belong to this consumer from now on.
        ended: nothing is left for this consumer in this epoch.
        retry_after: the seconds after which to ask again, if there are neither spans nor an end.
        wanted: another reader has nothing: this one should give back positions that it does not need soon.
        near_end: little of the epoch is free, so another consumer may soon need positions of this one.
    """

    spans: list[Span] = msgspec.field(default_factory=list)
    ended: bool = False
    retry_after: float = 0.0
    wanted: bool = False
    near_end: bool = False


class ConsumerHeartbeat(Message, frozen=True, tag="consumer_heartbeat"):
    """A consumer is alive; answered by `ConsumerNews`.

    Attributes:
        rounds: for coordinated reads, how many rounds of each pass its caller has completed.
        turn: the pass that is next.
        elements_per_second: the rate at which it delivers elements.
        waiting_fraction: the fraction of the time since the last heartbeat in which its caller waited.
        lost_workers: workers that it cannot reach.
        skipped: the number of elements it skipped because workers were lost over them.
        process: the host and the number of its process, for `penstock status`.
        version: the `version` of the last `ConsumerNews`; -1 for none.
    """

    consumer_id: int
    version: int = -1
    rounds: list[int] = msgspec.field(default_factory=list)
    turn: int = 0
    elements_per_second: float = 0.0
    waiting_fraction: float = 0.0
    lost_workers: list[int] = msgspec.field(default_factory=list)
    skipped: int = 0
    process: Name = ""


class ConsumerNews(Message, frozen=True, tag="consumer_news"):
    """The answer to `ConsumerHeartbeat`: the changes since the version that it names.

    Attributes:
        version: the version to send in the next heartbeat.
        workers: the workers that joined; all of them if `whole`.
        gone: the workers that must not be asked any more.
        whole: whether this is everything, because the dispatcher no longer has those changes.
        passes: all passes; None if none has changed.
        wanted: that of `Leased`.
        left: those of the unreachable workers that had announced their end.
    """

    version: int
    workers: list[WorkerInfo] = msgspec.field(default_factory=list)
    gone: list[int] = msgspec.field(default_factory=list)
    whole: bool = False
    passes: list[PassInfo] | None = None
    stopping: bool = False
    wanted: bool = False
    left: list[int] = msgspec.field(default_factory=list)


class ReleaseConsumer(Message, frozen=True, tag="release_consumer"):
    """A consumer stops reading; the rest of its positions goes to others. Answered by `Done`."""

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
    """A worker is alive; answered by `WorkerNews`. Its figures count from its last message.

    Attributes:
        leaving: it ends after its present requests, and should not get new ones.
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
        known: whether the dispatcher knows this worker; otherwise it must send `WorkerHello` again.
        datasets: those that a reader may still ask for.
        stopping: the worker should complete its requests, and end.
        silent: the names of readers of cross-trainer caches that are silent for too long: no other one waits for them.
    """

    known: bool
    datasets: list[str]
    stopping: bool = False
    silent: tuple[str, ...] = ()


# Anybody and the dispatcher


class GetStatus(Message, frozen=True, tag="get_status"):
    """Ask for the state of the service; answered by `Status`."""


class WorkerStatus(Message, frozen=True):
    """A line of `penstock status`.

    Attributes:
        left: it ended after it had announced that.
    """

    info: WorkerInfo
    seconds_since_heard: float
    alive: bool
    elements_per_second: float
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
    elements_per_second: float
    waiting_fraction: float
    leased_positions: int
    round: int = -1
    skipped: int = 0
    process: str = ""


class EpochStatus(Message, frozen=True):
    """A paragraph of `penstock status`.

    Attributes:
        positions: how many there are in all passes; -1 infinite, -2 unknown.
        leased: how many are leased to consumers.
        consumed: how many are consumed.
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


class DispatcherCounts(msgspec.Struct, frozen=True):
    """Numbers of events since a dispatcher began, and the state of its journal.

    Attributes:
        lost_workers: those that ended without announcing it.
        refused_callers: connections that were closed because they did not prove to know the secret.
        journal_errors: changes that could not be written.
        journal_bytes: the size of its files; -1 without a journal.
        journal_writable: false from a failed write to the next one that succeeds.
    """

    lost_workers: int = 0
    ended_readers: int = 0
    begun_epochs: int = 0
    refused_callers: int = 0
    journal_errors: int = 0
    journal_bytes: int = -1
    journal_writable: bool = True


class Status(Message, frozen=True, tag="status"):
    """The answer to `GetStatus`.

    Attributes:
        definition_bytes: of all datasets that are registered.
    """

    version: str
    seconds_up: float
    workers: list[WorkerStatus]
    epochs: list[EpochStatus]
    datasets: int
    stopping: bool = False
    definition_bytes: int = 0
    counts: DispatcherCounts = DispatcherCounts()

    @property
    def trouble(self) -> str:
        """The reason why it can take no work now; "" if it can."""
        if self.stopping:
            return "the dispatcher is stopping"
        return "" if self.counts.journal_writable else "the dispatcher cannot write its journal"


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
