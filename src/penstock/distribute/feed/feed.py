"""From steps in host memory to steps on the replicas: agree on each, pad or drop it, place it, in a thread ahead."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import PassBegun
from penstock.distribute.feed.agreement import AgreedInput, Agreement, StepFacts
from penstock.distribute.feed.collating import Collate, shapes_of
from penstock.distribute.feed.measured import MeasuredSteps
from penstock.distribute.feed.options import PartialBatch
from penstock.distribute.feed.step_sources import StepSource
from penstock.distribute.feed.steps import HostStep, Layout, Padding, StepLeaf, Template
from penstock.distribute.values import PerReplica
from penstock.errors import WorkerError
from penstock.printing import text_of_error
from penstock.runtime.at_exit import after_interrupt, end_at_exit
from penstock.runtime.channel import Channel, Closed
from penstock.statistics.lanes import name_thread, waiting


@dataclass(frozen=True)
class Step:
    """A step that is ready, the position after it, and its number."""

    value: Any
    position: Any
    number: int = 0


@dataclass(frozen=True)
class StepFailure:
    """An exception instead of a step, the position after it, and its number; None where these are unknown."""

    error: BaseException
    position: Any | None
    number: int | None = None


@dataclass(frozen=True)
class StepsEnded:
    """The end of the data."""

    position: Any


Outcome = Step | StepFailure | StepsEnded

_EXIT_SECONDS = 5.0
_LEFT_SECONDS = 1.0
"""How long the interpreter's exit waits for a step that is being made, and after Ctrl-C: a source may never answer."""


class Prefetcher:
    """Calls `produce` in a background thread until it gives a `StepsEnded`, and holds up to `depth` outcomes.

    The thread runs from the first `get` on. It does not keep this object alive: it ends when this is closed or
    forgotten.
    """

    def __init__(self, produce: Callable[[], Outcome], depth: int) -> None:
        self._channel: Channel[Outcome] = Channel(depth)
        # A daemon: the interpreter waits for all other threads before it calls what ends them.
        self._thread = threading.Thread(
            target=_fill, args=(produce, self._channel), name="penstock-distribute", daemon=True
        )
        self._started = False
        self._starting = threading.RLock()
        # The garbage collector must not wait for the thread, which may wait for a lock of the collecting thread.
        weakref.finalize(self, self._channel.close).atexit = False
        # At exit it is waited for: device libraries crash if a thread uses them while they shut down.
        end_at_exit(self._thread, partial(_close_at_exit, self._channel))

    def get(self) -> Outcome:
        """The next outcome; waits for it. Must not be called again after a `StepsEnded`.

        Raises:
            Closed: this was closed, also by Ctrl-C while the thread was started: that may be making a step already.
        """
        with self._starting:
            if not self._started:
                self._started = True
                try:
                    self._thread.start()
                except BaseException:
                    self._channel.close()
                    raise
        return self._channel.get()

    def close(self, *, interrupted: bool = False) -> bool:
        """End the thread, and wait for the step it is at, after Ctrl-C not for long. Returns whether it has ended."""
        _close(self._channel, self._thread, _LEFT_SECONDS if interrupted else None)
        return not self._thread.is_alive()


def _fill(produce: Callable[[], Outcome], channel: Channel[Outcome]) -> None:
    ended = False
    name_thread("feed", -1)
    while not ended:
        outcome: Outcome
        try:
            channel.room()  # a step made before there is room would be one too many
        except Closed:  # no more steps are wanted
            return
        try:
            outcome = produce()
        except BaseException as error:  # raised again in the caller's thread, which would wait for ever otherwise
            outcome = StepFailure(error, None)
        ended = isinstance(outcome, StepsEnded)
        try:
            channel.put(outcome)
        except Closed:
            return
        # While the next step is made, this one belongs to the channel or to its receiver alone.
        del outcome


def _close_at_exit(channel: Channel[Outcome], thread: threading.Thread) -> None:
    _close(channel, thread, _LEFT_SECONDS if after_interrupt() else _EXIT_SECONDS)


def _close(channel: Channel[Outcome], thread: threading.Thread, seconds: float | None = None) -> None:
    channel.close()
    if thread.is_alive():  # one that has not started cannot be joined, and finds the channel closed
        thread.join(seconds)


PlaceLeaves = Callable[[list[StepLeaf], bool], list[Any]]
"""Takes the leaves of a step, and whether all replicas' slices have one shape; gives what to hand out for each leaf.

With one replica in sync that is a `PerReplica`, whose only value is handed out.
"""


