"""Arguments of `ps.service.distribute` for the division of a job's data over workers and consumers."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from penstock.errors import InvalidArgumentError, InvalidTypeError, PenstockError
from penstock.options import as_member


class ShardingPolicy(IntEnum):
    """The division of a dataset among data workers.

    Attributes:
        OFF: every worker goes through the whole dataset ("parallel_epochs").
        DYNAMIC: every element once, produced by whichever worker is free ("distributed_epoch").
        FILE: every worker its own files, by its place in the dispatcher's list of workers.
        DATA: every n-th element for a worker, by its place in that list.
        FILE_OR_DATA: FILE where files are read, otherwise DATA.
        HINT: at the places marked by `shard(SHARD_HINT, SHARD_HINT)`.

    Example:
        >>> import penstock as ps
        >>> distributed = ps.service.distribute(ps.service.ShardingPolicy.FILE_OR_DATA, "localhost:5050")
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5

    @property
    def static(self) -> bool:
        """Return whether each worker's part is fixed by its place in the dispatcher's list."""
        return self > ShardingPolicy.DYNAMIC


_MODES = {"parallel_epochs": ShardingPolicy.OFF, "distributed_epoch": ShardingPolicy.DYNAMIC}

TargetWorkers = Literal["AUTO", "ANY", "LOCAL"]
_TARGETS: tuple[TargetWorkers, ...] = ("AUTO", "ANY", "LOCAL")


@dataclass(frozen=True)
class CrossTrainerCache:
    """Lets trainers with different ids read elements that are produced only once.

    Each worker keeps a window of its newest elements; every trainer reads them in order, at its own pace. A trainer
    that is too slow skips the elements that have left the window, unless `wait_for_slowest` makes the others wait.

    Args:
        trainer_id: this trainer's name; consumers with the same name share its elements.
        wait_for_slowest: whether an element leaves the window only when every trainer that reads has had it. For one
            whose process is silent for the dispatcher's `lease_seconds`, the others wait no longer.

    Raises:
        InvalidTypeError: a `trainer_id` that is no string.
        InvalidArgumentError: an empty `trainer_id`.

    Example:
        >>> import penstock as ps
        >>> cache = ps.service.CrossTrainerCache("tuning-3", wait_for_slowest=True)
        >>> distributed = ps.service.distribute(
        ...     "distributed_epoch", "localhost:5050", job_name="tuning", cross_trainer_cache=cache
        ... )
    """

    trainer_id: str
    wait_for_slowest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.trainer_id, str):
            raise InvalidTypeError(f"CrossTrainerCache(trainer_id=...) takes a string, got {self.trainer_id!r}")
        if not self.trainer_id:
            raise InvalidArgumentError("CrossTrainerCache(trainer_id=...) must not be empty")


def as_policy(processing_mode: object) -> ShardingPolicy:
    """The policy that a `processing_mode` names, in whatever case it was written.

    Raises:
        InvalidArgumentError: neither a policy nor the name of one, nor one of the two modes.
    """
    name = processing_mode.lower() if isinstance(processing_mode, str) else ""
    if name in _MODES:
        return _MODES[name]
    try:
        return as_member("processing_mode", ShardingPolicy, processing_mode)
    except PenstockError:
        names = ", ".join(f'"{name}"' for name in [*_MODES, *ShardingPolicy.__members__])
        raise InvalidArgumentError(
            f"processing_mode must be a ps.service.ShardingPolicy or one of {names}, got {processing_mode!r}"
        ) from None


def as_target_workers(target_workers: object) -> TargetWorkers:
    """One of "AUTO", "ANY" and "LOCAL", in whatever case it was written.

    Raises:
        InvalidArgumentError: anything else.
    """
    for target in _TARGETS:
        if isinstance(target_workers, str) and target_workers.upper() == target:
            return target
    raise InvalidArgumentError(f'target_workers must be "AUTO", "ANY" or "LOCAL", got {target_workers!r}')
