"""What dispatcher, workers and consumers say to each other: typed messages, never pickles.

`docs/design/0014-workers-are-functions.md` says what passes and spans are. A request and its reply are msgspec structs
in MessagePack; a message is known by its tag. Seconds are those of the dispatcher's clock unless a name says otherwise.
"""

import hashlib
from typing import Any, Final, Literal

import msgspec

from penstock.service.policy import ShardingPolicy

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises where the bytes are no message."""

PassKind = Literal["rows", "groups", "sequence"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages and of what they hold."""


# What they are about


class Endpoint(Message, frozen=True):
    """How consumers reach a worker.

    Attributes:
        address: "host:port", as other hosts reach it.
        machine: tells the machine apart from others: consumers with the same one may use `socket`.
        socket: the path of its Unix socket; "" where it has none.
        process: tells the process apart from all others: a consumer with the same one calls the worker directly.
        tls: whether it is reached by TLS.
    """

    address: str
    machine: str = ""
    socket: str = ""
    process: str = ""
    tls: bool = False


class WorkerInfo(Message, frozen=True):
    """A worker, as consumers are told of it.

    Attributes:
        worker_id: given by the dispatcher, never used again.
        place: its position in the dispatcher's list of workers, or the order in which it came.
        colocated: it carries the tag COLOCATED, and consumers on other machines leave it alone under AUTO.
    """

    worker_id: int
    endpoint: Endpoint
    place: int
    colocated: bool = False


class Pass(Message, frozen=True):
    """One deterministic sequence of elements of an epoch.

    Attributes:
        number: its number in the epoch.
        worker_id: the worker that it is best asked of; -1 where any will do.
        shard_index: which of `num_shards` shards of the dataset it is, under a static policy.
        num_shards: 1 where the dataset is not divided.
        length: the number of positions; -1 infinite, -2 unknown.
    """

    number: int
    worker_id: int = -1
    shard_index: int = 0
    num_shards: int = 1
    length: int = -2


class Span(Message, frozen=True):
    """Positions start to stop - 1 of a pass; of the first one's elements the first `skip` are left out."""

    pass_number: int
    start: int
    stop: int
    skip: int = 0


class JobParameters(Message, frozen=True):
    """What all consumers of a job must agree on.

    Attributes:
        policy: the number of a ShardingPolicy.
        num_consumers: of coordinated reads; 0 for others.
        ordered: whether elements come in the order that they have in process.
    """

    dataset_id: str
    policy: int
    num_consumers: int = 0
    ordered: bool = False
    target_workers: str = "AUTO"
    cross_trainer: bool = False
    compression: str | None = None

    @property
    def fixed_passes(self) -> bool:
        """Whether an epoch keeps as many passes as there are workers when it begins, which divide the dataset."""
        return self.num_consumers > 0 or (self.cross_trainer and self.policy == ShardingPolicy.DYNAMIC)


class DatasetInfo(Message, frozen=True):
    """What is known of a registered dataset without opening it.

    Attributes:
        kind: of its pass under DYNAMIC.
        length: the number of positions of that pass; -1 infinite, -2 unknown.
        cardinality: the number of elements of an epoch; -1 infinite, -2 unknown.
        element_spec: as `wire.spec_to_data` writes it; None where it is not known.
        compression: as it was registered.
        explanation: `explain()` of it.
    """

    kind: PassKind
    length: int
    cardinality: int
    element_spec: Any = None
    compression: str | None = "AUTO"
    explanation: str = ""


def content_id(definition: bytes, info: DatasetInfo) -> str:
    """What a dataset is called that its user gave no name: the same for the same content."""
    digest = hashlib.blake2b(definition, digest_size=8)
    digest.update(msgspec.msgpack.encode(info))
    return digest.hexdigest()


# Between consumers and the dispatcher


class RegisterDataset(Message, frozen=True, tag="register_dataset"):
    """Keep a dataset; answered by `DatasetRegistered`. `dataset_id` "" lets its content name it."""

    definition: bytes
    info: DatasetInfo
    dataset_id: str = ""


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

    job_name: str
    parameters: JobParameters
    epoch: int
    seed: int
    consumer: str
    consumer_index: int = -1
    trainer: str = ""
    resumed: list[Span] | None = None


class EpochOpened(Message, frozen=True, tag="epoch_opened"):
    """The answer to `OpenEpoch`.

    Attributes:
        consumer_id: to be named in every further message of this reader.
        leased: whether spans must be leased from the dispatcher; otherwise all positions are this consumer's.
    """

    consumer_id: int
    epoch: int
    seed: int
    passes: list[Pass]
    workers: list[WorkerInfo]
    leased: bool


