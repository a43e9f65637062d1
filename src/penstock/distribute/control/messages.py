"""The messages of the control channel, and their encoding."""

from collections.abc import Hashable
from typing import Any, TypeVar, cast

import msgspec

from penstock.data.contents import NodeFacts
from penstock.rpc.connection import SocketConnection
from penstock.rpc.frames import decoder_of
from penstock.rpc.line import Line

MAXIMUM_BYTES = 1 << 26
"""The longest message: a longer one is treated as damaged."""
EXIT_SECONDS = 2.0
"""How long a failed program waits in JAX's exit for the others, which may be waiting for it in a collective."""


class GatherItem(msgspec.Struct, tag="item", array_like=True):
    """One worker's message in a `gather`.

    Attributes:
        blocks: whether the worker's program waits there for all others, and makes no other call before.
    """

    worker: int
    topic: str
    payload: msgspec.Raw
    blocks: bool = False

    @classmethod
    def of(cls, worker: int, topic: str, message: Any, *, blocks: bool = False) -> "GatherItem":
        """A worker's message, encoded."""
        return cls(worker, topic, msgspec.Raw(msgspec.msgpack.encode(message)), blocks)


class ArrayShape(msgspec.Struct, frozen=True, array_like=True):
    """Shape and dtype of one replica's array."""

    shape: tuple[int, ...]
    dtype: str


class RowShape(msgspec.Struct, frozen=True, array_like=True):
    """Dtype, and shape without the rows, of one leaf of a step; the shape is None where the replicas differ in it."""

    dtype: str
    shape: tuple[int, ...] | None


class StepSkips(msgspec.Struct, frozen=True, array_like=True):
    """Rows that a worker has skipped before its next step.

    Attributes:
        share: which part of the dataset it reads; those that read the same one must skip the same rows.
        count: how many.
        digest: stands for which they were.
        rows: those that were added since the step before, as text.
    """

    share: int = 0
    count: int = 0
    digest: int = 0
    rows: tuple[str, ...] = ()


class WorkerStep(msgspec.Struct, frozen=True, array_like=True):
    """A worker's next step of an iteration.

    Attributes:
        sizes: the rows of each of its replicas; None where it has no further step.
        all_sizes: the rows of each replica of all workers, where it knows them.
        leaves: the leaves of the step.
        skips: the rows that were skipped, where there may be some.
    """

    sizes: tuple[int, ...] | None
    all_sizes: tuple[int, ...] = ()
    leaves: tuple[RowShape, ...] = ()
    skips: StepSkips = StepSkips()


class WorkerInput(msgspec.Struct, frozen=True, array_like=True):
    """Description of the data that a worker is going to read.

    Attributes:
        labels: the policy and what else must be the same on all workers.
        nodes: of the dataset that they divide; none where each has another dataset.
        share: which part of it the worker reads.
        seed: a seed that it has drawn; all use that of worker 0.
        drawn: the seeds that were drawn when its nodes were made; all use those of worker 0.
        cardinality: the number of its steps.
        lengths: how many batches it has, their rows, and the rows of the last one, where that is known.
        leaves: the leaves of its steps, where these are known.
        listed: a digest of the names of files that each of its listings has.
        full_rows: the rows of a replica in a full step, and whether no function may have changed them; (0, False) where
            batches have no one size.
    """

    labels: list[str]
    nodes: list[NodeFacts]
    share: int
    seed: int
    drawn: list[int]
    cardinality: int
    lengths: tuple[int, int, int] | None
    leaves: tuple[RowShape, ...] | None
    listed: list[str]
    full_rows: tuple[int, bool]


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """The number of bytes that a worker is going to send, or why it cannot."""

    length: int
    refused: str | None = None


class CallDone(msgspec.Struct, frozen=True, array_like=True):
    """A worker has made a call that all make: its result for the others, or its error."""

    shared: Any = None
    error: str | None = None


class WorkerFailed(msgspec.Struct, tag="failed", array_like=True):
    """A worker has failed. If its input failed, `topic` names the iteration: others may take its steps before that."""

    worker: int
    reason: str
    topic: str = ""


class PassBegun(msgspec.Struct, frozen=True, array_like=True):
    """A worker begins to take steps: of which of its iterations, and from which place on, as `StepSource.place`."""

    iteration: int
    place: list[int]


class InputFailed(msgspec.Struct, tag="input", array_like=True):
    """A worker's input failed at the step of this number, or it takes no more from there on; those before it exist."""

    worker: int
    topic: str
    step: int
    reason: str = ""


class WorkerLeft(msgspec.Struct, tag="left", array_like=True):
    """A worker's program has ended without failure."""

    worker: int


class Preempted(msgspec.Struct, tag="preempted", array_like=True):
    """A worker knows that one of them is to end, after `answered` of its questions were answered by no."""

    worker: int
    answered: int


class Told(msgspec.Struct, tag="told", array_like=True):
    """A worker tells the others something that nobody waits for; only the newest of a topic is kept."""

    worker: int
    topic: str
    payload: msgspec.Raw


class MadeCalls(msgspec.Struct, tag="calls", array_like=True):
    """Calls of a worker that need all workers: how many there were, a digest of them, and the names of the newest.

    A name counts from the call of its number on.
    """

    worker: int
    count: int
    digest: int
    names: tuple[tuple[int, str], ...]


Message = GatherItem | WorkerFailed | InputFailed | WorkerLeft | Preempted | MadeCalls | Told
Payload = TypeVar("Payload")

ControlLine = Line[Message]
"""A line between a worker and the hub."""


def control_line(connection: SocketConnection) -> ControlLine:
    """The line over a connection, whose frames cannot be changed unnoticed."""
    return Line(connection, Message, None, most_bytes=MAXIMUM_BYTES, tagged=True)


def decode_payload(payload: msgspec.Raw, kind: type[Payload]) -> Payload:
    """The content of a `GatherItem`; raises `msgspec.DecodeError` if it is of another type."""
    found: Payload = decoder_of(cast(Hashable, kind)).decode(payload)
    return found
