"""`HostStrategy`: replicas in host memory, NumPy alone, run in threads that meet at `all_reduce`."""

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.block import object_column
from penstock.distribute.calls import StepLoop, checked_pair
from penstock.distribute.cluster.finding import warn_of_others
from penstock.distribute.contexts import ReduceOp, ReplicaContext, checked_axis, replica_scope
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.host.rendezvous import Abandoned, Rendezvous
from penstock.distribute.nested import flatten_nested
from penstock.distribute.reduction import holds_numbers, joined, reduced
from penstock.distribute.strategy import Strategy, placed_on_host
from penstock.distribute.tensorflow import REPLICA, STRATEGY
from penstock.distribute.values import PerReplica, check_agreement, local_value, map_leaves
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import as_member, check_integer
from penstock.spec import as_leaf


@STRATEGY
class HostStrategy(Strategy):
    """Replicas whose values are NumPy arrays in host memory.

    With several workers each process feeds and runs its own replicas: of every global batch worker w takes the slices
    of replicas w * replicas_per_worker and following. Nothing is exchanged between workers.

    Args:
        replicas_per_worker: the number of replicas in this process.
        num_workers: the number of processes; 1 where None. It is not taken from the environment, of torchrun or of
            another launcher: where that names several processes, a warning is logged.
        worker_index: the number of this process, from 0.

    Raises:
        InvalidTypeError: an argument that is not an integer.
        InvalidArgumentError: a count below 1, or a `worker_index` that is not below `num_workers`.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> batch = next(iter(strategy.distribute_dataset(ps.Dataset.range(3).batch(3))))
        >>> total = strategy.run(lambda rows: ps.get_replica_context().all_reduce("SUM", rows.sum()), args=(batch,))
        >>> [int(value) for value in total.values]
        [3, 3]
    """

    def __init__(self, replicas_per_worker: int = 1, num_workers: int | None = None, worker_index: int = 0) -> None:
        if num_workers is None:
            num_workers = 1
            warn_of_others("HostStrategy", "give it {which}, or num_workers=1 if that is meant")
        replicas = check_integer("HostStrategy", "replicas_per_worker", replicas_per_worker, minimum=1)
        count = check_integer("HostStrategy", "num_workers", num_workers, minimum=1)
        index = check_integer("HostStrategy", "worker_index", worker_index, minimum=0)
        if index >= count:
            raise InvalidArgumentError(
                f"HostStrategy(worker_index=...) must be below num_workers={count}, got {index}: workers count from 0"
            )
        self._workers = StrategyWorkers(count, index, replicas)

    def __repr__(self) -> str:
        workers = self._workers
        others = f", num_workers={workers.count}, worker_index={workers.index}" if workers.count > 1 else ""
        return f"HostStrategy(replicas_per_worker={workers.replicas}{others})"

    def _place(self, leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
        return placed_on_host(leaves, even)

    def _run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, donated: tuple[int, ...]
    ) -> Any:
        named = dict(kwargs or {})
        map_leaves(self._checked, (tuple(args), named))
        arguments = [
            (
                tuple(local_value(value, i) for value in args),
                {name: local_value(value, i) for name, value in named.items()},
            )
            for i in range(self._workers.replicas)
        ]
        results = _Session(self, fn, arguments).results()
        return (
            results[0] if self.num_replicas_in_sync == 1 else self._regrouped("the function of strategy.run", results)
        )

    def _run_steps(self, loop: StepLoop, batches: list[Any], state: Any) -> tuple[Any, Any]:
        results = []
        for batch in batches:
            result = self.run(loop.fn, (batch,) if state is None else (state, batch))
            if state is not None:
                state, result = checked_pair(result)
            results.append(result)
        flat = [flatten_nested(result) for result in results]
        check_agreement("the function of strategy.run_steps", [structure for _, structure in flat], "step")
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        return state, flat[0][1].unflatten([_stacked(column) for column in columns])

    def _map(self, function: Callable[[Any], Any], value: Any) -> Any:
        return map_leaves(function, value)

    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axes: tuple[int, ...]) -> Any:
        self._check_alone("strategy.reduce")
        return reduced(op, tuple(_number_array("strategy.reduce", value) for value in self._values_of(leaf)), axes)

    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        self._check_alone("strategy.gather")
        values = tuple(np.asarray(as_leaf(value)) for value in self._values_of(leaf))
        return joined(values, axis)

    def _check_alone(self, call: str) -> None:
        """Refuse a call that would need the values of other workers."""
        if self._workers.count > 1:
            raise InvalidArgumentError(
                f"{call} needs the values of all {self._workers.count} workers, but HostStrategy exchanges nothing "
                "between workers: use local_results and exchange them by what connects your processes"
            )