class Lease(Message, frozen=True, tag="lease"):
    """Ask for spans of a shared job; answered by `Leased`.

    Attributes:
        positions: how many positions are wanted at most, all spans together; 0 only acknowledges.
        consumed: spans of which this consumer has handed all elements on: `skip` says how many of position `stop`'s it
            has handed on besides.
        returned: spans that it will not read.
        ended: passes of unknown length that have ended, with their length as `stop`.
        number: counts this consumer's requests for positions, from 1: one that is sent again, because its answer was
            lost, is answered again. 0 is carried out anew every time.
    """

    consumer_id: int
    positions: int
    number: int = 0
    consumed: list[Span] = []
    returned: list[Span] = []
    ended: list[Span] = []


class Leased(Message, frozen=True, tag="leased"):
    """The answer to `Lease`.

    Attributes:
        spans: are this consumer's from now on.
        ended: nothing is left for this consumer in this epoch.
        retry_after: seconds after which to ask again, where there are neither spans nor an end.
    """

    spans: list[Span] = []
    ended: bool = False
    retry_after: float = 0.0


class ConsumerHeartbeat(Message, frozen=True, tag="consumer_heartbeat"):
    """A consumer is alive; answered by `ConsumerNews`.

    Attributes:
        round: of coordinated reads, the round that it takes next.
        rows_per_second: what it hands on.
        waiting_fraction: the part of the time since the last message in which its caller waited for it.
        lost_workers: workers that it cannot reach.
        skipped: elements that it has left out because workers were lost over them.
    """

    consumer_id: int
    round: int = -1
    rows_per_second: float = 0.0
    waiting_fraction: float = 0.0
    lost_workers: list[int] = []
    skipped: int = 0


class ConsumerNews(Message, frozen=True, tag="consumer_news"):
    """The answer to `ConsumerHeartbeat`: what holds now."""

    passes: list[Pass]
    workers: list[WorkerInfo]
    stopping: bool = False


class ReleaseConsumer(Message, frozen=True, tag="release_consumer"):
    """A consumer reads no further; what it has not consumed goes to others. Answered by `Done`."""

    consumer_id: int
    consumed: list[Span] = []


# Between workers and the dispatcher


class WorkerHello(Message, frozen=True, tag="worker_hello"):
    """A worker offers itself; answered by `WorkerWelcome`."""

    endpoint: Endpoint
    tags: list[str] = []
    versions: dict[str, str] = {}


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
    """A line of `penstock status`."""

    info: WorkerInfo
    seconds_since_heard: float
    alive: bool
    rows_per_second: float
    bytes_per_second: float
    busy_fraction: float
    window_hits: int = 0
    window_misses: int = 0


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


class Refused(Message, frozen=True, tag="refused"):
    """The answer to what cannot be done: `kind` is the name of a class in `penstock.errors`."""

    kind: str
    reason: str


# Between consumers and workers


class Fetch(Message, frozen=True, tag="fetch"):
    """Ask a worker for the elements of a span; answered by a stream of blocks, each after a `Chunk`, then an `End`.

    Attributes:
        policy: the number of a ShardingPolicy: what `part` divides by.
        by_element: positions are the numbers of elements even where they could be those of rows: with coordinated
            reads and with a trainer's window.
        stride: of coordinated reads: only every `stride`-th position from `span.start` on.
        trainer: reads through the worker's window of a CrossTrainerCache: from `span.start`, or where the window
            begins if that is later. "" for others.
        block_bytes: about how large the largest block should be.
        codec: a name of `compression.CODECS`, or "AUTO" for what the worker finds to pay; "" for none.
    """

    dataset_id: str
    epoch: int
    seed: int
    policy: int
    part: Pass
    span: Span
    by_element: bool = False
    stride: int = 1
    trainer: str = ""
    holds_back: bool = False
    block_bytes: int = 1 << 22
    codec: str = ""


class Chunk(Message, frozen=True, tag="chunk"):
    """Comes with every block.

    Attributes:
        position: of the block's first element.
        skip: how many elements of that position came before it.
        rows: the number of elements.
        seconds: how long it took the worker to produce it.
    """

    position: int
    skip: int
    rows: int
    seconds: float = 0.0


class End(Message, frozen=True, tag="end"):
    """The span is complete, or the pass ended before it: then `length` is the number of positions of the pass.

    Attributes:
        skip: how many of the elements that were to be left out come after the span.
    """

    length: int = -2
    skip: int = 0


class Failed(Message, frozen=True, tag="failed"):
    """A user's function raised, at this position; what follows it can be fetched from `next`.

    Attributes:
        next: the rest of the span after the element that failed.
        module: where the exception's class is found, with `name`.
        arguments: its arguments, those that are plain values; others as text.
        notes: PEP 678, with the worker's traceback last.
    """

    next: Span
    module: str
    name: str
    arguments: list[Any]
    notes: list[str]


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
FromWorker = Chunk | End | Failed | Refused
