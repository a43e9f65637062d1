"""`Strategy`: the methods that every strategy has, as far as they do not depend on where the replicas run."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

from penstock.distribute.calls import StepLoop, check_call, checked_argument_numbers, take_batches
from penstock.distribute.contexts import (
    InputContext,
    ReduceOp,
    ValueContext,
    checked_axis,
    refuse_in_replica,
    strategy_scope,
)
from penstock.distribute.control.channel import Control
from penstock.distribute.control.listings import WorkersListings
from penstock.distribute.control.made_by_all import made_by_all
from penstock.distribute.feed.dataset import DistributedDataset, DistributedIterator, agreed_of
from penstock.distribute.feed.explain import idle_replicas
from penstock.distribute.feed.feed import PlaceLeaves
from penstock.distribute.feed.inputs import DividedInput, FunctionInput, Inputs
from penstock.distribute.feed.options import InputOptions, InputReplicationMode, PartialBatch, checked_options
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.framework import frameworks_scope
from penstock.distribute.nested import flatten_nested
from penstock.distribute.tensorflow import STRATEGY
from penstock.distribute.values import PerReplica, check_agreement, local_leaf
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.remote.shared_listings import Share, shared_by
from penstock.options import as_member, check_integer

_logger = logging.getLogger(__name__)


@STRATEGY
class Strategy(ABC):
    """Runs the same function on several replicas, each with its slice of the data.

    In the results of `run` each leaf is a `PerReplica`; with one replica in sync it is the bare value.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> isinstance(strategy, ps.Strategy), strategy.num_replicas_in_sync
        (True, 2)
    """

    _workers: StrategyWorkers
    """This worker, and how many there are."""
    _control: Control | None = None
    """Where the workers talk to each other; None where they do not."""
    _calls = 0
    """How many datasets were distributed. It is the same on every worker, so it identifies the call."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas on all workers."""
        return self._workers.replicas_in_sync

    @abstractmethod
    def _place(self, leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
        """The leaves of a step, placed for `run`; `even` says whether all replicas' slices have one shape."""

    def distribute_dataset(
        self,
        dataset: Any,
        input_options: InputOptions | None = None,
        *,
        collate: Callable[..., Any] | None = None,
    ) -> DistributedDataset:
        """A dataset of global batches, cut so that each step gives every replica its slice.

        Args:
            dataset: a `ps.Dataset` whose elements are batches: arrays, or a structure of arrays, with one common
                leading length. `ps.Options(auto_shard_policy=...)` says how several workers divide it.
            input_options: how the replicas are fed.
            collate: a function of the rows of one replica, as NumPy arrays, which gives what the replica gets instead:
                any structure, also without a row for each row, such as graphs that are put together. With
                `partial_batch="pad"` it takes the rows and the mask. It is called in the thread that reads ahead.

        Returns:
            An iterable of steps of the dataset's structure; each leaf is a `PerReplica`, or a bare array where one
            replica is in sync.

        Raises:
            InvalidTypeError: not a dataset, or one that is distributed already.
            InvalidArgumentError: the sharding policy does not fit the dataset, or the options do not fit the call.
            ElementError: the elements are not batches.
            WorkerError: the workers distribute different datasets, or one of them did not come.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> for batch in strategy.distribute_dataset(ps.Dataset.range(6).batch(4)):
            ...     print(batch.values)
            (array([0, 1]), array([2, 3]))
            (array([4]), array([5]))
        """
        refuse_in_replica("distribute_dataset")
        with self._made_by_all("distribute_dataset", input_options):
            options = checked_options("distribute_dataset", input_options)
            if isinstance(dataset, DistributedDataset):
                raise InvalidTypeError(
                    "distribute_dataset(dataset) got a dataset that is distributed already: give it the plain "
                    "ps.Dataset"
                )
            inputs = DividedInput(dataset, self._workers, PartialBatch(options.partial_batch))
        idle = idle_replicas(inputs)
        if idle is not None and self._workers.index == 0:
            _logger.warning("distribute_dataset: %s", idle)
        return self._distributed("distribute_dataset", inputs, options, collate=collate)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], input_options: InputOptions | None = None
    ) -> DistributedDataset:
        """Distribute the datasets that a function makes: in every step each replica gets one element of them.

        The function is called now, once on each worker, or once for each replica with
        `replication_mode="PER_REPLICA"`. Its datasets are used as they are: it shards them itself, and makes batches of
        the size that one replica gets.

        Args:
            dataset_fn: gives a `ps.Dataset` for a `ps.InputContext`.
            input_options: how the replicas are fed.

        Returns:
            An iterable of steps of the dataset's structure; each leaf is a `PerReplica`, or a bare array where one
            replica is in sync.

        Raises:
            InvalidTypeError: not a function, or one that gives something else.
            ElementError: elements without a batch axis in a dataset that ends: a replica without data in the last step
                could not be given an empty batch.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> def dataset_fn(context):
            ...     size = context.get_per_replica_batch_size(4)
            ...     shard = ps.Dataset.range(6).shard(context.num_input_pipelines, context.input_pipeline_id)
            ...     return shard.batch(size)
            >>> for batch in strategy.distribute_datasets_from_function(dataset_fn):
            ...     print(batch.values)
            (array([0, 1]), array([2, 3]))
            (array([4, 5]), array([], dtype=int64))
        """
        refuse_in_replica("distribute_datasets_from_function")
        with self._made_by_all("distribute_datasets_from_function", input_options):
            options = checked_options("distribute_datasets_from_function", input_options, divided=False)
            mode = InputReplicationMode(options.replication_mode)
            inputs = FunctionInput(dataset_fn, self._workers, mode)
        return self._distributed("distribute_datasets_from_function", inputs, options)

    def _made_by_all(self, call: str, options: Any = None) -> AbstractContextManager[None]:
        """A context that all workers enter in the same call with options that go together, and leave together."""
        self._calls += 1
        if self._control is None:
            return nullcontext()
        mode = options.partial_batch if isinstance(options, InputOptions) else PartialBatch.RAGGED
        if mode is not PartialBatch.RAGGED:
            call = f'{call} with partial_batch="{PartialBatch(mode).value}"'
        return made_by_all(self._control, f"call {self._calls} that distributes a dataset", call)

    def _distributed(
        self,
        call: str,
        inputs: Inputs,
        options: InputOptions,
        place: PlaceLeaves | None = None,
        collate: Callable[..., Any] | None = None,
    ) -> DistributedDataset:
        """A distributed dataset of these inputs; `place` places its steps, as `run` takes them if it is None."""
        place = place or (self._place if options.fetch_to_device else placed_on_host)
        call = f"{call} (call {self._calls})"
        return DistributedDataset(inputs, place, options, self._control, call, collate=collate)

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """One value per local replica, made now by `value_fn(context)`, in the replicas' order.

        Args:
            value_fn: gives a value or a nested structure, of one structure for all replicas.

        Returns:
            The structure, with a `PerReplica` at each leaf; the bare values where one replica is in sync.

        Raises:
            InvalidTypeError: `value_fn` is not a function, or its results differ in structure.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> strategy.distribute_values_from_function(lambda context: context.replica_id_in_sync_group * 10).values
            (0, 10)
        """
        if not callable(value_fn):
            raise InvalidTypeError(
                f"distribute_values_from_function(value_fn) takes a function of a ps.types.ValueContext, "
                f"got {value_fn!r}"
            )
        refuse_in_replica("distribute_values_from_function")
        total = self.num_replicas_in_sync
        results = [value_fn(ValueContext(replica, total)) for replica in self._workers.local]
        return results[0] if total == 1 else self._regrouped("value_fn", results)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        donate_argnums: int | Sequence[int] = (),
    ) -> Any:
        """Run `fn(*args, **kwargs)` once per replica, with the replica's own value of every `PerReplica`.

        On devices that is one compiled program for all replicas, on JAX arrays. In host memory each local replica has a
        separate thread, and a single one runs in the caller's.

        Args:
            fn: the function; inside it `ps.get_replica_context()` knows the replica.
            args: its arguments. Each replica gets its own value of every `PerReplica` in them; everything else is
                passed to all. On devices strings, True and False, functions and other hashable objects are constants
                that the program is compiled for.
            kwargs: its keyword arguments, treated like `args`.
            donate_argnums: the numbers, in `args`, of arguments whose arrays are given away: a program may write its
                results into their memory, and they cannot be used afterwards. So a state that goes in and comes out
                takes its memory once. As in `jax.jit`; in host memory it changes nothing.

        Returns:
            The structure that `fn` gives, with a `PerReplica` at each leaf; bare values where one replica is in sync.

        Raises:
            InvalidTypeError: an argument of the wrong kind, results that differ in structure, or an argument or a
                result that devices cannot hold.
            InvalidArgumentError: a `PerReplica` of another strategy, or one that was given away before; replicas that
                did not all call `all_reduce`; a number in `donate_argnums` that is no argument's.
            Exception: what `fn` raised. In host memory a note names the replica; if several raised, it is that of the
                first.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.MirroredStrategy()
            >>> state = strategy.run(lambda: 1.0)
            >>> state = strategy.run(lambda state: state + 1, args=(state,), donate_argnums=0)
            >>> float(strategy.reduce("MEAN", state))
            2.0
        """
        check_call(fn, args, kwargs)
        return self._run(fn, args, kwargs, checked_argument_numbers(donate_argnums, len(args)))

    @abstractmethod
    def _run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, donated: tuple[int, ...]
    ) -> Any:
        """Variant of `run`, whose arguments were checked."""

    def run_steps(
        self,
        fn: Callable[..., Any],
        iterator: Iterator[Any],
        steps: int,
        *,
        state: Any = None,
        donate_state: bool = False,
    ) -> Any:
        """Run up to `steps` steps, each on the iterator's next batch; on devices they are one program.

        This is faster than `run` where a step takes little time. Ragged steps are run one by one, with the same
        results. All batches are on the devices at once, and twice while they are stacked.

        Args:
            fn: the function of a step, given the batch, as one argument. With a state it is given the state and the
                batch, and returns a pair of the new state and its result.
            iterator: gives the batches: `iter(distributed_dataset)`, or any other iterator of them.
            steps: how many steps to take; fewer are taken where the data ends. The program is compiled for this number.
            state: what each step passes to the next: arrays, numbers or results of `run`, in any structure. None if
                there is nothing besides Keras's variables.
            donate_state: whether the state's arrays are given away, as by `donate_argnums` of `run`.

        Returns:
            The structure that `fn` gives, with a `PerReplica` at each leaf, bare arrays on a single device. The values
            have a leading axis with one entry for each step that was taken. With a state, a pair of the new state and
            these results.

        Raises:
            OutOfRangeError: the data has ended.
            InvalidTypeError: an iterable instead of an iterator, or a function that does not give the pair.
            InvalidArgumentError: less than one step, results whose shapes differ from step to step, or what `run`
                refuses. On devices, results with a row for each row of the batch are refused before the first step
                where a later batch of the distributed dataset may have another number of rows, and the iterator then
                gives the batches again. In host memory
                results whose shapes differ are an array of objects, one array for each step.
            Exception: raised by the iterator instead of a batch. On a single worker the steps before it were run,
                and their results are lost.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.MirroredStrategy()
            >>> iterator = iter(strategy.distribute_dataset(ps.Dataset.range(40).batch(8)))
            >>> def step(total, rows):
            ...     sum_of_rows = ps.get_replica_context().all_reduce("SUM", rows.sum())
            ...     return total + sum_of_rows, sum_of_rows
            >>> total, sums = strategy.run_steps(step, iterator, 3, state=0)
            >>> strategy.local_results(sums)[0].tolist()
            [28, 92, 156]
            >>> total, sums = strategy.run_steps(step, iterator, 3, state=total)
            >>> strategy.local_results(sums)[0].tolist(), int(strategy.local_results(total)[0])
            ([220, 284], 780)
        """
        check_call(fn, (), None)
        check_integer("strategy.run_steps", "steps", steps, minimum=1)
        if not isinstance(iterator, Iterator):
            raise InvalidTypeError(
                "strategy.run_steps(iterator) takes an iterator of batches, such as "
                f"iter(distributed_dataset), got {type(iterator).__name__}"
            )
        # With other workers a failure is final: they cannot continue without this one.
        with iterator._returning_unused() if isinstance(iterator, DistributedIterator) else nullcontext():
            batches, failure = take_batches(iterator, steps, at_once=self._control is not None)
            agreed = agreed_of(iterator._dataset) if isinstance(iterator, DistributedIterator) else None
            loop = StepLoop(fn, steps, donate_state, lambda: agreed is not None and agreed.of_every_step() is None)
            state_and_results = self._run_steps(loop, batches, state)
        if failure is not None:
            raise failure
        return state_and_results[1] if state is None else state_and_results

    @abstractmethod
    def _run_steps(self, loop: StepLoop, batches: list[Any], state: Any) -> tuple[Any, Any]:
        """Run a step with each batch; the last state, and the results joined."""

    def compile(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        donate_argnums: int | Sequence[int] = (),
    ) -> None:
        """Compile a step ahead of its first `run`, where steps are compiled; the function is traced, not run.

        Args:
            fn: the function that `run` will be given.
            args: its arguments. Instead of a batch give the `element_spec` of the distributed dataset, which must have
                no open length. Where it is only assumed, marked by `~`, a step that differs is an error in `run`.
            kwargs: its keyword arguments, treated like `args`.
            donate_argnums: as `run` will get it.

        Raises:
            InvalidArgumentError: a specification with an open length, or a number that is no argument's.
            InvalidTypeError: a specification of rows of unequal length.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.MirroredStrategy()
            >>> dataset = strategy.distribute_dataset(ps.Dataset.range(100).batch(40, drop_remainder=True))
            >>> double = lambda rows: rows * 2
            >>> strategy.compile(double, args=(dataset.element_spec,))
            >>> results = [strategy.run(double, args=(batch,)) for batch in dataset]
        """
        check_call(fn, args, kwargs)
        self._compile(fn, args, kwargs, checked_argument_numbers(donate_argnums, len(args)))

    def _compile(  # noqa: B027  # in host memory nothing is compiled
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, donated: tuple[int, ...]
    ) -> None:
        """Variant of `compile`, whose arguments were checked."""

    def reduce(self, op: ReduceOp | str, value: Any, axis: int | tuple[int, ...] | None = None) -> Any:
        """The sum or mean of a value over all replicas, and over axes of each replica's value as well.

        Args:
            op: `ps.ReduceOp.SUM` or `ps.ReduceOp.MEAN`, or their names.
            value: a `PerReplica`, or a nested structure of them. Anything else is a value that every replica has, so
                its sum is `num_replicas_in_sync` times the value.
            axis: an axis of each replica's value to reduce over too, or several in a tuple. The replicas may differ in
                length there; the mean is that of all rows, wherever they are.

        Returns:
            The structure of `value` with plain arrays.

        Raises:
            InvalidArgumentError: another `op`, an axis that does not exist, shapes that do not fit, or a mean of no
                rows.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> print(strategy.reduce("MEAN", ps.PerReplica([[1.0, 2.0], [6.0]]), axis=0))
            3.0
        """
        refuse_in_replica("strategy.reduce")
        operation = as_member("strategy.reduce(op)", ReduceOp, op)
        axes = () if axis is None else _checked_axes(axis)
        return self._map(lambda leaf: self._reduce_leaf(operation, self._checked(leaf), axes), value)

    def gather(self, value: Any, axis: int) -> Any:
        """The replicas' values joined along an axis, in the replicas' order.

        Args:
            value: a `PerReplica` of arrays with at least one axis, or a nested structure of them. Strings and other
                objects in host memory become a NumPy array; between workers go strings, bytes, numbers, None and
                arrays of these.
            axis: the axis to join along; the replicas may differ in length there.

        Returns:
            The structure of `value` with plain arrays.

        Raises:
            InvalidTypeError: objects that cannot go to other workers, on every worker alike.
            InvalidArgumentError: scalars, an axis that does not exist, or shapes that do not fit.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> print(strategy.gather(ps.PerReplica([[1, 2], [3]]), axis=0))
            [1 2 3]
        """
        refuse_in_replica("strategy.gather")
        checked_axis("strategy.gather", axis)
        return self._map(lambda leaf: self._gather_leaf(self._checked(leaf), axis), value)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The value of each local replica, in a tuple; each has the structure of `value`.

        Anything that is not a `PerReplica` is the same for every replica.

        Example:
            >>> import penstock as ps
            >>> strategy = ps.HostStrategy(replicas_per_worker=2)
            >>> strategy.local_results((ps.PerReplica([1, 2]), 5))
            ((1, 5), (2, 5))
        """
        self._map(self._checked, value)
        return tuple(
            self._map(partial(local_leaf, replica=replica), value) for replica in range(self._workers.replicas)
        )

    @contextmanager
    def scope(self) -> Iterator[Any]:
        """A context manager within which this strategy is the current one; models are made within it.

        Within it, only worker 0 lists patterns of files with a protocol, such as "s3://bucket/*.parquet". The other
        workers wait for its names, so all must list the same patterns in the same order.

        Raises:
            InvalidArgumentError: on entry, inside the scope of another strategy.
        """
        with strategy_scope(self), frameworks_scope(), shared_by(self._listings):
            yield self

    @cached_property
    def _listings(self) -> Share | None:
        """Return what shares listings with the other workers; None if there are no others."""
        return None if self._control is None else WorkersListings(self._control).names

    @abstractmethod
    def _map(self, function: Callable[[Any], Any], value: Any) -> Any:
        """`function` of each leaf of a nested value; a `PerReplica` is a leaf."""

    @abstractmethod
    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axes: tuple[int, ...]) -> Any:
        """One leaf as `reduce` gives it."""

    @abstractmethod
    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        """One leaf as `gather` gives it."""

    def _regrouped(self, call: str, results: list[Any]) -> Any:
        """One nested result per local replica as one structure with a `PerReplica` at each leaf.

        Raises:
            InvalidTypeError: the replicas' results differ in structure; `call` is named there.
        """
        apart = [flatten_nested(result) for result in results]
        check_agreement(call, [nest for _, nest in apart])
        columns = zip(*(leaves for leaves, _ in apart), strict=True)
        return apart[0][1].unflatten([PerReplica(column) for column in columns])

    def _checked(self, leaf: Any) -> Any:
        """`leaf`, unless it is a `PerReplica` of another number of replicas."""
        if isinstance(leaf, PerReplica) and leaf.count != self._workers.replicas:
            raise InvalidArgumentError(
                f"{self!r} got a PerReplica of {leaf.count} replicas, but it runs {self._workers.replicas} here: use "
                "each value with the strategy that made it"
            )
        return leaf

    def _values_of(self, leaf: Any) -> tuple[Any, ...]:
        """The value of each local replica."""
        return leaf.values if isinstance(leaf, PerReplica) else (leaf,) * self._workers.replicas


def placed_on_host(leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
    """The replicas' slices as they are, in host memory."""
    return [PerReplica(leaf.slices) for leaf in leaves]


def _checked_axes(axis: object) -> tuple[int, ...]:
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(isinstance(one, bool) or not isinstance(one, int) for one in axes):
        raise InvalidTypeError(f"strategy.reduce(axis=...) takes an axis, a tuple of axes or None, got {axis!r}")
    return axes
