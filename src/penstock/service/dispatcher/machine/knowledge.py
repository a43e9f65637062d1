"""The input of the dispatcher's decisions: its lasting and its volatile state, its configuration and its clock.

A change that does not apply must not be written to the journal, which could not be replayed; and one that cannot be
written must not be made. So changes are first tried on copies, which then replace the originals.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.state import Consumer, Epoch, Job, State
from penstock.service.dispatcher.machine.updates import Update
from penstock.service.dispatcher.machine.volatile import Observation, VolatileState
from penstock.service.wire.dispatcher_messages import FromDispatcher

Change = Update | Observation
Decision = tuple[list[Change], FromDispatcher]
"""The changes that a message asks for, and its answer, which holds once they are made."""


class Knowledge:
    """Everything that decisions read; only `advance`, `observe` and `keep` change it.

    Args:
        state: belongs to this object from then on.
        life: distinguishes the news of this dispatcher from those of others.

    Attributes:
        now: the time, in seconds on a clock that never goes back.
    """

    def __init__(self, config: DispatcherConfig, state: State, now: float, life: int = 0) -> None:
        self.config = config
        self.state = state
        self.now = now
        self.volatile = VolatileState.beginning(state, now, life)

    def advance(self, now: float) -> None:
        """Set the clock."""
        self.now = now

    def observe(self, observation: Observation) -> None:
        """Apply an observation, which is not journalled."""
        observation.apply(self.volatile, self.now)

    def keep(self, draft: "Draft") -> None:
        """Replace the lasting state by a draft of it."""
        draft.replace_state()
        for update in draft.updates:
            self.volatile.follow(update, self.state, self.now)

    def readers(self, epoch: Epoch) -> list[Consumer]:
        """The consumers of an epoch that are alive."""
        return [self.state.consumers[number] for number in self.volatile.readers.get(epoch.epoch_id, ())]

    def finished(self, epoch: Epoch) -> bool:
        """Return whether every position of a leased epoch is consumed. Others end with their consumers."""
        if not self.state.leased(epoch) or not epoch.ledgers or any(ledger.free != 0 for ledger in epoch.ledgers):
            return False
        return not any(reader.leased or reader.owed for reader in self.readers(epoch))  # those that are gone have none

    @property
    def being_read(self) -> bool:
        """Return whether anything has consumers that are alive."""
        return bool(self.volatile.readers)

    @property
    def workers_may_go(self) -> bool:
        """Return whether the workers are no longer needed: the service ends, at once or after its last reader."""
        return self.state.stopping == "now" or (self.state.stopping == "drain" and not self.being_read)

    @property
    def may_end(self) -> bool:
        """Return whether the dispatcher is to end and is no longer needed."""
        if self.state.stopping == "leave":
            return not self.being_read
        return self.workers_may_go and not any(worker.alive for worker in self.state.workers.values())

    def worker_silence(self, worker_id: int) -> float:
        """The seconds since a worker last sent a message."""
        return self.now - self.volatile.workers[worker_id].heard_at

    def consumer_silence(self, consumer_id: int) -> float:
        """The seconds since a consumer last sent a message."""
        return self.now - self.volatile.consumers[consumer_id].heard_at

    @property
    def suspicious_seconds(self) -> float:
        """The silence, in seconds, after which a consumer may be dead."""
        return min(2 * self.config.heartbeat_seconds, self.config.lease_seconds)

    def may_be_dead(self, consumer_id: int) -> bool:
        """Return whether a consumer has been silent for more than `suspicious_seconds`."""
        return self.consumer_silence(consumer_id) > self.suspicious_seconds


class _Copies(dict[Any, Any]):
    """A dictionary whose entries are copied from another one when they are first accessed."""

    __slots__ = ("_copied", "_gone", "_kept")

    def __init__(self, kept: dict[Any, Any], copied: Callable[[Any], Any] = replace) -> None:
        self._kept = kept
        self._copied = copied
        self._gone: set[Any] = set()

    def __missing__(self, key: Any) -> Any:
        if key in self._gone:
            raise KeyError(key)
        self[key] = found = self._copied(self._kept[key])
        return found

    def __delitem__(self, key: Any) -> None:
        _ = self[key]  # raises a KeyError if there is none
        super().__delitem__(key)
        self._gone.add(key)

    def pop(self, key: Any) -> Any:  # type: ignore[override]  # no caller gives a default
        found = self[key]
        del self[key]
        return found

    def replace_originals(self) -> None:
        """Replace the originals by the copies."""
        for key in self._gone:
            self._kept.pop(key, None)
        if self:  # most changes are of one or two of these dictionaries
            self._kept.update(self)


class Draft:
    """The lasting state as it will be after some updates.

    Args:
        state: is not changed before `replace_state`.
        updates: applied one after the other.

    Raises:
        LookupError, ValueError: they do not apply.
    """

    def __init__(self, state: State, updates: Sequence[Update]) -> None:
        self.updates = updates
        self._state = state
        self._copies = {
            "datasets": _Copies(state.datasets),
            "workers": _Copies(state.workers),
            "jobs": _Copies(state.jobs, _job),
            "epochs": _Copies(state.epochs, _epoch),
            "consumers": _Copies(state.consumers),
        }
        self._draft = replace(state, **self._copies)
        for update in updates:
            update.apply(self._draft)

    def replace_state(self) -> None:
        """Make the state what the draft is."""
        for copies in self._copies.values():
            copies.replace_originals()
        for name in ("next_worker", "next_place", "next_job", "next_epoch", "next_consumer", "stopping"):
            setattr(self._state, name, getattr(self._draft, name))


def _job(job: Job) -> Job:
    return replace(job, epochs=list(job.epochs))


def _epoch(epoch: Epoch) -> Epoch:
    return replace(epoch, ledgers=list(epoch.ledgers), consumers=list(epoch.consumers))
