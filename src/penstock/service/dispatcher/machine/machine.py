"""The dispatcher without sockets, disk or clock: it gets messages and the time, and returns answers.

For each message it decides, which changes nothing; tries the changes on a draft; has them journalled; makes them; and
answers.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import InvalidArgumentError, PenstockError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.datasets import find_dataset, register_dataset
from penstock.service.dispatcher.machine.expiry import due_changes
from penstock.service.dispatcher.machine.knowledge import Change, Decision, Draft, Knowledge
from penstock.service.dispatcher.machine.leasing import hear_consumer, lease_spans, release_consumer
from penstock.service.dispatcher.machine.opening import open_epoch
from penstock.service.dispatcher.machine.report import status
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import Stopping, Update
from penstock.service.dispatcher.machine.volatile import Heard, Observation, WasAway
from penstock.service.dispatcher.machine.workers import admit_worker, hear_worker
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    Done,
    FromDispatcher,
    GetDataset,
    GetStatus,
    Lease,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    Stop,
    ToDispatcher,
    WorkerHeartbeat,
    WorkerHello,
)
from penstock.service.wire.refusals import refusal_of

_logger = logging.getLogger(__name__)


class Machine:
    """The decisions and the state of a dispatcher; even the time is an argument. Use it from one thread at a time.

    Args:
        before: called with the state and the changes before they are made; if it raises, none of them is.
        state: the state to begin with.
        life: distinguishes the news of this dispatcher from those of an earlier one.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        now: float,
        before: Callable[[State, Sequence[Update]], None] = lambda state, updates: None,
        state: State | None = None,
        life: int = 0,
    ) -> None:
        self._known = Knowledge(config, State() if state is None else state, now, life)
        self._before = before

    @property
    def state(self) -> State:
        """The lasting state, which the journal keeps."""
        return self._known.state

    @property
    def may_end(self) -> bool:
        """Return whether the dispatcher is to end and is no longer needed."""
        return self._known.may_end

    def answer(self, message: ToDispatcher, now: float) -> FromDispatcher:
        """Carry out a message, and return the answer. One that cannot be carried out is refused, and changes nothing.

        Args:
            now: seconds on a clock that never goes back.

        Raises:
            Exception: raised by `before`; then nothing was changed either.
        """
        self._known.advance(now)
        self._known.observe(Heard(message))
        try:
            changes, answer = self.decide(message)
        except PenstockError as error:
            return refusal_of(error)
        if changes:
            try:
                self._make(changes)
            except _DoesNotApplyError as error:
                _logger.exception("a %s asks for changes that do not apply", type(message).__name__)
                reason = f"this {type(message).__name__} asks for changes that do not apply: {error.__cause__!r}"
                return refusal_of(InvalidArgumentError(reason))
        return answer

    def decide(self, message: ToDispatcher) -> Decision:
        """The changes that a message asks for, and its answer, which holds once they are made. It changes nothing.

        Raises:
            PenstockError: the message cannot be carried out.
        """
        return _DECIDERS[type(message)](self._known, message)

    def pass_time(self, now: float) -> None:
        """Make the changes that are due by now."""
        self._known.advance(now)
        if changes := due_changes(self._known):
            self._make(changes)

    def was_away(self, now: float) -> None:
        """Count all silences from now on, because the dispatcher itself was suspended and could receive nothing."""
        self._known.advance(now)
        self._known.observe(WasAway())

    def leave(self) -> None:
        """Begin no more epochs, and end after the last reader."""
        self._make([Stopping(mode="leave")])

    def _make(self, changes: Sequence[Change]) -> None:
        """Make changes, all or none of them; those of the lasting state are journalled before.

        Raises:
            _DoesNotApplyError: some are of something that the state does not have.
            Exception: raised by `before`.
        """
        observations: list[Observation] = []
        updates: list[Update] = []
        for change in changes:
            if isinstance(change, Observation):
                observations.append(change)
            else:
                updates.append(change)
        if updates:
            try:
                draft = Draft(self.state, updates)
            except (LookupError, ValueError) as error:
                raise _DoesNotApplyError from error
            self._before(self.state, updates)
            self._known.keep(draft)
        for observation in observations:
            self._known.observe(observation)


class _DoesNotApplyError(Exception):
    """An update concerns something that the state does not have."""


def _stop(known: Knowledge, message: Stop) -> Decision:
    mode = "drain" if message.drain else "now"
    return ([Stopping(mode=mode)] if known.state.stopping not in (mode, "now") else []), Done()


_DECIDERS: Final[dict[type, Callable[[Knowledge, Any], Decision]]] = {
    RegisterDataset: register_dataset,
    GetDataset: find_dataset,
    OpenEpoch: open_epoch,
    Lease: lease_spans,
    ConsumerHeartbeat: hear_consumer,
    ReleaseConsumer: release_consumer,
    WorkerHello: admit_worker,
    WorkerHeartbeat: hear_worker,
    GetStatus: lambda known, message: ([], status(known)),
    Stop: _stop,
}
"""The function that decides on each kind of message; it changes nothing."""
