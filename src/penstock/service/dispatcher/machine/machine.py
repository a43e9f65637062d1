"""The machine as a whole: decide, try, write down, make it so, answer."""

import logging
from collections.abc import Callable, Sequence

from penstock.errors import InvalidArgumentError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.changes import Changes
from penstock.service.dispatcher.machine.decide import decide
from penstock.service.dispatcher.machine.draft import Draft
from penstock.service.dispatcher.machine.elapsed import elapsed
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import Stopping, Update
from penstock.service.dispatcher.machine.working import may_end
from penstock.service.wire.dispatcher_messages import FromDispatcher, ToDispatcher
from penstock.service.wire.refusals import refusal_of

_logger = logging.getLogger(__name__)


class Machine:
    """A dispatcher that is told of everything, the time too. Not for several threads at once.

    Args:
        before: called with the state and the changes before they are made; if it raises, none of them is.
        state: what it begins with.
        life: tells what this dispatcher says from what another one said before it.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        now: float,
        before: Callable[[State, Sequence[Update]], None] = lambda state, updates: None,
        state: State | None = None,
        life: int = 0,
    ) -> None:
        self.config = config
        self.state = State() if state is None else state
        self.signs = Signs(started=now, changes=Changes(life))
        self._before = before

    def tell(self, message: ToDispatcher, now: float) -> FromDispatcher:
        """Carry out a message; gives the answer. One that cannot be carried out is refused, and changes nothing.

        Raises:
            Exception: what `before` raised; then nothing was changed either.
        """
        updates, reply = decide(self.state, self.signs, self.config, message, now)
        if not updates:
            return reply
        try:
            draft = Draft(self.state, updates)
        except (LookupError, ValueError) as error:
            _logger.exception("a %s asks for what does not apply", type(message).__name__)
            return refusal_of(
                InvalidArgumentError(f"this {type(message).__name__} asks for what does not apply: {error!r}")
            )
        self._keep(draft, updates)
        return reply

    def pass_time(self, now: float) -> None:
        """Do what is due by now."""
        if updates := elapsed(self.state, self.signs, self.config, now):
            self._keep(Draft(self.state, updates), updates)

    def was_away(self) -> None:
        """The dispatcher itself could hear nobody for a while: all have their whole time again."""
        self.signs.excuse()

    def leave(self) -> None:
        """Begin no more epochs, and end when the last reader has."""
        updates = [Stopping(mode="leave")]
        self._keep(Draft(self.state, updates), updates)

    @property
    def over(self) -> bool:
        """Whether nobody needs the dispatcher any more."""
        return may_end(self.state)

    def _keep(self, draft: Draft, updates: Sequence[Update]) -> None:
        self._before(self.state, updates)
        draft.keep()
        for update in updates:
            self.signs.changes.note(update)
