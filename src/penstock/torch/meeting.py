"""How ranks find each other: through the store of torch.distributed, by which they are connected to a control channel.

Ranks agree on steps over this channel and not by collectives: those would have to come in one order on all ranks,
which a thread that reads ahead cannot keep, and on the GPU they would wait for the training step.
"""

import itertools
import os
from datetime import timedelta
from typing import Any, Final

import torch.distributed
from torch.distributed import distributed_c10d

from penstock.distribute.cluster.description import own_address
from penstock.distribute.control.channel import Control
from penstock.distribute.control.meeting import Meeting
from penstock.errors import WorkerError
from penstock.torch.ranks import Ranks, group_is_initialised

_calls = itertools.count()
_NOTHING: Final = ""
"""What `compare_set` takes for a name without a value."""
_BEGIN: Final = "="
"""Before every value, because an empty one would be none."""


class RanksStore:
    """The store of the default process group, or of torchrun, for one call.

    Raises:
        WorkerError: the process that runs the store has ended, or did not begin in time.
    """

    def __init__(self, call: int, seconds: float) -> None:
        self._store = torch.distributed.PrefixStore(f"penstock/loader/{call}", _store(seconds))

    def add(self, name: str) -> int:
        return int(_lost_is_told(self._store.add, name, 1))

    def put(self, name: str, value: str) -> None:
        _lost_is_told(self._store.compare_set, name, _NOTHING, _BEGIN + value)

    def get(self, name: str) -> str | None:
        if not _lost_is_told(self._store.check, [name]):
            return None
        found: str = _lost_is_told(self._store.get, name).decode()
        return found.removeprefix(_BEGIN)


def meeting_of(ranks: Ranks | None, failure_timeout_seconds: float) -> Meeting | None:
    """Where the ranks meet for one more loader; None for one that is alone."""
    if ranks is None or ranks.count == 1:
        return None
    call = next(_calls)
    name = f"call {call + 1} of ps.torch.loader"
    return Meeting(
        RanksStore(call, failure_timeout_seconds), name, ranks.rank, ranks.count, "rank", failure_timeout_seconds
    )


def connected(meeting: Meeting | None) -> Control | None:
    """This rank's end of a new control channel between all ranks, once all have come to the meeting.

    Raises:
        WorkerError: a rank did not come, or has told that it failed.
    """
    if meeting is None:
        return None
    meeting.come()
    return meeting.connect(_own_host(), meeting.seconds)


def _lost_is_told(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except RuntimeError as error:
        raise WorkerError(
            "ps.torch.loader cannot reach the other ranks through the store of torch.distributed any more: the process "
            f"that runs it, which is rank 0 or torchrun, has ended ({error})"
        ) from error


def _store(seconds: float) -> Any:
    """The store of the default process group; without one, that of torchrun, which the group will use later."""
    if group_is_initialised():
        return distributed_c10d._get_default_store()
    try:
        return next(torch.distributed.rendezvous("env://", timeout=timedelta(seconds=seconds)))[0]
    except RuntimeError as error:
        raise WorkerError(
            f"the ranks did not all come to ps.torch.loader within {seconds:g} seconds: every rank must make the same "
            "calls in the same order; where one has more to do before it, give all of them a larger "
            f"failure_timeout_seconds ({error})"
        ) from error


def _own_host() -> str:
    """By what the other ranks reach rank 0."""
    return own_address(os.environ.get("MASTER_ADDR", ""))
