"""The arguments of `ps.service.distribute`, checked at the call, and the properties that follow from them."""

from dataclasses import dataclass

from penstock.data.node import Node
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import AUTOTUNE, check_flag, check_integer, check_seconds
from penstock.service.security.resolving import Service, checked_service
from penstock.service.transport.connect import as_protocol
from penstock.service.transport.dispatcher_client import PATIENCE_SECONDS
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.wire.compression import as_codec
from penstock.service.wire.policy import CrossTrainerCache, ShardingPolicy, TargetWorkers, as_policy, as_target_workers
from penstock.service.wire.subjects import LONGEST_NAME, PassInfo, PassKind, WorkerInfo
from penstock.service.worker.cut import kind_of
from penstock.service.worker.pass_nodes import nodes_of_pass


@dataclass(frozen=True, kw_only=True)
class DistributeOptions:
    """The checked arguments of `distribute`, under their own names."""

    policy: ShardingPolicy
    service: Service
    job_name: str | None = None
    consumer_index: int | None = None
    num_consumers: int | None = None
    max_outstanding_requests: int | None = None
    data_transfer_protocol: str | None = None
    codec: str = "AUTO"
    cross_trainer_cache: CrossTrainerCache | None = None
    target_workers: TargetWorkers = "AUTO"
    skip_poison: bool = False
    dispatcher_timeout_seconds: float = PATIENCE_SECONDS

    @property
    def alone(self) -> bool:
        """Return whether one consumer reads everything."""
        return self.job_name is None

    @property
    def coordinated(self) -> bool:
        """Return whether these are coordinated reads, of one or more consumers."""
        return self.num_consumers is not None

    @property
    def trainer(self) -> str:
        """Return the trainer_id of a cross_trainer_cache; "" without one."""
        return "" if self.cross_trainer_cache is None else self.cross_trainer_cache.trainer_id

    @property
    def by_element(self) -> bool:
        """Return whether positions count elements, even if the workers could read rows by index."""
        return self.coordinated or self.cross_trainer_cache is not None

    @property
    def own_passes(self) -> bool:
        """Return whether a reader reads only the passes of workers that it may ask."""
        return self.target_workers == "LOCAL" and self.policy is not ShardingPolicy.DYNAMIC

    @property
    def can_be_ordered(self) -> bool:
        """Return whether elements can keep their order in process: one consumer reads one pass."""
        return self.alone and self.policy is ShardingPolicy.DYNAMIC

    def kind_of(self, produced: Node) -> PassKind:
        """The kind of the passes that workers make of these nodes."""
        nodes = produced
        if self.policy.static:
            nodes = nodes_of_pass(produced, self.policy, PassInfo(number=0, shard_index=0, num_shards=1))
        kind, _ = kind_of(nodes)
        return "sequence" if self.by_element and kind == "groups" else kind

    def usable(self, worker: WorkerInfo) -> bool:
        """Return whether this job may ask a worker, going by `target_workers`."""
        local = worker.endpoint.process == this_process()
        if self.target_workers == "LOCAL":
            return local
        here = local or worker.endpoint.machine == this_machine()
        return self.target_workers == "ANY" or here or not worker.colocated