@dataclass(frozen=True)
@REPLICA
class _HostReplica(ReplicaContext):
    strategy: HostStrategy
    local: int
    rendezvous: Rendezvous

    @property
    def replica_id_in_sync_group(self) -> int:
        return self.strategy._workers.local[self.local]

    @property
    def num_replicas_in_sync(self) -> int:
        return self.strategy.num_replicas_in_sync

    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        operation = as_member("all_reduce(op)", ReduceOp, op)
        self.strategy._check_alone("all_reduce")
        arrays = map_leaves(lambda leaf: _number_array("all_reduce", leaf), value)
        return self.rendezvous.meet(self.local, (operation, arrays), _all_reduced)

    def all_gather(self, value: Any, axis: int) -> Any:
        self.strategy._check_alone("all_gather")
        arrays = map_leaves(lambda leaf: np.asarray(as_leaf(leaf)), value)
        return self.rendezvous.meet(self.local, (checked_axis("all_gather", axis), arrays), _all_gathered)


def _all_reduced(brought: list[tuple[ReduceOp, Any]]) -> list[Any]:
    """The result for each replica, given the (operation, value) of all."""
    return _combined("all_reduce", "operations", lambda op, values: reduced(op, values, (), "all_reduce"), brought)


def _all_gathered(brought: list[tuple[int, Any]]) -> list[Any]:
    """The result for each replica, given the (axis, value) of all."""
    return _combined("all_gather", "axes", lambda axis, values: joined(values, axis, "all_gather"), brought)


def _combined(
    call: str, differing: str, combine: Callable[[Any, tuple[Any, ...]], Any], brought: list[tuple[Any, Any]]
) -> list[Any]:
    """One result per replica: a copy for each, because a replica may write into its own."""
    argument = brought[0][0]
    if any(other != argument for other, _ in brought):
        raise InvalidArgumentError(f"{call} got different {differing}: {', '.join(str(other) for other, _ in brought)}")
    apart = [flatten_nested(value) for _, value in brought]
    check_agreement(f"{call}(value)", [nest for _, nest in apart])
    results = [combine(argument, column) for column in zip(*(leaves for leaves, _ in apart), strict=True)]
    return [nest.unflatten([result.copy() for result in results]) for _, nest in apart]


class _Session:
    """One call of `run`: its threads, their results and their failures."""

    def __init__(self, strategy: HostStrategy, fn: Callable[..., Any], arguments: list[Any]) -> None:
        self._strategy = strategy
        self._fn = fn
        self._arguments = arguments
        self._rendezvous = Rendezvous(len(arguments))
        self._results: dict[int, Any] = {}
        self._failures: dict[int, BaseException] = {}

    def results(self) -> list[Any]:
        """The function's result on each replica, in order."""
        threads = [
            # Each thread starts with the caller's context: NumPy's error state, an open scope.
            threading.Thread(target=contextvars.copy_context().run, args=(self._call, replica), name="penstock-replica")
            for replica in range(1, len(self._arguments))
        ]
        try:
            for thread in threads:
                thread.start()
            self._call(0)
        finally:
            for thread in threads:
                if thread.is_alive():  # one that Ctrl-C has kept from starting cannot be joined
                    thread.join()
        if self._failures:
            self._raise()
        return [self._results[replica] for replica in range(len(self._arguments))]

    def _call(self, replica: int) -> None:
        args, kwargs = self._arguments[replica]
        try:
            with replica_scope(_HostReplica(self._strategy, replica, self._rendezvous)):
                self._results[replica] = self._fn(*args, **kwargs)
        except BaseException as error:  # raised in the caller's thread when all replicas have ended
            self._failures[replica] = error
        self._rendezvous.leave(replica, failed=replica in self._failures)

    def _raise(self) -> None:
        own = [replica for replica, error in self._failures.items() if not isinstance(error, Abandoned)]
        replica = min(own)
        error = self._failures[replica]
        if len(self._arguments) > 1:
            error.add_note(f"raised on replica {self._strategy._workers.local[replica]} of {self._strategy!r}")
        self._failures.clear()
        raise error


def _stacked(column: tuple[Any, ...]) -> Any:
    """One leaf of the results of several steps, stacked; an array of objects where the shapes differ."""
    if isinstance(column[0], PerReplica):
        rows = zip(*(leaf.values for leaf in column), strict=True)
        return PerReplica([_stacked(row) for row in rows])
    values = [np.asarray(as_leaf(value)) for value in column]
    if any(value.shape != values[0].shape for value in values):
        return object_column(values)
    return np.stack(values)


def _number_array(call: str, value: Any) -> Any:
    array = np.asarray(as_leaf(value))
    if not holds_numbers(array):
        raise InvalidTypeError(f"{call} takes numbers, got {value!r}")
    return array
