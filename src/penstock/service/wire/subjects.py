"""Parts of the messages of a service: workers, passes and spans of them, jobs and datasets.

`docs/design/service-workers.md` explains passes and spans.
"""

import hashlib
from typing import Annotated, Any, Final, Literal

import msgspec

from penstock.service.wire.policy import ShardingPolicy

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises if the bytes are no message."""

LONGEST_NAME: Final = 256
"""Of jobs, datasets, trainers, tags and addresses, in characters."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Address = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME, pattern=r"^[!-~]*\Z")]
"""A printable address, which is written into logs and errors unchanged."""

PassKind = Literal["rows", "groups", "sequence"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all messages and of their parts."""


class Endpoint(Message, frozen=True):
    """The addresses at which consumers reach a worker.

    Attributes:
        address: "host:port", as other hosts reach it.
        machine: identifies the machine: consumers with the same one may use `socket`.
        socket: the path of its Unix socket; "" where it has none.
        process: identifies the process: a consumer with the same one calls the worker directly.
        tls: whether it is reached by TLS.
    """

    address: Address
    machine: Name = ""
    socket: Name = ""
    process: Name = ""
    tls: bool = False


class WorkerInfo(Message, frozen=True):
    """Properties of a worker that consumers know.

    Attributes:
        worker_id: given by the dispatcher, never used again.
        place: its position in the dispatcher's list of workers, or the order in which it came.
        colocated: it carries the tag COLOCATED, and consumers on other machines do not use it under AUTO.
    """

    worker_id: int
    endpoint: Endpoint
    place: int
    colocated: bool = False


class PassInfo(Message, frozen=True):
    """One deterministic sequence of elements of an epoch.

    Attributes:
        number: its number in the epoch.
        worker_id: the worker to ask for it; -1 for any.
        shard_index: which of `num_shards` shards of the dataset it is, under a static policy.
        num_shards: 1 where the dataset is not divided.
        length: the number of positions; -1 infinite, -2 unknown.
    """

    number: int
    worker_id: int = -1
    shard_index: int = 0
    num_shards: int = 1
    length: int = -2


PassOffset = tuple[int, int]
"""(position, skip): the element after the first `skip` that come from a position on."""


class Span(Message, frozen=True, omit_defaults=True):
    """The elements of a pass from `first` up to, not including, `end`.

    These are the elements of the positions start to stop - 1 without the first `skip` ones, and the first `more`
    elements from position `stop` on.
    """

    pass_number: int
    start: int
    stop: int
    skip: int = 0
    more: int = 0

    @staticmethod
    def between(pass_number: int, first: PassOffset, end: PassOffset) -> "Span":
        """The elements from one offset to another."""
        return Span(pass_number=pass_number, start=first[0], stop=end[0], skip=first[1], more=end[1])

    @property
    def first(self) -> PassOffset:
        """The offset of its first element."""
        return self.start, self.skip

    @property
    def end(self) -> PassOffset:
        """The offset after its last element, where the next span begins."""
        return self.stop, self.more


class JobParameters(Message, frozen=True):
    """Parameters on which all consumers of a job must agree.

    Attributes:
        policy: the number of a ShardingPolicy.
        num_consumers: of coordinated reads; 0 for others.
        ordered: whether elements come in the order that they have in process.
    """

    dataset_id: Name
    policy: int
    num_consumers: int = 0
    ordered: bool = False
    target_workers: str = "AUTO"
    cross_trainer: bool = False
    compression: str | None = None

    @property
    def fixed_passes(self) -> bool:
        """Return whether the number of passes is fixed when an epoch begins, one for each worker."""
        return self.num_consumers > 0 or (self.cross_trainer and self.policy == ShardingPolicy.DYNAMIC)


class DatasetInfo(Message, frozen=True):
    """Information on a registered dataset that can be had without loading it.

    Attributes:
        kind: the kind of its pass under DYNAMIC.
        length: the number of positions of that pass; -1 infinite, -2 unknown.
        cardinality: the number of elements of an epoch; -1 infinite, -2 unknown.
        element_spec: as `wire.blocks.spec_to_data` writes it; None if it is not known.
        compression: as it was registered.
        explanation: `explain()` of it.
        fingerprint: identifies the dataset in all processes; "" if only its bytes can.
    """

    kind: PassKind
    length: int
    cardinality: int
    element_spec: Any = None
    compression: str | None = "AUTO"
    explanation: str = ""
    fingerprint: str = ""


def content_id(definition: bytes, info: DatasetInfo) -> str:
    """The id of a dataset that its user gave no name: the same for the same content."""
    digest = hashlib.blake2b(b"" if info.fingerprint else definition, digest_size=8)
    digest.update(msgspec.msgpack.encode(msgspec.structs.replace(info, explanation="")))
    return digest.hexdigest()


class Refused(Message, frozen=True, tag="refused"):
    """The answer to a request that cannot be carried out: `kind` is the name of a class in `penstock.errors`."""

    kind: str
    reason: str
