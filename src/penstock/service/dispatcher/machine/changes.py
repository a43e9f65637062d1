"""The latest changes of workers and passes, so that readers are sent only these."""

from collections import deque
from typing import Final, NamedTuple

from penstock.service.dispatcher.machine.state import Epoch, State
from penstock.service.dispatcher.machine.updates import (
    Consumed,
    Granted,
    PassAdded,
    PassEnded,
    PassMoved,
    Update,
    WorkerJoined,
    WorkerLeaving,
    WorkerLost,
)
from penstock.service.wire.dispatcher_messages import ConsumerNews
from penstock.service.wire.subjects import PassInfo, WorkerInfo

_KEPT: Final = 4096
"""How many changes are kept: a reader that has missed more is sent everything."""
_PER_LIFE: Final = 1 << 24


class _Change(NamedTuple):
    """A worker that joined or is gone, or changed passes of an epoch.

    Attributes:
        worker: the one that joined.
        gone: the id of the one that is gone, or -1.
        epoch_id: of the passes, or -1.
    """

    worker: WorkerInfo | None = None
    gone: int = -1
    epoch_id: int = -1


class Changes:
    """The last changes, by version. They need no journal: a new dispatcher sends everything to each reader once.

    Args:
        life: distinguishes the versions of this dispatcher from those of others.

    Attributes:
        version: of the newest change.
    """

    def __init__(self, life: int = 0) -> None:
        self.version = life * _PER_LIFE
        self._kept: deque[_Change] = deque(maxlen=_KEPT)

    def record(self, update: Update) -> None:
        """Record a change that has been made."""
        match update:
            case Granted() | Consumed():  # most updates, which readers need not know
                pass
            case WorkerJoined():
                self._add(_Change(worker=update.info))
            case WorkerLeaving() | WorkerLost():
                self._add(_Change(gone=update.worker_id))
            case PassAdded() | PassMoved() | PassEnded():
                self._add(_Change(epoch_id=update.epoch_id))

    def _add(self, change: _Change) -> None:
        self.version += 1
        self._kept.append(change)

    def since(self, version: int, state: State, epoch: Epoch) -> ConsumerNews:
        """The changes since a version that concern a reader of an epoch."""
        missed = self.version - version
        if not 0 <= missed <= len(self._kept):
            workers = [worker.info for worker in state.present()]
            return ConsumerNews(version=self.version, workers=workers, whole=True, passes=_passes(epoch))
        changes = list(self._kept)[len(self._kept) - missed :] if missed else []
        gone = [change.gone for change in changes if change.gone >= 0]
        come = [change.worker for change in changes if change.worker is not None]
        return ConsumerNews(
            version=self.version,
            workers=[worker for worker in come if worker.worker_id not in gone],
            gone=gone,
            passes=_passes(epoch) if any(change.epoch_id == epoch.epoch_id for change in changes) else None,
        )


def _passes(epoch: Epoch) -> list[PassInfo]:
    return [ledger.info for ledger in epoch.ledgers]