@dataclass
class StepFeed:
    """Makes the next step. It does not refer to the iterator that hands out the steps, so a thread may refer to it.

    Attributes:
        source: this worker's steps.
        agreement: says what all workers have in a step.
        agreed: the inputs, and the treatment of steps that do not fill all replicas equally.
        place: places the slices for the replicas.
        bare: whether one replica is in sync, which gets bare values.
        topic: the name of this iteration on the control channel.
        collate: makes of each replica's rows what it gets; None if it gets the rows.
        control: the channel on which other workers learn of a failure.
        iteration: which of the dataset's iterations this is.
        measured: measures the steps.
    """

    source: StepSource
    agreement: Agreement
    agreed: AgreedInput
    place: PlaceLeaves
    bare: bool
    topic: str
    iteration: int
    control: Control | None
    measured: MeasuredSteps
    collate: Collate | None = None
    _seen: Template | None = field(default=None, init=False)
    _padding: Padding = field(default_factory=Padding, init=False)

    given: int = field(default=-1, init=False)
    """The number of the next step to hand out; -1 before one was asked for, and when none is handed out any more."""
    meeting: str = field(default="", init=False)
    """Where all workers meet that begin to take steps; "" once they have."""
    _closed: bool = field(default=False, init=False)

    def begin(self, meeting: str) -> None:
        """Note that the first step is asked for; the caller's thread calls this, so that all do in the same order."""
        self.meeting, self.given = meeting, self.source.number

    def close(self) -> None:
        """End a step that waits for other workers, of which no more are taken, and tell them where that was."""
        self._closed = True
        self.agreement.close()
        if self.control is not None and self.given >= 0:
            self.control.wake()
            given, self.given = self.given, -1
            self.control.leave_steps(self.topic, given)

    def _agree_on_place(self, control: Control) -> None:
        """Refuse to take steps of another epoch than the other workers, or from another place on."""
        meeting, self.meeting = self.meeting, ""
        own = PassBegun(self.iteration, self.source.place())
        answers = control.gather(meeting, own, PassBegun, closed=lambda: self._closed)
        for worker, other in enumerate(answers):
            if other != answers[0]:
                told = [f"{control.member} {one} {_described(answers[one])}" for one in (0, worker)]
                raise WorkerError(
                    f"{self.topic}: the {control.member}s take other steps: {', '.join(told)}: every {control.member} "
                    "must begin the same epochs, and load the same states"
                )

    def __call__(self) -> Outcome:
        """The next step, the end of the data, or an exception."""
        outcome = self.measured.make(self._made)
        self.measured.tell(last=isinstance(outcome, StepsEnded))
        return outcome

    def _made(self) -> Outcome:
        try:
            if self.control is not None and self.meeting:
                self._agree_on_place(self.control)
            value = self._next()
        except StopIteration:
            return StepsEnded(self.source.position())
        except KeyboardInterrupt:  # of a caller who reads nothing ahead: the step comes again
            raise
        except BaseException as error:  # raised again by the iterator, in the caller's thread
            if self.control is not None and not isinstance(error, (WorkerError, Closed)):
                self.control.fail_step(self.topic, self.source.number, text_of_error(error))
            return StepFailure(error, self.source.position(), self.source.number)
        return Step(value, self.source.position(), self.source.number - 1)

    def _next(self) -> Any:
        while True:
            step = self._own_step()
            with waiting:
                facts = self.agreement.facts_of(self.source.number, step)
            if facts.ended:
                raise StopIteration
            dropped = self.agreed.partial is PartialBatch.DROP and facts.smallest < (self.agreed.full or 1)
            value = None if facts.empty or dropped else self._placed(step, facts)
            self.source.number += 1  # after the placing, which may fail: others end at the step of this number
            if not (facts.empty or dropped):
                return value

    def _own_step(self) -> HostStep | None:
        try:
            step = self.source.next()
        except StopIteration:
            return None
        if self._seen is None:
            self._seen = Template.of([leaf.slices[0] for leaf in step.leaves], step.structure)
        return step

    def _placed(self, step: HostStep | None, facts: StepFacts) -> Any:
        if step is None:
            step = self._empty(facts)
        even = facts.even
        if self.agreed.partial is PartialBatch.PAD:
            step, even = self._padding(step, max(self.agreed.full, facts.largest)), facts.regular
        elif self.agreed.partial is PartialBatch.DROP:
            step, even = step.first_rows(facts.smallest), facts.regular
        if self.collate is not None:
            step = self.collate(step)
            even = self._agreed_shapes(step)
        placed = self.place(step.leaves, even)
        for leaf in placed if self.collate is None else ():
            if isinstance(leaf, PerReplica):
                leaf._ragged_row_counts = self.agreed.of_a_ragged_step
        return step.structure.unflatten([leaf.values[0] for leaf in placed] if self.bare else placed)

    def _agreed_shapes(self, step: HostStep) -> bool:
        """Return whether all replicas have one shape; workers ask each other only where they run one program."""
        own = shapes_of(step)
        answers = [own]
        if self.control is not None and not self.bare:
            topic = f"{self.topic}, results of collate"
            answers = self.control.gather(topic, own, Layout, closed=lambda: self._closed)
        return all(one == own and all(leaf.shape is not None for leaf in one) for one in answers)

    def _empty(self, facts: StepFacts) -> HostStep:
        """A step without rows, for a worker whose data has ended."""
        self._seen = self._seen or Template.of_spec(self.agreed.inputs.dataset.element_spec)
        if facts.layout is not None:  # which has the lengths that the specification leaves open
            leaves = tuple((np.dtype(leaf.dtype), leaf.shape or ()) for leaf in facts.layout)
            self._seen = Template(self._seen.structure, leaves)
        return self._seen.step(self.source.replicas)


def _described(begun: PassBegun) -> str:
    epoch = f"epoch {begun.place[0]} " if len(begun.place) > 1 else ""
    return f"begins {epoch}after {begun.place[-1]} batches, by call {begun.iteration + 1} of iter()"
