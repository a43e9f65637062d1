"""One pass over a dataset, as the user holds it: elements, state, and an end to everything that runs for it."""

import os
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cached_property, partial
from operator import length_hint
from threading import Lock, RLock, get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.data.block import Block
from penstock.data.identity import Identity, identities_of
from penstock.data.iterator_states import (
    STATE_VERSION,
    check_state,
    drawn_in,
    errors_at,
    in_parts,
    plain,
    position_in,
    position_of,
    taken_apart,
)
from penstock.data.node import Run
from penstock.data.origins import Row, rows_made_of
from penstock.data.plan import Plan, PlannedDataset, described, within_reach
from penstock.data.remixing import MixtureStates, difference, for_dataset, mixture_of_state, with_weights
from penstock.data.skip_guards import guarded_below
from penstock.data.skipped import SkipLog, SkippedRows
from penstock.data.streams.stream import Cursor, State
from penstock.data.tensorflow import ITERATOR
from penstock.errors import (
    BusyError,
    ClosedError,
    InvalidTypeError,
    OutOfRangeError,
    PenstockError,
    StateMismatchError,
    TooManySkippedError,
)
from penstock.optional import Optional
from penstock.options import Options
from penstock.report.report import Report
from penstock.rng import draw_seed
from penstock.runtime.at_exit import after_interrupt, end_at_exit, forget
from penstock.runtime.channel import Closed
from penstock.runtime.dashboard import close_dashboard, open_dashboard
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import Threads, failures
from penstock.runtime.watchdog import hangs, watch
from penstock.statistics.collected import Statistics
from penstock.statistics.schema import Snapshot
from penstock.statistics.steps import StepMark

# What a dataset's elements are, for type checkers. `ps.Dataset` alone means `ps.Dataset[Any]`, also to those that are
# strict; `typing` itself has such defaults from Python 3.13 on.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Element = TypeVar("Element", covariant=True, default=Any)
else:
    from typing import TypeVar

    Element = TypeVar("Element", covariant=True)

_NO_ROWS: Iterator[Any] = iter(())
_TOGETHER = 256
"""How many rows of a block become elements at a time."""


# How many processes were forked up to this one: `os.getpid` would take as long as a quarter of an element.
_processes = 0


def _forked() -> None:
    global _processes
    _processes += 1


os.register_at_fork(after_in_child=_forked)


class Iterations:
    """The number of the next epoch of a dataset, and the seed of all.

    A dataset that was given no seed draws one when it is first iterated.

    Attributes:
        seeded: whether the seed was given, and applies to every node without a seed.
    """

    def __init__(self, seed: int | None, *, seeded: bool | None = None) -> None:
        self.seeded = seed is not None if seeded is None else seeded
        self._lock = Lock()
        self._seed = seed
        self._epoch = 0

    def begin(self) -> tuple[int, int]:
        """(epoch, seed) of an iteration that begins now."""
        with self._lock:
            self._epoch += 1
            return self._epoch - 1, self._drawn()

    @property
    def seed(self) -> int:
        """The seed of all iterations."""
        with self._lock:
            return self._drawn()

    def _drawn(self) -> int:
        if self._seed is None:
            self._seed = draw_seed()
        return self._seed

    def resume(self, epoch: int, seed: int, *, seeded: bool) -> None:
        """Continue as after the iteration that a state was saved from."""
        with self._lock:
            self._epoch, self._seed, self.seeded = epoch + 1, seed, seeded


# A function of the user's that never returns must not keep the process alive, least of all after Ctrl-C.
_EXIT_SECONDS = 5.0
_LEFT_SECONDS = 0.2


