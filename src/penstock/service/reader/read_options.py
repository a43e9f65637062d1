"""Settings of a reader, and the requests to workers that follow from them."""

from dataclasses import dataclass

from penstock.errors import PoisonError
from penstock.service.reader.distribute_options import DistributeOptions
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
        settings: the arguments of `distribute`.
        kind: the kind of the passes.
        ordered: deliver elements in the order of their positions; only for a single pass.
        length_known: whether the dispatcher's lengths count such positions.
        consumer: the name of the reader, which a restored one keeps.
    """

    settings: DistributeOptions
    dataset_id: str
    kind: PassKind
    ordered: bool = False
    length_known: bool = True
    consumer: str = ""

    @property
    def stride(self) -> int:
        """The distance from one position to the next: the number of consumers of coordinated reads; 1 for others."""
        return self.settings.num_consumers or 1

    @property
    def endless(self) -> bool:
        """Return whether a pass is fetched from beginning to end by one request, as fast as elements are taken."""
        settings = self.settings
        return settings.by_element or (self.kind == "sequence" and settings.max_outstanding_requests is None)

    @property
    def by_position(self) -> bool:
        """Return whether the positions after one can be read without it."""
        return self.kind != "sequence" and not self.settings.trainer

    def skips(self, item: Arrival) -> bool:
        """Return whether an arrival is skipped, and not passed on to the caller."""
        return self.settings.skip_poison and isinstance(item, Raised) and isinstance(item.error, PoisonError)

    def behind(self, task: FetchTask, stop: int) -> PassOffset:
        """The offset after the rows skipped after the last element of a request up to `stop`."""
        return (stop, 0) if self.kind == "groups" else (task.fetch_position + self.stride, 0)

    def may_wait_for(self) -> str:
        """Return the end of a sentence that says what a reader may wait for beside the data workers; "" for nothing."""
        cache = self.settings.cross_trainer_cache
        if cache is None or not cache.wait_for_slowest:
            return ""
        return (
            f"; or another trainer of the job {self.settings.job_name!r} takes nothing, for which {cache.trainer_id!r} "
            "waits by wait_for_slowest=True (`penstock status` shows what each takes)"
        )

    def request(self, opened: EpochOpened, info: PassInfo, span: Span, block_bytes: int, *, alone: bool) -> Fetch:
        """The request to a worker; see `Fetch`."""
        cache = self.settings.cross_trainer_cache
        return Fetch(
            dataset_id=self.dataset_id,
            epoch=opened.epoch,
            seed=opened.seed,
            policy=self.settings.policy,
            pass_info=info,
            span=span,
            by_element=self.kind == "sequence",
            stride=self.stride,
            trainer=self.settings.trainer,
            consumer=self.consumer,
            holds_back=cache is not None and cache.wait_for_slowest,
            alone=alone,
            codec=self.settings.codec,
            block_bytes=block_bytes,
        )

    def poison(self, pass_number: int, position: int) -> PoisonError:
        """The error for a position over which workers were lost."""
        what = {"rows": "element", "groups": "row", "sequence": "element"}[self.kind]
        which = (
            f" of pass {pass_number}"
            if self.settings.policy != ShardingPolicy.DYNAMIC or self.settings.coordinated
            else ""
        )
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
