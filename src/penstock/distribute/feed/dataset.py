"""Distributed input as the user sees it: a dataset of steps, and one pass over it."""

import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np

from penstock.data.dataset import Dataset
from penstock.data.iterator_states import plain
from penstock.data.node import Node
from penstock.data.origins import Row
from penstock.data.remixing import for_dataset, with_weights
from penstock.data.skipped import SkippedRows
from penstock.distribute.calls import RowsVaryError
from penstock.distribute.contexts import refuse_in_replica
from penstock.distribute.control.channel import Control
from penstock.distribute.feed.agreement import (
    AgreedInput,
    Agreement,
    ComputedAgreement,
    ExchangedAgreement,
    LocalAgreement,
    agree_on_input,
)
from penstock.distribute.feed.collating import Collate
from penstock.distribute.feed.explain import explain
from penstock.distribute.feed.feed import Outcome, PlaceLeaves, Prefetcher, Step, StepFailure, StepFeed
from penstock.distribute.feed.inputs import DividedInput, Inputs
from penstock.distribute.feed.measured import MeasuredSteps
from penstock.distribute.feed.options import InputOptions, PartialBatch
from penstock.distribute.feed.step_sources import JoinedWorkers, StepSource
from penstock.distribute.values import PerReplica
from penstock.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    WorkerError,
)
from penstock.optional import Optional
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.printing import text_of_error
from penstock.report.report import Report
from penstock.runtime.channel import Closed
from penstock.runtime.dashboard import close_dashboard, open_dashboard
from penstock.runtime.watchdog import watch
from penstock.spec import LeafSpec, TensorSpec, with_rows
from penstock.statistics.steps import StepMark
from penstock.structure import flatten


