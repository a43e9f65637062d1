"""`StepLoader`: a distributed dataset together with the present pass over it, for loaders that hold both."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from penstock.data.iterator_states import plain
from penstock.data.origins import Row
from penstock.data.skipped import SkippedRows
from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import Payload
from penstock.distribute.feed.dataset import (
    DistributedDataset,
    DistributedIterator,
    agreed_part,
    follow,
    load_state_of_loader,
    state_of_loader,
)
from penstock.errors import ClosedError, InvalidTypeError, WorkerError
from penstock.report.report import Report
from penstock.runtime.dashboard import close_dashboard, open_dashboard
from penstock.statistics.schema import Snapshot
from penstock.statistics.steps import StepMark

_WORKERS = "workers"
"""In a state: the positions of all shares, where each reads different files."""


_OF_SAMPLERS = ("set_epoch", "sampler", "batch_sampler")
"""What loops written for samplers ask a loader for."""


class StepLoader:
    """Steps for a training loop, one epoch for each `iter`, and the position in them.

    Args:
        name: what users call it, for errors.
        steps: the distributed dataset.
    """

    def __init__(self, name: str, steps: DistributedDataset) -> None:
        self._name = name
        self._steps = steps
        self._control = steps._control
        self._current: DistributedIterator | None = None
        # The pass that the next `iter` gives: one that was restored, or whose state was taken before it began.
        self._upcoming: DistributedIterator | None = None
        self._calls = itertools.count(1)
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        if name in _OF_SAMPLERS:
            raise AttributeError(
                f"{self._name}(...) has no {name}: rows are divided among processes here, and each loop over the "
                "loader is the next epoch, with its own order; loader.load_state_dict(state) goes on in an earlier one",
                name=name,
                obj=self,
            )
        return object.__getattribute__(self, name)

    def cardinality(self) -> int:
        """The number of steps of an epoch, or `ps.INFINITE_CARDINALITY`, or `ps.UNKNOWN_CARDINALITY`."""
        return self._steps.cardinality()

    def __len__(self) -> int:
        return len(self._steps)

    def explain(self) -> str:
        """Return which rows or files each process reads, and how many steps that makes, as text."""
        return self._steps.explain()

    def __iter__(self) -> Iterator[Any]:
        """A new epoch, or the rest of the one that a state was restored in; the pass before it is closed.

        A pass of which no step was taken is given again: trainers try whether a loader can be iterated.
        """
        if self._upcoming is None and self._current is not None and self._current._untouched:
            self._upcoming, self._current = self._current, None
        begun = self._begun()
        if self._current is not None:
            follow(begun, self._current)
            self._current.close()
        self._current, self._upcoming = begun, None
        return _Loop(self, begun)

    def report(self) -> Report:
        """Return what the training waits for, on all processes and in all epochs: as `DistributedIterator.report`."""
        return Report([Snapshot()]) if self._present is None else self._present.report()

    def dashboard(self, port: int = 0) -> str:
        """Serve the report of each epoch as a page that is up to date, as `DatasetIterator.dashboard`."""
        return open_dashboard(self, port)

    @property
    def _present(self) -> DistributedIterator | None:
        return self._current or self._upcoming

    def _begun(self) -> DistributedIterator:
        """The pass that the next `iter` gives."""
        self._check_open()
        if self._upcoming is None:
            self._upcoming = iter(self._steps)
        return self._upcoming

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this loader was closed: make a new one by {self._name}(...)")

    @property
    def errors(self) -> SkippedRows:
        """The rows that this process skipped up to the last step handed out, as in `DatasetIterator.errors`."""
        return SkippedRows() if self._present is None else self._present.errors

    def step(self) -> StepMark:
        """Mark a training step, as `DatasetIterator.step`: `with loader.step() as step: step.result = loss`."""
        return StepMark(None) if self._present is None else self._present.step()

    def metrics(self) -> dict[str, float]:
        """The numbers of this process's input in this epoch, as in `DistributedIterator.metrics`."""
        return {} if self._present is None else self._present.metrics()

    def rows(self) -> list[Row]:
        """The rows of sources of which the last step handed out was made, as in `DistributedIterator.rows`."""
        return [] if self._present is None else self._present.rows()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step handed out, as plain data; after the end of an epoch, the next one's begin.

        It stands for the same position on every process, whatever was read ahead. Processes that read files of their
        own (AutoShardPolicy.FILE) exchange their positions, so that all of them must call this after the same step.

        Raises:
            WorkerError: another process failed, or took a state after another step.
            ClosedError: the loader was closed.
        """
        current = self._current
        iterator = current if current is not None and not current._ended else self._begun()
        inputs, control = self._steps._inputs, self._control
        if not inputs.has_own_data:
            return state_of_loader(iterator)
        state = iterator.state_dict()
        if control is None or _WORKERS in state:
            return state
        states = self._exchanged(control, (inputs.workers.share, state), tuple[int, dict[str, Any]])
        steps = [one["step"] for _, one in states]
        if len(set(steps)) > 1:
            raise WorkerError(
                f"the {control.member}s called state_dict() after different steps, {steps}: under "
                "AutoShardPolicy.FILE all of them must call it after the same one"
            )
        found = dict(states)
        return {_WORKERS: [found[share] for share in range(inputs.workers.shares)]}

    def remix(self, weights: Any, at: int | None = None) -> None:
        """Take the sources of `Dataset.mix` by other weights, from the next step on, or from step `at` of the epoch on.

        Every process must call it after the same step. The change stands in the state, and lasts to the end of the
        epoch.

        Raises:
            InvalidArgumentError: unfit weights, a step that was handed out, or a dataset that is not a mixture, or
                has steps after it such as a shuffle.
            WorkerError: another process gives other weights, calls it after another step, or not at all.
        """
        current = self._current
        (current if current is not None and not current._ended else self._begun()).remix(weights, at)

    def load_state_dict(self, state: Any, *, remix: bool = False) -> None:
        """Let the next `iter` continue after the step at which `state` was taken; every process must load it.

        With `remix` it may be of another mixture, as for `DatasetIterator.load_state_dict`.

        Raises:
            StateMismatchError: the state is of another dataset; the loader then stays as it was.
            WorkerError: the other processes load another state, or none.
            ClosedError: the loader was closed.
        """
        begun, state = self._begun(), plain(state)
        if remix:
            begun._shared_node()  # an error unless all divide one dataset
        self._check_same(state)
        states = state.get(_WORKERS, []) if isinstance(state, dict) else []
        if not states and not self._steps._inputs.has_own_data:
            load_state_of_loader(begun, state, remix=remix)
        else:
            self._join(begun, states or [state])
        if self._current is not None:
            self._current.close()
            self._current = None

    def _join(self, begun: DistributedIterator, states: list[dict[str, Any]]) -> None:
        try:
            begun._load_states_of_workers(states)
        except BaseException:
            begun.close()
            self._upcoming = None
            raise

    def _check_same(self, state: Any) -> None:
        """Refuse states that differ between processes."""
        control = self._control
        if control is None:
            return
        digests = self._exchanged(control, _digest(agreed_part(state)), str)
        if len(set(digests)) > 1:
            other = next(number for number, digest in enumerate(digests) if digest != digests[0])
            member = control.member
            raise WorkerError(
                f"{self._name}(...).load_state_dict got another state on {member} {other} than on {member} 0: every "
                f"{member} must load the state of the same step"
            )

    def _exchanged(self, control: Control, own: Payload, kind: type[Payload]) -> list[Payload]:
        """Return the messages of all processes in a call of `state_dict` or `load_state_dict`."""
        topic = f"call {next(self._calls)} of state_dict or load_state_dict of {self._name}(...)"
        return control.gather(topic, own, kind, timeout=control.call_seconds)

    def close(self) -> None:
        """End the reading ahead and free its buffers; may be called more than once."""
        close_dashboard(self)
        self._closed = True
        for one in (self._current, self._upcoming):
            if one is not None:
                one.close()
        self._current = self._upcoming = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError("a loader cannot be copied or sent to another process: send loader.state_dict()")


class _Loop(Iterator[Any]):
    """The steps of a pass, for the last loop that has begun over it."""

    def __init__(self, owner: StepLoader, steps: DistributedIterator) -> None:
        self._owner = owner
        self._steps = steps
        self._number = steps._loop = object()

    def __next__(self) -> Any:
        self._check_open()
        try:
            for step in self._steps:  # not by `next`: after a call a signal handler may run, and would count this step
                return step
        except ClosedError:
            self._check_open()  # it was closed while this waited
            raise
        raise StopIteration

    def _check_open(self) -> None:
        self._owner._check_open()
        if self._steps._loop is not self._number or self._steps is not self._owner._current:
            raise ClosedError(
                "another loop over this loader has begun, or a state was loaded, which ends this one: make a loader "
                "for each loop that runs beside others"
            )

    @property
    def errors(self) -> SkippedRows:
        """The rows that this process skipped up to the last step handed out, as in `DatasetIterator.errors`."""
        return self._steps.errors

    def rows(self) -> list[Row]:
        """The rows of sources of which the last step handed out was made, as in `DistributedIterator.rows`."""
        return self._steps.rows()

    def remix(self, weights: Any, at: int | None = None) -> None:
        """Take the sources of `Dataset.mix` by other weights, as `remix` of the loader does."""
        self._check_open()
        self._steps.remix(weights, at)


def _digest(state: Any) -> str:
    """A few letters that stand for a state."""
    return hashlib.sha256(json.dumps(state, sort_keys=True, default=repr).encode()).hexdigest()[:16]
