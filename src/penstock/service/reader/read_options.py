"""Settings of a reader, and the requests to workers that follow from them."""

from dataclasses import dataclass

from penstock.errors import PoisonError
from penstock.service.reader.delivery import AsArrived, DeliveryOrder, InOrder, RoundRobin
from penstock.service.reader.fetch_task import Arrival, FetchTask, Raised
from penstock.service.reader.poison_search import WORKERS
from penstock.service.wire.dispatcher_messages import EpochOpened
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, PassKind, PassOffset, Span
from penstock.service.wire.worker_messages import Fetch


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Settings of a reader.

    Attributes:
        kind: the kind of the passes.
        ordered: deliver elements in the order of their positions; only for a single pass.
        by_element: positions count elements, even if the workers could read rows by index.
        length_known: whether the dispatcher's lengths count such positions.
        coordinated: whether these are coordinated reads, of one or more consumers.
        stride: the distance from one position to the next: the number of consumers of coordinated reads; 1 for others.
        consumer_index: of coordinated reads; 0 for others.
        trainer: the trainer_id of a CrossTrainerCache, otherwise "".
        consumer: the name of the reader, which a restored one keeps.
        limit: the most elements that may be requested and not delivered; None lets their size decide.
        codec: how blocks are compressed.
        skip_poison: whether elements over which workers are lost are skipped.
        own_passes: read only the passes of workers that this reader may ask.
    """

    dataset_id: str
    policy: int
    kind: PassKind
    ordered: bool = False
    by_element: bool = False
    length_known: bool = True
    coordinated: bool = False
    stride: int = 1
    consumer_index: int = 0
    trainer: str = ""
    consumer: str = ""
    holds_back: bool = False
    limit: int | None = None
    codec: str = ""
    skip_poison: bool = False
    own_passes: bool = False

    @property
    def endless(self) -> bool:
        """Return whether a pass is fetched from beginning to end by one request, as fast as elements are taken."""
        return self.coordinated or bool(self.trainer) or (self.kind == "sequence" and self.limit is None)

    def delivery_order(self) -> DeliveryOrder:
        """The order in which elements are delivered."""
        if self.coordinated:
            return RoundRobin(self.stride)
        # Trainers that share elements go through the passes in the same order, so that all meet the same ones.
        in_order = self.ordered or bool(self.trainer) or self.policy != ShardingPolicy.DYNAMIC
        return InOrder() if in_order else AsArrived()

    @property
    def by_position(self) -> bool:
        """Return whether the positions after one can be read without it."""
        return self.kind != "sequence" and not self.trainer

    def skips(self, item: Arrival) -> bool:
        """Return whether an arrival is skipped, and not passed on to the caller."""
        return self.skip_poison and isinstance(item, Raised) and isinstance(item.error, PoisonError)

    def behind(self, task: FetchTask, stop: int) -> PassOffset:
        """The offset after the rows skipped after the last element of a request up to `stop`."""
        return (stop, 0) if self.kind == "groups" else (task.fetch_position + self.stride, 0)

    def request(self, opened: EpochOpened, info: PassInfo, span: Span, block_bytes: int, *, alone: bool) -> Fetch:
        """The request to a worker; see `Fetch`."""
        return Fetch(
            dataset_id=self.dataset_id,
            epoch=opened.epoch,
            seed=opened.seed,
            policy=self.policy,
            pass_info=info,
            span=span,
            by_element=self.by_element,
            stride=self.stride,
            trainer=self.trainer,
            consumer=self.consumer,
            holds_back=self.holds_back,
            alone=alone,
            codec=self.codec,
            block_bytes=block_bytes,
        )

    def poison(self, pass_number: int, position: int) -> PoisonError:
        """The error for a position over which workers were lost."""
        what = {"rows": "element", "groups": "row", "sequence": "element"}[self.kind]
        which = f" of pass {pass_number}" if self.policy != ShardingPolicy.DYNAMIC or self.coordinated else ""
        after = (
            "distribute(skip_poison=True) skips such elements"
            if self.by_position
            else "the elements after it cannot be made without it"
        )
        return PoisonError(
            f"{what} {position}{which} has cost {WORKERS} data workers that made nothing else: a function of this "
            f"dataset ends the process that makes it, as a crash in native code or too little memory does; {after}",
            position,
            pass_number,
        )