class _Pass:
    """The plan of one iteration, opened."""

    def __init__(
        self,
        plan: Plan,
        options: Options,
        epoch: int,
        seed: int,
        live: dict[str, State],
        statistics: Statistics | None,
        *,
        seeded: bool,
    ) -> None:
        self.threads = Threads()
        self.run = Run(plan.root, seed, self.threads, seeded=seeded, epoch=epoch)
        self.run.statistics = statistics
        self.skips = self.run.skips = SkipLog(options.max_errors)
        guarded = options.on_error == "skip"
        self.run.prepare = (lambda node: within_reach(guarded_below(node))) if guarded else within_reach
        self.run.live.continue_from(live)
        self.cursor = plan.root.cursor(self.run, epoch)
        end_at_exit(self, _Pass.end, last=True)

    def stop(self) -> None:
        """End everything that runs for this pass, without waiting for it."""
        forget(self)
        try:
            self.cursor.close()
        finally:  # also if Ctrl-C comes while a generator is closed
            self.threads.stop()

    def end(self) -> None:
        """Stop when the interpreter exits, before its threads are frozen in the middle of something."""
        self.stop()
        self.threads.join(_LEFT_SECONDS if after_interrupt() else _EXIT_SECONDS)


@ITERATOR
class DatasetIterator(Iterator[Element]):
    """The elements of one iteration of a dataset.

    The state is the position after the last element that `next` gave, whatever threads have read ahead. Use it in
    `with`, or call `close`, to end it early; it also ends when it is no longer referenced. Ctrl-C ends what runs for
    it, but not the position: `state_dict` still gives it, and `next` resumes from there, as from a state. Several
    threads may share an iterator: each element goes to one of them.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.Dataset.range(5).map(lambda x: x * 10)
        >>> iterator = iter(dataset)
        >>> next(iterator), next(iterator)
        (np.int64(0), np.int64(10))
        >>> state = iterator.state_dict()
        >>> resumed = iter(dataset)
        >>> resumed.load_state_dict(state)
        >>> list(resumed)
        [np.int64(20), np.int64(30), np.int64(40)]
    """

    def __init__(self, planned: PlannedDataset, iterations: Iterations, element_spec: Callable[[], Any]) -> None:
        self._element_spec = element_spec
        self._planned = self._as_made = planned
        self._lock = RLock()  # re-entrant: a signal handler gets an error if `next` has it
        self._iterations = iterations
        self._epoch, self._seed = iterations.begin()
        self._drawn = None if iterations.seeded else [drawn.seed for drawn in planned.node.drawn_seeds]
        self._tells = True
        self._ahead = True
        # The position at which Ctrl-C has ended the pass, and its thread: `next` continues from there.
        self._left_at: State = None
        self._left_in = 0
        self._statistics = Statistics() if planned.options.statistics is not False else None
        self._open({})

    @property
    def errors(self) -> SkippedRows:
        """The rows skipped before the last element given: their number, and the first 100 of them.

        `Dataset.ignore_errors` and `Options(on_error="skip")` skip rows. They are part of the state.
        """
        return self._pass.skips.rows if self._left_at is None else errors_at(self._left_at)

    def explain(self) -> str:
        """The plan as text, with how many calls of each parallel `map` run in threads: now, and at most so far.

        If `ps.AUTOTUNE` has compared threads with the reading thread, the text includes the result.

        Example:
            >>> import penstock as ps
            >>> iterator = iter(ps.Dataset.range(8).map(abs, num_parallel_calls=ps.AUTOTUNE))
            >>> next(iterator)
            np.int64(0)
            >>> print(iterator.explain().splitlines()[0].split("  ")[-1])
            element_spec assumed, calls are made by the thread that reads
        """
        return described(self._planned.plan, self._pass.run.calls_of)

    def report(self) -> Report:
        """Return what the caller waits for: `print` it for a verdict, what to change, and a table of the operators.

        It is about all elements since the iterator was made. `save` writes it as JSON or as a page.

        Example:
            >>> import penstock as ps
            >>> iterator = iter(ps.Dataset.range(100).map(lambda x: x + 1).batch(10))
            >>> batches = list(iterator)
            >>> iterator.report().to_dict()["ranks"][0]["steps"]["count"]
            10
        """
        if self._statistics is None:
            return Report([Snapshot(off=True)])
        snapshot = self._statistics.snapshot()
        snapshot.machine += hangs()
        begun = self._pass.cursor.met - snapshot.steps.count
        for slow in snapshot.steps.slowest[:1]:
            with suppress(Exception):  # without them the report is as good
                rows = rows_made_of(self._planned.plan.root, self._pass.run, self._epoch, begun + slow.number)
                slow.rows = f"row {rows[0].row} of {rows[0].file or rows[0].source}" if rows else ""
        return Report([snapshot])

    def dashboard(self, port: int = 0) -> str:
        """Serve the report as a page that is up to date, for browsers on this machine; return its address.

        It is served until the iterator is closed. Port 0 takes any free one.

        Raises:
            ServiceError: the port is taken.

        Example:
            >>> import penstock as ps
            >>> iterator = iter(ps.Dataset.range(100).batch(10))
            >>> iterator.dashboard().startswith("http://localhost:")
            True
            >>> iterator.close()
        """
        return open_dashboard(self, port)

    def step(self) -> StepMark:
        """Mark a training step, so that the report tells which waits the device has noticed.

        With a result, one of 50 steps waits for it, to learn how long the device takes for a step.

        Example:
            >>> import penstock as ps
            >>> iterator = iter(ps.Dataset.range(100).batch(10))
            >>> for batch in iterator:
            ...     with iterator.step() as step:
            ...         step.result = batch.sum()  # of JAX or PyTorch: the loss
            >>> iterator.report().verdicts[0].exact
            True
        """
        return StepMark(self._statistics)

    def metrics(self) -> dict[str, float]:
        """The numbers of this iteration so far by name, as floats, for `wandb.log`, `mlflow.log_metrics` and the like.

        Example:
            >>> import penstock as ps
            >>> iterator = iter(ps.Dataset.range(6).batch(2))
            >>> batch = next(iterator), next(iterator), next(iterator)
            >>> metrics = iterator.metrics()
            >>> metrics["penstock/steps"], metrics["penstock/1_batch/rows"], 0 <= metrics["penstock/waiting_share"] <= 1
            (3.0, 3.0, True)
        """
        snapshot = Snapshot() if self._statistics is None else self._statistics.snapshot()
        return snapshot.metrics(self.errors.count)

    @cached_property
    def _identities(self) -> list[Identity]:
        return identities_of(self._as_made.node)

    def _open(self, live: dict[str, State]) -> None:
        plan = self._planned.plan
        options, seeded = self._planned.options, self._drawn is None
        self._pass = _Pass(plan, options, self._epoch, self._seed, live, self._statistics, seeded=seeded)
        self._pass.run.demand.ahead = self._ahead
        self._finalizer = weakref.finalize(self, self._pass.stop)
        self._finalizer.atexit = False
        self._left = self._was_ended = False
        self._process = _processes
        self._live = self._pass.run.live
        self._mixture = MixtureStates(self._planned.node, plan.root, self._pass.run, self._epoch)
        self._limited = self._pass.skips.limit is not None
        self._pulls = _pulls_apart(self._pass.cursor)
        self._pace = Pace(demand=self._pass.run.demand, readings=plan.readings)
        # The block whose rows are given, how many of them were put into `_rows`, and those not yet given.
        self._block: Block | None = None
        self._put = 0
        self._rows: Iterator[Element] = _NO_ROWS
        # The number of elements and failures before the pull that is under way; None where none is.
        self._before_pull: int | None = None
        watch(self, self._planned.options.watchdog_seconds, _under_way, _awaited)

    def __iter__(self) -> "DatasetIterator[Element]":
        return self

    def __next__(self) -> Element:
        while True:
            # An iterator over a list gives each of its entries once, also to several threads, and Ctrl-C cannot come
            # between an entry and its return: no lock is needed, which would cost more than all else here.
            for element in self._rows:
                return element
            with self._own_lock():
                try:
                    self._bring_rows()
                except KeyboardInterrupt:
                    self._left = True  # noted here, because Ctrl-C may come again
                    self._leave()
                    raise

    def _bring_rows(self) -> None:
        """Bring the next rows, unless another thread has.

        Raises:
            StopIteration: there are none.
        """
        if self._before_pull is not None or self._left or self._was_ended or self._process != _processes:
            self._check_usable()
        if length_hint(self._rows):
            return
        block = self._block
        if block is None or self._put == block.length:
            block = self._pull()
            if block is None:
                raise StopIteration
        start = self._put
        try:
            rows = [block.row(start)] if block.length - start == 1 else self._next_rows(block, start)
        except failures():
            self._put = start + 1
            raise
        self._rows, self._put = iter(rows), start + len(rows)

    @staticmethod
    def _next_rows(block: Block, start: int) -> list[Element]:
        """The elements of the next rows of a block."""
        try:
            return list(block.slice(start, min(start + _TOGETHER, block.length)).rows())
        except failures():  # a class of the user's fails for one of them
            return [block.row(start)]

    @property
    def _not_given(self) -> int:
        """The number of elements of the block that was pulled last that were not given."""
        return length_hint(self._rows) + (0 if self._block is None else len(self._block) - self._put)

    def _own_lock(self) -> Any:
        """The lock; a function that a thread of this iterator calls would wait for it, and `next` for the function."""
        if self._pass.threads.run_here:
            raise _busy()
        return self._lock

    def _check_usable(self) -> None:
        if self._before_pull is not None and not self._left:
            raise _busy()
        if self._process != _processes:
            raise ClosedError("this iterator was made in another process, where its threads run: call iter(dataset)")
        if self._left:
            self._leave()  # a second Ctrl-C may have ended that
        if self._finalizer.alive:
            return
        if self._left_at is None:
            raise ClosedError("this iterator was closed: call iter(dataset) for a new one")
        if self._left_in != get_ident():
            raise ClosedError("this iterator was interrupted: only the interrupted thread can continue with it")
        cursor_state, _ = taken_apart(self._left_at)
        self._go_on_from(self._left_at, self._live.replays(cursor_state))

    def _pull(self, most: int | None = None) -> Block | None:
        """The next rows as a block, none of which counts as given yet."""
        self._rows, self._block, self._put = _NO_ROWS, None, 0
        cursor = self._pass.cursor
        if self._live.any and self._tells:
            self._live.consumed(cursor.state())
        allowed = self._pace.start()
        asked = allowed if most is None or most > allowed else most
        self._before_pull = cursor.met
        statistics = self._statistics if self._tells else None
        if statistics is not None:
            statistics.ask()
        try:
            block: Block | None = self._pulls.send(asked)
        except Closed:
            self._end_failed_pull()
            raise ClosedError("this iterator was closed while an element was waited for") from None
        except failures() as error:
            self._end_failed_pull()
            _refuse_stop(error)
            raise
        self._block, self._before_pull = block, None
        if statistics is not None and block is not None:
            statistics.get(block.length)
        if self._limited:
            self._check_skips(block)
        if block is None:
            self._pass.skips.sum_up()
        elif block.length > 1 or asked == 1:  # a single row where several were allowed: the stream gives single rows
            self._pace.stop(block.nbytes, block.length)
        return block

    def _check_skips(self, block: Block | None) -> None:
        """Raise an error if too many rows were skipped; the next pull returns the block that was pulled."""
        try:
            self._pass.skips.check()
        except TooManySkippedError:
            if block is not None:
                self._pass.cursor.give_back(block.length)
                self._block = None
            raise

    def _end_failed_pull(self) -> None:
        self._before_pull, self._pulls = None, _pulls_apart(self._pass.cursor)

    def _pull_given(self, most: int | None = None) -> Block | None:
        """The next rows as a block, all of which are given by that."""
        with self._own_lock():
            self._check_usable()
            try:
                block = self._pull(most)
            except KeyboardInterrupt:
                self._left = True
                self._leave()
                raise
            if block is not None:
                self._put = block.length
            return block

    @property
    def element_spec(self) -> Any:
        """The specification of an element, as the dataset gives it."""
        return self._element_spec()

    def get_next(self) -> Element:
        """The next element, as `next` gives it.

        Raises:
            OutOfRangeError: the data has ended.
        """
        for element in self:
            return element
        raise OutOfRangeError("the dataset has no further element")

    def get_next_as_optional(self) -> Optional:
        """The next element, or at the end an optional without a value, instead of an exception."""
        for element in self:
            return Optional.of(element)
        return Optional.empty()

    def rows(self) -> list[Row]:
        """The rows of sources of which the last element given was made, each with its `source`, `file` and `row`.

        They are worked out from its number, as by `Dataset.rows`.

        Example:
            >>> import penstock as ps
            >>> with iter(ps.Dataset.range(9).shuffle(seed=1).batch(2)) as iterator:
            ...     next(iterator), [row.row for row in iterator.rows()]
            (array([7, 5]), [7, 5])
        """
        return self._rows_at(self._position_after())

    def _rows_at(self, position: State, after: int = 0) -> list[Row]:
        """Return the rows of the last element before a position, or of one as many elements after it."""
        number = taken_apart(position)[0][2] - 1 + after
        return rows_made_of(self._planned.plan.root, self._pass.run, self._epoch, number) if number >= 0 else []

    def state_dict(self) -> dict[str, Any]:
        """The position after the last element given, as data for JSON, with a version and what identifies the dataset.

        It may be called after Ctrl-C, but not in a signal handler that has interrupted `next`: let the handler set a
        flag, and take the state in the loop.

        Raises:
            ClosedError: the iterator was closed.
            BusyError: `next` is under way in this very thread.
        """
        state = self._state_at(self._position_after())
        self._live.claim()
        return state

    def _position_after(self) -> State:
        with self._own_lock():
            if self._left:
                self._leave()
            if self._left_at is not None:
                return self._left_at
            if not self._finalizer.alive:
                raise ClosedError("this iterator was closed: take its state before")
            self._check_usable()
            return self._position()

    def _position(self) -> State:
        """The position after the last element given, or before the pull that Ctrl-C has ended."""
        cursor, before = self._pass.cursor, self._before_pull
        state = cursor.state_before(self._not_given if before is None else cursor.met - before)
        return position_of(state, self._pass.skips.snapshot())

    def _state_at(self, position: State) -> dict[str, Any]:
        """Return the state at a position."""
        cursor_state, skipped = taken_apart(position)
        replays = self._live.replays(cursor_state)
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "seed": self._seed,
            "position": in_parts(cursor_state),
            **({"drawn": list(self._drawn)} if self._drawn else {}),
            "nodes": [identity.entry() for identity in self._identities],
            **({"live": replays} if replays else {}),
            **({"skipped": skipped} if skipped else {}),
            **self._mixture.at(cursor_state),
        }

    def load_state_dict(self, state: dict[str, Any], *, remix: bool = False) -> None:
        """Continue with the element after the last one that was given when the state was taken.

        The dataset's next iteration is then the epoch after the state's.

        Args:
            state: from `state_dict`.
            remix: accept the state of another `Dataset.mix`, with other weights or sources. Each source goes on where
                it was, by its name; those that are new begin.

        Raises:
            StateMismatchError: the state is of another version, or of another dataset; the message names the first node
                that differs.
            InvalidArgumentError: `remix`, and the dataset is not a mixture, or has steps after it such as a shuffle.
        """
        node, state = self._as_made.node, plain(state)
        if remix:
            state = for_dataset(node, state)
        try:
            check_state(state, self._identities)
        except StateMismatchError as error:
            told = difference(node, state)
            if not told:
                raise
            raise StateMismatchError(
                f"the state was saved from another mixture: {told}; load_state_dict(state, remix=True) continues with "
                "this one, each source from where it was"
            ) from error
        changed = mixture_of_state(node, state)
        drawn = drawn_in(state, node)
        live = dict(state.get("live", {}))
        self._live.leave_to(live)
        self.close()
        self._planned = self._as_made if changed is node else PlannedDataset(changed, self._as_made.options)
        self._epoch, self._seed = state["epoch"], state["seed"]
        # Datasets made of the same nodes have the same order, also in the process that resumes.
        for own, seed in zip(node.drawn_seeds, drawn or [], strict=False):
            own.seed = seed
        self._drawn = drawn
        self._iterations.resume(self._epoch, self._seed, seeded=drawn is None)
        self._go_on_from(position_in(state), live)

    def remix(self, weights: Any, at: int | None = None) -> None:
        """Take the sources of `Dataset.mix` by other weights, from the next element on, or from element `at` on.

        Each source goes on where it is. The change stands in the state, and lasts to the end of the epoch.

        Args:
            weights: a dictionary by name, or numbers in the order of the sources.
            at: the number of an element of this iterator, such as a batch. Where `balance` has windows, the change
                begins with the first window from there on.

        Raises:
            InvalidArgumentError: an unknown source, unfit weights, an element that was given, or a dataset that is not
                a mixture, or has steps after it such as a shuffle.

        Example:
            >>> import penstock as ps
            >>> sources = {"web": ps.Dataset.range(100), "code": ps.Dataset.range(1000, 1100)}
            >>> iterator = iter(ps.Dataset.mix(sources, {"web": 1, "code": 0}))
            >>> next(iterator), next(iterator)
            (np.int64(0), np.int64(1))
            >>> iterator.remix({"web": 0, "code": 1}, at=3)
            >>> next(iterator), next(iterator)
            (np.int64(2), np.int64(1000))
        """
        self.load_state_dict(with_weights(self._planned.node, self.state_dict(), weights, at))

    def _go_on_from(self, position: State, live: dict[str, State]) -> None:
        """Open a pass, and continue from a position; if that is interrupted or fails, `next` does so again."""
        self._left_at, self._left_in = position, get_ident()
        self._open(live)
        cursor_state, skipped = taken_apart(position)
        try:
            if skipped is not None:
                self._pass.skips.restore(skipped)
            next(_apart(partial(self._pass.cursor.restore, cursor_state)))
            self._live.consumed(cursor_state)  # it may drop what the state no longer needs
        except BaseException as error:
            self._left = True
            self._leave()
            # Errors of penstock and of functions are raised unchanged.
            damaged = isinstance(error, (TypeError, ValueError, KeyError, IndexError))
            if not damaged or isinstance(error, PenstockError) or hasattr(error, "__notes__"):
                _refuse_stop(error)
                raise
            raise StateMismatchError(
                "the state is damaged, or was saved by an earlier penstock: its position does not fit the dataset, got "
                f"{in_parts(cursor_state)!r:.200}"
            ) from error
        self._left_at = None

    def close(self) -> None:
        """End every thread that runs for this iterator, and wait for the calls that are running. May be called again.

        After Ctrl-C it does not wait: each thread ends after its call.
        """
        close_dashboard(self)
        self._end()
        if not self._left:
            self._pass.threads.join()
        self._left_at = None

    def _leave(self) -> None:
        """End the pass as after Ctrl-C, and note its position. May be called again if it was interrupted."""
        if self._finalizer.alive:
            if self._left_at is None:
                self._left_at, self._left_in = self._position(), get_ident()
            end_at_exit(self._pass.threads, partial(Threads.join, timeout=_LEFT_SECONDS), last=True)
            self._end()

    def _end(self) -> None:
        self._was_ended, before = True, self._before_pull
        not_given = self._not_given if before is None else self._pass.cursor.met - before
        self._rows, self._block, self._before_pull = _NO_ROWS, None, None
        self._pass.skips.sum_up()
        if self._finalizer.alive:
            self._pass.cursor.give_back(not_given)
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            "an iterator cannot be copied or sent to another process: send the dataset and iterator.state_dict()"
        )

    def __enter__(self) -> "DatasetIterator[Element]":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._left = True
            self._leave()
        self.close()


