"""What one reader reads, and how it asks workers for it."""

from dataclasses import dataclass

from penstock.errors import PoisonError
from penstock.service.reader.delivery import AsArrived, DeliveryOrder, InOrder, RoundRobin
from penstock.service.reader.fetch_task import Arrival, FetchTask, Raised
from penstock.service.reader.poison_search import WORKERS
from penstock.service.wire.dispatcher_messages import EpochOpened
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import Pass, PassKind, Place, Span
from penstock.service.wire.worker_messages import Fetch


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a reader reads, and how.

    Attributes:
        kind: what the positions of the passes are.
        ordered: hand elements on in the order of their positions; only of a single pass.
        by_element: positions are the numbers of elements, whatever else they could be.
        length_known: whether the lengths that the dispatcher knows are those of such positions.
        coordinated: whether it is one of the consumers of coordinated reads, of which there may be only one.
        num_consumers: of coordinated reads; 1 for others.
        consumer_index: of coordinated reads; 0 for others.
        trainer: of a CrossTrainerCache, otherwise "".
        consumer: the reader's own name, which it keeps when it is restored from a state.
        limit: the most elements that may be under way; None lets their size decide.
        codec: how blocks are compressed.
        skip_poison: leave out elements over which workers are lost.
        own_passes: of the passes that belong to a worker each, only those of workers that may be asked are read.
    """

    dataset_id: str
    policy: int
    kind: PassKind
    ordered: bool = False
    by_element: bool = False
    length_known: bool = True
    coordinated: bool = False
    num_consumers: int = 1
    consumer_index: int = 0
    trainer: str = ""
    consumer: str = ""
    holds_back: bool = False
    limit: int | None = None
    codec: str = ""
    skip_poison: bool = False
    own_passes: bool = False

    @property
    def stride(self) -> int:
        """From one position to the next: of coordinated reads, a round of all consumers is as many positions."""
        return self.num_consumers

    @property
    def endless(self) -> bool:
        """Whether a pass is fetched in one go: its worker runs through it once, as fast as elements are taken."""
        return self.coordinated or bool(self.trainer) or (self.kind == "sequence" and self.limit is None)

    def delivery_order(self) -> DeliveryOrder:
        """The order in which elements are delivered."""
        if self.coordinated:
            return RoundRobin(self.stride)
        # Trainers that share what is made go through the passes alike, so that they meet the same elements.
        in_order = self.ordered or bool(self.trainer) or self.policy != ShardingPolicy.DYNAMIC
        return InOrder() if in_order else AsArrived()

    @property
    def by_position(self) -> bool:
        """Whether what follows a position can be had without it."""
        return self.kind != "sequence" and not self.trainer

    def leaves_out(self, item: Arrival) -> bool:
        """Whether something that has arrived is not for the caller."""
        return self.skip_poison and isinstance(item, Raised) and isinstance(item.error, PoisonError)

    def behind(self, task: FetchTask, stop: int) -> Place:
        """The place that follows what was left out behind the last element, where `stop` was asked for."""
        return (stop, 0) if self.kind == "groups" else (task.fetch_position + self.stride, 0)

    def request(
        self,
        opened: EpochOpened,
        description: Pass,
        span: Span,
        *,
        alone: bool = False,
        wait_seconds: float = 0.0,
        looks_in: bool = False,
    ) -> Fetch:
        """What a worker is asked; see `Fetch`."""
        return Fetch(
            dataset_id=self.dataset_id,
            epoch=opened.epoch,
            seed=opened.seed,
            policy=self.policy,
            part=description,
            span=span,
            by_element=self.by_element,
            stride=self.stride,
            trainer=self.trainer,
            consumer=self.consumer,
            holds_back=self.holds_back,
            alone=alone,
            codec=self.codec,
            wait_seconds=wait_seconds,
            looks_in=looks_in,
        )

    def poison(self, pass_number: int, position: int) -> PoisonError:
        """The error for a position over which workers were lost."""
        what = {"rows": "element", "groups": "row", "sequence": "element"}[self.kind]
        which = f" of pass {pass_number}" if self.policy != ShardingPolicy.DYNAMIC or self.coordinated else ""
        after = (
            "distribute(skip_poison=True) leaves such elements out"
            if self.by_position
            else "what follows it cannot be made without it"
        )
        return PoisonError(
            f"{what} {position}{which} has cost {WORKERS} data workers that made nothing else: a function of this "
            f"dataset ends the process that makes it, as a crash in native code or too little memory does; {after}",
            position,
            pass_number,
        )