def checked_options(
    call: str,
    *,
    processing_mode: object,
    service: object,
    job_name: object,
    consumer_index: object,
    num_consumers: object,
    max_outstanding_requests: object,
    data_transfer_protocol: object,
    compression: object,
    cross_trainer_cache: object,
    target_workers: object,
    skip_poison: object = False,
    dispatcher_timeout_seconds: object = PATIENCE_SECONDS,
) -> DistributeOptions:
    """The arguments of `distribute`, each checked by itself and all together.

    Args:
        call: the user's call, which errors begin with.

    Raises:
        InvalidArgumentError: an argument that can never work, or some that contradict each other.
        InvalidTypeError: an argument of the wrong type.
    """
    if job_name is not None:
        check_name(call, "job_name", job_name)
    if (consumer_index is None) != (num_consumers is None):
        given = "consumer_index" if num_consumers is None else "num_consumers"
        raise InvalidArgumentError(f"{call}: consumer_index and num_consumers belong together, got only {given}")
    index = consumers = requests = None
    if num_consumers is not None:
        consumers = check_integer(call, "num_consumers", num_consumers, minimum=1)
        index = check_integer(call, "consumer_index", consumer_index, minimum=0)
        if index >= consumers:
            raise InvalidArgumentError(
                f"{call}(consumer_index=...) must be less than num_consumers={consumers}, got {index}"
            )
    if max_outstanding_requests is not None and max_outstanding_requests != AUTOTUNE:
        requests = check_integer(call, "max_outstanding_requests", max_outstanding_requests, minimum=1)
    if cross_trainer_cache is not None and not isinstance(cross_trainer_cache, CrossTrainerCache):
        raise InvalidTypeError(
            f"{call}(cross_trainer_cache=...) takes a ps.service.CrossTrainerCache, got {cross_trainer_cache!r}"
        )
    settings = DistributeOptions(
        policy=as_policy(processing_mode),
        service=checked_service(call, service),
        job_name=job_name,  # type: ignore[arg-type]  # checked above
        consumer_index=index,
        num_consumers=consumers,
        max_outstanding_requests=requests,
        data_transfer_protocol=as_protocol(data_transfer_protocol),
        codec=as_codec(compression),
        cross_trainer_cache=cross_trainer_cache,
        target_workers=as_target_workers(target_workers),
        skip_poison=check_flag(call, "skip_poison", skip_poison),
        dispatcher_timeout_seconds=check_seconds(call, "dispatcher_timeout_seconds", dispatcher_timeout_seconds),
    )
    _check_together(call, settings)
    return settings


def _check_together(call: str, settings: DistributeOptions) -> None:
    if settings.own_passes and not settings.alone and not settings.by_element:
        raise InvalidArgumentError(
            f'{call}: target_workers="LOCAL" under ShardingPolicy.{settings.policy.name} gives each reader the '
            f"passes of the workers in its process, and readers of the job {settings.job_name!r} share those of all: "
            "omit job_name (and give shuffles a seed, which all readers then have), or use ShardingPolicy.DYNAMIC"
        )
    if not settings.by_element:
        return
    what = "coordinated reads need" if settings.coordinated else "a cross_trainer_cache needs"
    if settings.job_name is None:
        raise InvalidArgumentError(f"{call}: {what} a job_name, by which the readers find each other")
    if settings.coordinated and settings.cross_trainer_cache is not None:
        raise InvalidArgumentError(f"{call}: coordinated reads and a cross_trainer_cache exclude each other")
    if settings.coordinated and settings.target_workers == "LOCAL":
        raise InvalidArgumentError(
            f'{call}: coordinated reads ask the same worker for all consumers, target_workers="LOCAL" asks other ones '
            'in each process: use "ANY" or "AUTO"'
        )
    if settings.policy.static:
        raise InvalidArgumentError(
            f"{call}: {what} ShardingPolicy.OFF or ShardingPolicy.DYNAMIC, got {settings.policy.name}"
        )
    if settings.skip_poison:
        raise InvalidArgumentError(
            f"{call}(skip_poison=True) would put coordinated reads out of step, and cannot continue in the one stream "
            "that trainers of a cross_trainer_cache share: omit it"
        )


def check_ordered(call: str, settings: DistributeOptions, ordered: object) -> None:
    """Refuse an argument `ordered` that these settings do not allow.

    Raises:
        InvalidTypeError: neither a boolean nor None.
        InvalidArgumentError: True, where elements cannot come in order.
    """
    if ordered is None:
        return
    if check_flag(call, "ordered", ordered) and not settings.can_be_ordered:
        raise InvalidArgumentError(
            f'{call}(ordered=True) is for one dataset that reads alone under "distributed_epoch": omit job_name, and '
            f"use that processing_mode, got {settings.policy.name}, job_name={settings.job_name!r}"
        )


def check_name(call: str, name: str, value: object) -> None:
    """Refuse a name that is no string, empty, or too long."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"{call}({name}=...) takes a string, got {value!r}")
    if not value:
        raise InvalidArgumentError(f"{call}({name}=...) must not be empty")
    if len(value) > LONGEST_NAME:
        raise InvalidArgumentError(
            f"{call}({name}=...) must have at most {LONGEST_NAME} characters, got one of {len(value):,}"
        )