def _under_way(iterator: DatasetIterator[Any]) -> int | None:
    """The number of elements before the pull that is under way, for the watchdog; None where none is."""
    return iterator._before_pull


def _awaited(iterator: DatasetIterator[Any]) -> str:
    """The wait of `next`, in words."""
    return f"the next element of {iterator._planned.plan.root.where()}"


def _busy() -> BusyError:
    return BusyError(
        "this iterator is making its next element, and was called from a signal handler or from a function of its "
        "dataset: let the handler set a flag, and call the iterator in the loop that takes its elements"
    )


def _pulls_apart(cursor: Cursor) -> Generator[Block | None, int, None]:
    """Coroutine that pulls the number of rows that is sent to it, ready for the first.

    A stream may keep a failure until the rows before it are given, and the failure's traceback refers to the frames
    that called the stream. A suspended coroutine keeps the iterator out of these frames; otherwise an iterator that is
    no longer used would never be collected.
    """

    def pulls() -> Generator[Block | None, int, None]:
        pull = cursor.pull
        asked = yield None
        while True:
            asked = yield pull(1, asked)

    made = pulls()
    next(made)
    return made


def _apart(call: Callable[[], None]) -> Iterator[None]:
    """Coroutine that makes a call: see `_pulls_apart`."""
    call()
    yield


