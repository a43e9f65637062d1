"""Contexts of users' functions: `ReplicaContext`, `ValueContext`, `InputContext`, and the open strategy."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.distribute.tensorflow import REPLICA
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer


class ReduceOp(StrEnum):
    """Reduction of the replicas' values to one; the names "SUM" and "MEAN" are accepted too.

    Example:
        >>> import penstock as ps
        >>> strategy, values = ps.HostStrategy(replicas_per_worker=2), ps.PerReplica([1, 4])
        >>> print(strategy.reduce(ps.ReduceOp.SUM, values), strategy.reduce("MEAN", values))
        5 2.5
    """

    SUM = "SUM"
    MEAN = "MEAN"


def checked_axis(call: str, axis: object) -> int:
    """`axis`, which must be a number; `call` says in the error where it was given."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise InvalidTypeError(f"{call}(axis=...) takes an axis, got {axis!r}")
    return axis


@dataclass(frozen=True)
class ValueContext:
    """Argument of the function given to `distribute_values_from_function`.

    Attributes:
        replica_id_in_sync_group: the replica that the value is for, counted over all workers.
        num_replicas_in_sync: the number of replicas on all workers.

    Example:
        >>> print(ValueContext(2, 4))
        ps.types.ValueContext(replica id 2, total replicas in sync: 4)
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        return (
            f"ps.types.ValueContext(replica id {self.replica_id_in_sync_group}, "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )


@dataclass(frozen=True)
class InputContext:
    """Argument of the function given to `distribute_datasets_from_function`.

    Attributes:
        num_input_pipelines: how many datasets are made in all: one for each worker, or one for each replica.
        input_pipeline_id: the index of this one, from 0.
        num_replicas_in_sync: the number of replicas on all workers; 1 with parameter servers, whose workers do not wait
            for each other.

    Example:
        >>> context = InputContext(3, 1, 6)
        >>> print(context, context.get_per_replica_batch_size(24))
        ps.InputContext(input pipeline id 1, total: 3) 4
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The rows of each replica in a step of `global_batch_size` rows.

        Raises:
            InvalidTypeError: not an integer.
            InvalidArgumentError: a size that the replicas do not divide.
        """
        size = check_integer("get_per_replica_batch_size", "global_batch_size", global_batch_size, minimum=1)
        if size % self.num_replicas_in_sync:
            raise InvalidArgumentError(
                f"get_per_replica_batch_size got a global batch of {size} rows, which {self.num_replicas_in_sync} "
                "replicas do not divide evenly: choose a multiple"
            )
        return size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return f"ps.InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines})"


@REPLICA
class ReplicaContext(ABC):
    """The replica that a function inside `run` runs for; from `get_replica_context()`.

    Example:
        >>> import penstock as ps
        >>> def share(value):
        ...     return value / ps.get_replica_context().all_reduce("SUM", value)
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> [float(part) for part in strategy.run(share, args=(ps.PerReplica([1.0, 3.0]),)).values]
        [0.25, 0.75]
    """

    @property
    @abstractmethod
    def replica_id_in_sync_group(self) -> Any:
        """The number of this replica, from 0: an integer, or an int32 scalar inside a compiled program."""

    @property
    @abstractmethod
    def num_replicas_in_sync(self) -> int:
        """The number of replicas on all workers."""

    @property
    def has_rows(self) -> bool:
        """Return whether this replica has data in this step: False only in a ragged step that left it without."""
        return True

    @abstractmethod
    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        """The sum or the mean of a value over all replicas; every replica gets it, and every replica must call this.

        Args:
            op: `ps.ReduceOp.SUM` or `ps.ReduceOp.MEAN`, or their names.
            value: an array, or a nested structure of arrays, of the same shapes on every replica.

        Returns:
            The structure of `value`. The mean of integers is floating point.

        Raises:
            InvalidArgumentError: another `op`, values that do not fit each other, or replicas that did not all ask.
        """

    @abstractmethod
    def all_gather(self, value: Any, axis: int) -> Any:
        """The values of all replicas joined along an axis; every replica gets them, and every replica must call this.

        Args:
            value: an array with at least one axis, or a nested structure of arrays. On devices all replicas' are equal
                in shape: in a ragged step, values with a row for each row of the slice are refused.
            axis: the axis to join along.

        Returns:
            The structure of `value`.

        Raises:
            InvalidTypeError: `axis` is no number.
            InvalidArgumentError: scalars, an axis that does not exist, or values that do not fit each other.
        """


_replica: ContextVar[ReplicaContext | None] = ContextVar("penstock_replica", default=None)
_strategy: ContextVar[Any] = ContextVar("penstock_strategy", default=None)


def get_replica_context() -> ReplicaContext:
    """The replica that the calling function runs for.

    Raises:
        InvalidArgumentError: the caller does not run inside `strategy.run(...)`.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> strategy.run(lambda: ps.get_replica_context().replica_id_in_sync_group)
        PerReplica:{
          0: 0,
          1: 1
        }
    """
    context = _replica.get()
    if context is None:
        raise InvalidArgumentError(
            "get_replica_context() works only inside a function that runs on replicas: call it from within "
            "strategy.run(function, ...)"
        )
    return context


def in_replica() -> bool:
    """Return whether the caller runs inside `strategy.run(...)`."""
    return _replica.get() is not None


def refuse_in_replica(call: str) -> None:
    """Refuse a call that makes sense outside `run` only."""
    if _replica.get() is not None:
        raise InvalidArgumentError(
            f"{call} was called inside strategy.run(...): call it outside and give its result to run(...) in args"
        )


@contextmanager
def replica_scope(context: ReplicaContext) -> Iterator[None]:
    """Within it `get_replica_context()` gives `context`."""
    token = _replica.set(context)
    try:
        yield
    finally:
        _replica.reset(token)


@contextmanager
def strategy_scope(strategy: Any) -> Iterator[Any]:
    """Within it `get_strategy()` gives `strategy`."""
    outer = _strategy.get()
    if outer is not None and outer is not strategy:
        raise InvalidArgumentError(
            f"the scope of {strategy!r} was entered inside the scope of {outer!r}: leave that one first"
        )
    token = _strategy.set(strategy)
    try:
        yield strategy
    finally:
        _strategy.reset(token)


def get_strategy() -> Any:
    """The strategy whose `scope()` is open, or None where none is: there is no default strategy.

    Example:
        >>> import penstock as ps
        >>> with ps.HostStrategy(replicas_per_worker=2).scope():
        ...     ps.get_strategy()
        HostStrategy(replicas_per_worker=2)
        >>> ps.get_strategy() is None
        True
    """
    return _strategy.get()
