"""The machine as a whole: decide, write down, apply, answer."""

from collections.abc import Callable, Sequence

from penstock.service.config import DispatcherConfig
from penstock.service.machine.changes import Changes
from penstock.service.machine.decide import decide
from penstock.service.machine.elapsed import elapsed
from penstock.service.machine.signs import Signs
from penstock.service.machine.state import State
from penstock.service.machine.updates import Stopping, Update, apply
from penstock.service.machine.working import may_end
from penstock.service.messages import FromDispatcher, ToDispatcher


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
        """Carry out a message; gives the answer."""
        updates, reply = decide(self.state, self.signs, self.config, message, now)
        self._change(updates)
        return reply

    def pass_time(self, now: float) -> None:
        """Do what is due by now."""
        self._change(elapsed(self.state, self.signs, self.config, now))

    def was_away(self) -> None:
        """The dispatcher itself could hear nobody for a while: all have their whole time again."""
        self.signs.excuse()

    def leave(self) -> None:
        """Begin no more epochs, and end when the last reader has."""
        self._change([Stopping(mode="leave")])

    @property
    def over(self) -> bool:
        """Whether nobody needs the dispatcher any more."""
        return may_end(self.state)

    def _change(self, updates: Sequence[Update]) -> None:
        if updates:
            self._before(self.state, updates)
        for update in updates:
            apply(self.state, update)
            self.signs.changes.note(update)