class DistributedDataset:
    """Steps for the replicas of a strategy; from `distribute_dataset` or `distribute_datasets_from_function`.

    Each `iter` begins a new epoch, and gives a `DistributedIterator`.

    Example:
        >>> import penstock as ps
        >>> steps = ps.HostStrategy(replicas_per_worker=2).distribute_dataset(ps.Dataset.range(6).batch(4))
        >>> len(steps), [[part.tolist() for part in step.values] for step in steps]
        (2, [[[0, 1], [2, 3]], [[4], [5]]])
    """

    def __init__(
        self,
        inputs: Inputs,
        place: PlaceLeaves,
        options: InputOptions,
        control: Control | None = None,
        call: str = "",
        *,
        bare: bool | None = None,
        collate: Callable[..., Any] | None = None,
        handed_out: Callable[[Any], None] = lambda step: None,
    ) -> None:
        # Whether leaves are handed out as they are and not as `PerReplica`: by default where one replica is in sync.
        self._bare = inputs.workers.replicas_in_sync == 1 if bare is None else bare
        self._place = place
        self._collate = None if collate is None else Collate(call.partition(" (")[0], collate)
        self._options = options
        self._control = control
        self._call = call
        self._handed_out = handed_out  # told of each step, before it counts as handed out
        self._iterations, self._begun = itertools.count(), itertools.count()
        self._partial = PartialBatch(options.partial_batch)
        size, cut = inputs.batch_size, inputs.slices_per_batch
        if self._partial is PartialBatch.DROP and size % cut:
            raise InvalidArgumentError(
                f'InputOptions(partial_batch="drop") would skip every step: {cut} replicas do not divide batches '
                f'of {size} rows evenly; choose another batch size, or "pad"'
            )
        self._agreed = agree_on_input(call, inputs, self._partial, control)
        self._inputs = self._agreed.inputs

    @cached_property
    def element_spec(self) -> Any:
        """The specification of a step: at each leaf a `PerReplica` of `TensorSpec`; bare ones for one replica in sync.

        The leading length is given where every replica has the same number of rows in every step, else it is None.
        """
        if self._collate is not None:
            raise InvalidTypeError("the specification of a step is that of what collate gives: known from a step only")
        spec = self._inputs.dataset.element_spec
        workers = self._inputs.workers
        if self._partial is PartialBatch.RAGGED and workers.replicas_in_sync == 1:
            return spec
        leaves, structure = flatten(spec)
        rows = self._agreed.of_every_step()
        assumed = not self._inputs.exact and 0 in leaves[0].assumed_axes

        def per_replica(leaf: LeafSpec) -> Any:
            own = with_rows(leaf, rows, assumed=assumed) if leaf.shape else leaf
            return own if workers.replicas_in_sync == 1 else PerReplica([own] * workers.replicas)

        batch = structure.unflatten([per_replica(leaf) for leaf in leaves])
        return batch if self._partial is not PartialBatch.PAD else (batch, per_replica(TensorSpec((None,), np.bool_)))

    def cardinality(self) -> int:
        """The number of steps, or `ps.INFINITE_CARDINALITY`, or `ps.UNKNOWN_CARDINALITY`."""
        return self._agreed.cardinality()

    def __len__(self) -> int:
        steps = self.cardinality()
        if steps < 0:
            reason = "it never ends" if steps == INFINITE_CARDINALITY else "that is known only when it was read"
            raise InvalidTypeError(f"this distributed dataset has no length: {reason}")
        return steps

    def __getattr__(self, name: str) -> NoReturn:
        advice = f": use {name} of the ps.Dataset, before it is distributed" if hasattr(Dataset, name) else ""
        raise AttributeError(f"a distributed dataset has no {name}{advice}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} of {self._inputs.dataset!r} for {self._inputs.workers}>"

    def explain(self) -> str:
        """Return which files, ranges or rows each worker reads, and how many steps that makes, as text.

        Files are opened to count their records, and nothing else is read of them; a function that makes readers of
        names is called for each worker's first.
        """
        return explain(self._inputs, self.cardinality())

    def __iter__(self) -> "DistributedIterator":
        refuse_in_replica("iter(distributed_dataset)")
        return DistributedIterator(self)

    def _feed(self, source: StepSource) -> StepFeed:
        """Return what makes the steps of one pass."""
        iteration = next(self._iterations)
        topic = f"{self._call}, iteration {iteration}"
        return StepFeed(
            source,
            self._agreement(topic, source),
            self._agreed,
            self._place,
            self._bare,
            topic,
            iteration,
            self._control,
            MeasuredSteps(source.statistics, self._control, f"{topic}, statistics", self._inputs.workers.index),
            self._collate,
        )

    def _agreement(self, topic: str, source: StepSource) -> Agreement:
        inputs, lengths = self._inputs, self._agreed.lengths
        layout = inputs.layout()
        # All workers join the same data of others, so that each knows what all have.
        joined = isinstance(source, JoinedWorkers)
        same = joined or not inputs.has_own_data
        alike = same and (joined or inputs.cardinality() != UNKNOWN_CARDINALITY) and not inputs.leaves_out
        if inputs.workers.count == 1 or alike:
            return LocalAgreement()
        # If the workers exchange nothing, none needs to know the shapes of the others' rows beforehand.
        if not same and lengths is not None and (self._agreed.same_layout or self._control is None):
            return ComputedAgreement(lambda step: inputs.sizes_at(lengths, step), layout)
        if self._control is None:
            return LocalAgreement()
        share = 0 if same else inputs.workers.share
        skipped = (lambda: source.errors_at(source.position())) if inputs.leaves_out else None
        return ExchangedAgreement(self._control, topic, same=same, share=share, skipped=skipped)


def inputs_of(steps: DistributedDataset) -> Inputs:
    """Return what a distributed dataset reads."""
    return steps._inputs


def agreed_of(steps: DistributedDataset) -> AgreedInput:
    """Return the inputs on which all workers have agreed, with the rows of their steps."""
    return steps._agreed


class DistributedIterator(Iterator[Any]):
    """One pass over a distributed dataset.

    Its state is the position after the last step handed out, whatever was prefetched. Where all workers take slices of
    the same global batches it is that of the dataset's own iterator, and can be restored on another number of workers
    and replicas. An exception of the pipeline is raised for the step it happened in; on a single worker `next` may be
    called again after it, and after Ctrl-C, which loses no step.

    Example:
        >>> import penstock as ps
        >>> steps = ps.HostStrategy(replicas_per_worker=2).distribute_dataset(ps.Dataset.range(6).batch(2))
        >>> with iter(steps) as iterator:
        ...     step, state = next(iterator), iterator.state_dict()
        >>> resumed = iter(steps)
        >>> resumed.load_state_dict(state)
        >>> [part.tolist() for part in next(resumed).values]
        [[2], [3]]
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._control = dataset._control
        self._buffer_size = dataset._options.per_replica_buffer_size
        dataset._inputs.ahead = self._buffer_size > 0
        self._source = dataset._inputs.open()
        self._position = self._source.position()
        self._taken: int | None = 0  # steps handed out in this epoch; None after a state that does not say it
        self._ended = False
        self._closed = False
        self._asked = False
        self._interrupted = False
        self._loop: object = None  # of a loader: which of its loops may take the steps
        self._process = os.getpid()
        self._awaited: object = None  # of the call of `next` that waits for a step
        watch(self, dataset._inputs.dataset.options().watchdog_seconds, _under_way, _awaited_step)
        self._begin()

    def _begin(self) -> None:
        self._feed = self._dataset._feed(self._source)
        # A thread that waits for other workers must not outlive an iterator that is no longer referenced.
        weakref.finalize(self, self._feed.close).atexit = False
        self._prefetcher = Prefetcher(self._feed, self._buffer_size) if self._buffer_size else None

    @property
    def element_spec(self) -> Any:
        """The specification of a step, as the dataset gives it."""
        return self._dataset.element_spec

    @property
    def errors(self) -> SkippedRows:
        """The rows that this worker skipped up to the last step handed out, as in `DatasetIterator.errors`.

        Workers that share global batches have the same errors; workers that read different data have different ones.
        """
        return self._source.errors_at(self._position)

    def rows(self) -> list[Row]:
        """The rows of sources of which the last step handed out was made, as `DatasetIterator.rows` gives them.

        They are those of the whole step, on all workers, in the order of the global batch. Where each worker reads data
        of its own, they are those of its own batch, which it takes in as many steps as there are workers.
        """
        return self._source.rows_at(self._position)

    @property
    def _untouched(self) -> bool:
        """Return whether no step was asked for yet, and one still may be."""
        return not self._asked and not self._closed

    def explain(self) -> str:
        """Return what this worker reads for its steps as text, with how many calls of each parallel `map` run.

        As `DatasetIterator.explain`; `DistributedDataset.explain` says which worker reads what.

        Example:
            >>> import penstock as ps
            >>> batches = ps.Dataset.range(8).map(abs, num_parallel_calls=2).batch(4)
            >>> iterator = iter(ps.HostStrategy(2).distribute_dataset(batches))
            >>> len(list(iterator)), "2 calls may run" in iterator.explain()
            (2, True)
        """
        return self._source.explain()

    def report(self) -> Report:
        """Return what the training waits for, of all workers: as `DatasetIterator.report`.

        Other workers tell of theirs every five seconds, and at the end of the data.
        """
        return self._feed.measured.report()

    def dashboard(self, port: int = 0) -> str:
        """Serve the report of all workers as a page that is up to date, as `DatasetIterator.dashboard`."""
        return open_dashboard(self, port)

    def step(self) -> StepMark:
        """Mark a training step, as `DatasetIterator.step`."""
        return self._feed.measured.step()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of this worker's input so far, as `DatasetIterator.metrics` does; steps are the caller's.

        Example:
            >>> import penstock as ps
            >>> steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4)))
            >>> count = len(list(steps))
            >>> steps.metrics()["penstock/steps"], steps.metrics()["penstock/1_batch/rows"]
            (2.0, 2.0)
        """
        return self._feed.measured.snapshot().metrics(self.errors.count)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        except KeyboardInterrupt:
            self._interrupted = True
            raise

    def _next(self) -> Any:
        refuse_in_replica("next(distributed_iterator)")
        self._check_open()
        if os.getpid() != self._process:
            raise ClosedError(
                "this distributed iterator was made in another process, where its threads run: call "
                "iter(distributed_dataset)"
            )
        self._asked = True
        if self._feed.given < 0 and not self._ended and self._control is not None:
            self._feed.begin(f"{self._dataset._call}, begin {next(self._dataset._begun)} of an iteration")
        if self._interrupted:
            self._begin_after_interrupt()
        if self._ended:
            raise StopIteration
        if self._control is not None:
            self._control.check_in_main(self._feed.topic)
        self._source.consumed(self._position)
        try:
            self._feed.measured.ask()
            outcome = self._feed.measured.awaited(self._outcome)
        except Closed:
            if self._ended:  # met by another thread
                raise StopIteration from None
            raise ClosedError("this distributed iterator was closed while a step was waited for") from None
        if isinstance(outcome, Step):
            return self._given(outcome)
        if outcome.position is not None:
            self._position = outcome.position
        if isinstance(outcome, StepFailure):
            self._end_together(outcome)
            try:
                raise outcome.error
            finally:
                del outcome  # the error's traceback holds this frame: the two would keep each other alive
        self._ended = True
        self._feed.given = -1
        self._stop()
        raise StopIteration

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this distributed iterator was closed: make a new one by iter(distributed_dataset)")

    def _given(self, step: Step) -> Any:
        """The value of a step that is handed out now."""
        self._feed.measured.given()
        if self._control is not None:
            self._control.check_step(self._feed.topic, step.number)
            self._feed.given = step.number + 1
        self._dataset._handed_out(step.value)
        # No call comes after this: a signal handler would count a step that the caller has not got yet.
        self._position = step.position
        if self._taken is not None:
            self._taken += 1
        return step.value

    def _begin_after_interrupt(self) -> None:
        """Make the steps again that follow the last one handed out: one that was ready may be lost.

        With other workers each step has a number, so that all of them notice if that is so.
        """
        self._interrupted = False
        if self._control is None:
            taken = self._taken
            self.load_state_dict(self.state_dict())
            self._taken = taken

    @contextmanager
    def _returning_unused(self) -> Iterator[None]:
        """A context after which steps that were handed out and not used come again, if it ends in a `RowsVaryError`."""
        before, taken = self._source.state_at(self._position), self._taken
        try:
            yield
        except RowsVaryError as error:
            self.load_state_dict(before)
            self._taken = taken
            for _ in range(error.begun):
                next(self)
            raise

    def _end_together(self, failure: StepFailure) -> None:
        """With other workers a failure is final: they cannot skip the step that one of them lost."""
        if self._control is None:
            return
        self._control.acknowledge_failure()
        self._feed.given = -1
        self._control.announce_leaving(self._feed.topic)
        if not isinstance(failure.error, WorkerError):
            what = text_of_error(failure.error)
            self._control.fail(f"failed at step {failure.number} of its input with {what}", self._feed.topic)

    def _outcome(self) -> Outcome:
        self._awaited = object()
        try:
            return self._feed() if self._prefetcher is None else self._prefetcher.get()
        finally:
            self._awaited = None

    def get_next(self) -> Any:
        """The next step, as `next` gives it.

        Raises:
            OutOfRangeError: the data has ended.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("the distributed dataset has no further step") from None

    def get_next_as_optional(self) -> Optional:
        """The next step, or an optional without a value at the end of the data."""
        try:
            return Optional.of(next(self))
        except StopIteration:
            return Optional.empty()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step handed out, as plain data."""
        state = self._source.state_at(self._position)
        self._source.claim()
        return state  # type: ignore[no-any-return]  # what the source gave

    def load_state_dict(self, state: dict[str, Any], *, remix: bool = False) -> None:
        """Continue with the step after the one at which `state` was taken; all workers must load the same step.

        With `remix` it may be of another mixture, as for `DatasetIterator.load_state_dict`.

        Raises:
            StateMismatchError: the state is of another dataset, or of another worker's own data; this iterator then
                stays as it was.
            ClosedError: the iterator was closed.
        """
        self._check_open()
        if remix:
            state = for_dataset(self._shared_node(), plain(state))
        self._stop()
        self._taken = None
        before = self._source.state_at(self._position)
        try:
            self._position = self._source.restore(plain(state))
        except BaseException:
            # The thread had read ahead: restore what the caller has not seen yet.
            self._source.restore(before)
            raise
        finally:
            self._begin()
        self._ended = False

    def remix(self, weights: Any, at: int | None = None) -> None:
        """Take the sources of `Dataset.mix` by other weights, from the next step on, or from step `at` on.

        As `DatasetIterator.remix`; all workers must call it after the same step.

        Raises:
            InvalidArgumentError: unfit weights, a step that was handed out, workers with data of their own, or a
                dataset that is not a mixture, or has steps after it such as a shuffle.
            WorkerError: another worker gives other weights, calls it after another step, or not at all.
        """
        taken = self._taken
        state = with_weights(self._shared_node(), self.state_dict(), weights, at)
        if self._control is not None:
            topic = f"{self._feed.topic}, remix"
            told = self._control.gather(topic, repr(state["mix"]), str, timeout=self._control.call_seconds)
            if len(set(told)) > 1:
                raise WorkerError(
                    "remix was called after different steps, or with other weights: every "
                    f"{self._control.member} must make the same call after the same step"
                )
        self.load_state_dict(state)
        self._taken = taken

    def _shared_node(self) -> Node:
        """The dataset that all workers divide by rows."""
        if self._dataset._inputs.has_own_data:
            raise InvalidArgumentError(
                "each worker reads data of its own here, whose positions cannot be carried to another mixture: set "
                "ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA)"
            )
        return self._dataset._inputs.dataset.node

    def _load_states_of_workers(self, states: list[dict[str, Any]]) -> None:
        """Continue where the workers of another job were in one step, each of which read different data.

        With the same number of workers each takes its own state. Otherwise the rest of the epoch has the steps of those
        workers, of which these take slices; the next epoch is divided among the workers that are here.

        Raises:
            StateMismatchError: a state is of another dataset; the iterator must not be used then.
            ClosedError: the iterator was closed.
        """
        workers, states = self._dataset._inputs.workers, plain(states)
        if len(states) == workers.shares and "worker" in states[0]:
            self.load_state_dict(states[workers.share])
            return
        self._check_open()
        self._stop()
        self._source.close(self._position)
        assert isinstance(self._dataset._inputs, DividedInput)
        self._source = self._dataset._inputs.open_joined(states)
        self._position = self._source.position()  # what `close` takes if a state is refused
        self._position = self._source.restore({"workers": states})
        self._begin()
        self._ended = False

    def close(self) -> None:
        """End the background thread and free its buffers; may be called more than once."""
        close_dashboard(self)
        self._closed = True
        # Ctrl-C must not wait for a source that does not answer.
        ended = self._stop(interrupted=self._interrupted or isinstance(sys.exception(), KeyboardInterrupt))
        if ended:  # otherwise the thread still reads it
            self._source.close(self._position)

    def _stop(self, *, interrupted: bool = False) -> bool:
        """End the background thread; returns whether it has ended."""
        self._feed.close()
        return self._prefetcher is None or self._prefetcher.close(interrupted=interrupted)

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            "a distributed iterator cannot be copied or sent to another process: send iterator.state_dict()"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _under_way(iterator: DistributedIterator) -> object:
    """An object for the call of `next` that waits for a step, for the watchdog; None where none does."""
    return iterator._awaited


def _awaited_step(iterator: DistributedIterator) -> str:
    """The wait of `next`, in words."""
    return f"the next step of {iterator._dataset!r}"


def state_of_loader(iterator: DistributedIterator) -> dict[str, Any]:
    """The state of an iterator with, where it is known, the number of steps that it has handed out in its epoch."""
    return iterator.state_dict() | ({} if iterator._taken is None else {"steps_taken": iterator._taken})


def follow(later: DistributedIterator, earlier: DistributedIterator) -> None:
    """Let the report of an epoch count an earlier one too."""
    later._feed.measured.follow(earlier._feed.measured)


def load_state_of_loader(iterator: DistributedIterator, state: Any, *, remix: bool = False) -> None:
    """Let an iterator continue after a state of `state_of_loader`, or a plain one."""
    own = {key: value for key, value in state.items() if key != "steps_taken"} if isinstance(state, dict) else state
    iterator.load_state_dict(own, remix=remix)
    iterator._taken = state.get("steps_taken")


def agreed_part(state: Any) -> Any:
    """Return what the states of all processes after one step have in common.

    Positions may differ in form: how far a filter's input was read when a step was full depends on the elements
    asked for ahead. Where the number of steps is known, as in all states with data of single workers, that is enough.
    """
    known = isinstance(state, dict) and not {"steps_taken", "step", "workers"}.isdisjoint(state)
    return _without_positions(state) if known else state


def _without_positions(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _without_positions(value) for key, value in state.items() if key != "position"}
    return [_without_positions(one) for one in state] if isinstance(state, list) else state