def _refuse_stop(error: BaseException) -> None:
    """Raise an error instead of a StopIteration, which comes from a user's function and would end loops."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        told = "a function of this dataset raised StopIteration: return a value instead"
        raise InvalidTypeError(told) from error.__cause__


def blocks_of(iterator: DatasetIterator[Any]) -> Iterator[Block]:
    """The elements that an iterator has not given yet, block by block."""
    while (block := iterator._pull_given()) is not None:
        yield block


def next_block(iterator: DatasetIterator[Any], most: int) -> Block | None:
    """Return the next elements of an iterator as a block, at most `most`; None at the end."""
    return iterator._pull_given(most)


class PositionedElements(Iterator[Element]):
    """The elements of an iterator, for a caller that takes them before they are used.

    Such a caller notes the position after each element, which costs little and has no effect elsewhere, makes a state
    of one of them on request, and reports by `consumed` how far the elements are used. Without `ahead`, nothing is read
    beyond the requested element, except for operators such as `prefetch` or a shuffle with a buffer.
    """

    def __init__(self, iterator: DatasetIterator[Element], *, ahead: bool = True) -> None:
        self._iterator = iterator
        iterator._tells = False
        iterator._ahead = iterator._pass.run.demand.ahead = ahead

    def __next__(self) -> Element:
        return next(self._iterator)

    @property
    def statistics(self) -> Statistics | None:
        """The statistics of the iterator, whose steps the caller measures; None where nothing is counted."""
        return self._iterator._statistics

    def position(self) -> State:
        """The position after the last element given."""
        return self._iterator._position_after()

    def place(self) -> list[int]:
        """Return the epoch, its seed, and the number of elements and failures before, however they were made."""
        return [self._iterator._epoch, self._iterator._seed, self.place_at(self.position())]

    def place_at(self, position: State) -> int:
        """Return the number of elements and failures before a position."""
        return int(taken_apart(position)[0][2])

    def state_at(self, position: State) -> dict[str, Any]:
        """Return the iterator's state at a position."""
        return self._iterator._state_at(position)

    def rows_at(self, position: State, after: int = 0) -> list[Row]:
        """Return the rows of which the last element before a position was made, or one as many elements after it."""
        return self._iterator._rows_at(position, after)

    def explain(self) -> str:
        """Same as `DatasetIterator.explain`."""
        return self._iterator.explain()

    def errors_at(self, position: State) -> SkippedRows:
        """Return the rows skipped before a position."""
        return errors_at(position)

    def consumed(self, position: State) -> None:
        """Note that all elements before a position are used: no state of an earlier position will be taken."""
        live = self._iterator._pass.run.live
        if live:
            live.consumed(taken_apart(position)[0])

    def claim(self) -> None:
        """Tell the dispatcher that no other reader may get elements up to the last state; wait until it knows."""
        self._iterator._pass.run.live.claim()

    def restore(self, state: dict[str, Any]) -> State:
        """Continue from a state; gives its position."""
        self._iterator.load_state_dict(state)
        return position_in(state)

    def close(self, position: State) -> None:
        """End the iterator; no element after the position was used."""
        self._iterator._pass.run.live.give_back(taken_apart(position)[0])
        self._iterator.close()
