"""A dispatcher's machine that fails where deciding changes anything, or where it knows what no update has told it."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.expiry import due_changes
from penstock.service.dispatcher.machine.knowledge import Change, Decision, Draft, Knowledge
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import Update
from penstock.service.dispatcher.machine.volatile import Observation
from penstock.service.wire.dispatcher_messages import ToDispatcher


def everything(known: Knowledge) -> str:
    """What a machine knows, to be compared."""
    return f"{known.state} {known.volatile} {vars(known.volatile.changes)}".replace(repr(known.volatile.changes), "")


class CheckedMachine(Machine):
    """Begins with nothing. All updates are made on a copy too, which must know the same in the end."""

    def __init__(
        self,
        config: DispatcherConfig,
        now: float,
        before: Callable[[State, Sequence[Update]], None] = lambda state, updates: None,
    ) -> None:
        super().__init__(config, now, before)
        self.copy = Knowledge(config, State(), now)
        known, (advance, observe, keep) = self._known, (self._known.advance, self._known.observe, self._known.keep)

        def advance_both(now: float) -> None:
            advance(now)
            self.copy.advance(now)

        def observe_both(observation: Observation) -> None:
            observe(observation)
            self.copy.observe(observation)

        def keep_both(draft: Draft) -> None:
            again = Draft(self.copy.state, draft.updates)
            keep(draft)
            self.copy.keep(again)

        vars(known).update(advance=advance_both, observe=observe_both, keep=keep_both)

    def decide(self, message: ToDispatcher) -> Decision:
        return self._unchanged(lambda: super(CheckedMachine, self).decide(message))

    def pass_time(self, now: float) -> None:
        self._known.advance(now)
        due: list[Change] = self._unchanged(lambda: due_changes(self._known))
        super().pass_time(now)
        assert not due or due_changes(self._known) != due

    def _unchanged(self, decide: Callable[[], Any]) -> Any:
        before = everything(self._known)
        assert before == everything(self.copy)
        try:
            return decide()
        finally:
            assert everything(self._known) == before
