"""Changes that are tried before they are made: on copies of what they touch, which then take its place.

A change that does not apply must not be written down, or nobody could go on from what is written; and one that cannot
be written down must not be made.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.service.dispatcher.machine.state import Epoch, Job, State
from penstock.service.dispatcher.machine.updates import Update, apply


class _Copies(dict[Any, Any]):
    """What was touched of a dictionary: entries are copied when they are looked at for the first time."""

    def __init__(self, kept: dict[Any, Any], copied: Callable[[Any], Any] = replace) -> None:
        super().__init__()
        self._kept = kept
        self._copied = copied
        self._gone: set[Any] = set()

    def __missing__(self, key: Any) -> Any:
        if key in self._gone:
            raise KeyError(key)
        self[key] = found = self._copied(self._kept[key])
        return found

    def __delitem__(self, key: Any) -> None:
        _ = self[key]  # a KeyError where there is none
        super().__delitem__(key)
        self._gone.add(key)

    def pop(self, key: Any) -> Any:  # type: ignore[override]  # nobody asks with a default
        found = self[key]
        del self[key]
        return found

    def keep(self) -> None:
        """Put it in place of what it was copied from."""
        for key in self._gone:
            self._kept.pop(key, None)
        self._kept.update(self)


class Draft:
    """A state as it will be.

    Args:
        state: stays as it is until `keep`.
        updates: are made one after the other.

    Raises:
        LookupError, ValueError: they do not apply.
    """

    def __init__(self, state: State, updates: Sequence[Update]) -> None:
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
            apply(self._draft, update)

    def keep(self) -> None:
        """Let the state be so."""
        for copies in self._copies.values():
            copies.keep()
        for name in ("next_worker", "next_place", "next_job", "next_epoch", "next_consumer", "stopping"):
            setattr(self._state, name, getattr(self._draft, name))


def _job(job: Job) -> Job:
    return replace(job, epochs=list(job.epochs))


def _epoch(epoch: Epoch) -> Epoch:
    return replace(epoch, ledgers=list(epoch.ledgers), consumers=list(epoch.consumers))
