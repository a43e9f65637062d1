"""Rendezvous of ranks through the store of torch.distributed, by which they are connected to a control channel.

Ranks agree on steps over this channel and not by collectives: those would have to come in one order on all ranks,
which a thread that reads ahead cannot keep, and on the GPU they would wait for the training step.
"""

import itertools
import os
import secrets
import time
from datetime import timedelta
from typing import Any, Final

import torch.distributed
from torch.distributed import distributed_c10d

from penstock.distribute.cluster.description import own_address
from penstock.distribute.control.channel import Control, call_seconds, did_not_come
from penstock.distribute.control.meeting import Meeting
from penstock.errors import WorkerError
from penstock.torch.ranks import Ranks, group_is_initialised

_calls = itertools.count()
_start: list[str] = []
"""What `_start_of` has found for this process."""
_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
_PAUSE_SECONDS: Final = 0.02
_NOTHING: Final = ""
"""What `compare_set` takes for a name without a value."""
_BEGIN: Final = "="
"""Before every value, because an empty one would be none."""


class RanksStore:
    """The store of the default process group, or of torchrun, for one call.

    Raises:
        WorkerError: the process that runs the store has ended, or did not begin in time.
    """

    def __init__(self, start: str, call: int, seconds: float) -> None:
        self._store = torch.distributed.PrefixStore(f"penstock/loader/{start}{call}", _store(seconds))

    def add(self, name: str) -> int:
        return int(_raising_if_lost(self._store.add, name, 1))

    def put(self, name: str, value: str) -> None:
        _raising_if_lost(self._store.compare_set, name, _NOTHING, _BEGIN + value)

    def get(self, name: str) -> str | None:
        if not _raising_if_lost(self._store.check, [name]):
            return None
        found: str = _raising_if_lost(self._store.get, name).decode()
        return found.removeprefix(_BEGIN)


def meeting_of(ranks: Ranks | None, failure_timeout_seconds: float | None) -> Meeting | None:
    """Return where the ranks meet for one more loader; None for one that is alone."""
    if ranks is None or ranks.count == 1:
        return None
    call = next(_calls)
    name = f"call {call + 1} of ps.torch.loader"
    seconds = call_seconds(failure_timeout_seconds)
    store = RanksStore(_start_of(ranks, name, seconds), call, seconds)
    return Meeting(store, name, ranks.rank, ranks.count, "rank", failure_timeout_seconds)


def _start_of(ranks: Ranks, call: str, seconds: float) -> str:
    """Return a name for this start of the ranks: the store of torchrun's agents may still have values of earlier ones.

    Rank 0 draws it, and answers the questions of all others. Each question has a random value, so that questions and
    answers of earlier ranks have no effect. torchrun's own count of restarts differs between agents.

    Raises:
        WorkerError: rank 0 did not come in time.
    """
    if os.environ.get(_AGENT_STORE) != "True":
        return ""
    if not _start:
        store = torch.distributed.PrefixStore("penstock/start", _store(seconds))
        answer = _answered if ranks.rank == 0 else _asked
        _start.append(_raising_if_lost(answer, store, ranks, call, seconds))
    return _start[0]


def _answered(store: Any, ranks: Ranks, _: str, seconds: float) -> str:
    """Rank 0's part: those that do not ask in time are missed when all of them meet."""
    drawn, deadline = f"{secrets.token_hex(8)}/", time.monotonic() + seconds
    silent = set(range(1, ranks.count))
    while silent and time.monotonic() < deadline:
        for rank in sorted(silent):
            if store.check([f"question {rank}"]):
                store.set(f"answer {store.get(f'question {rank}').decode()}", drawn)
            if store.check([f"{drawn}{rank}"]):
                silent.remove(rank)
        time.sleep(_PAUSE_SECONDS)
    return drawn


def _asked(store: Any, ranks: Ranks, call: str, seconds: float) -> str:
    question, deadline = secrets.token_hex(8), time.monotonic() + seconds
    store.set(f"question {ranks.rank}", question)
    while not store.check([f"answer {question}"]):
        if time.monotonic() >= deadline:
            raise WorkerError(did_not_come(f"rank 0 of {ranks.count}", call, seconds, "rank"))
        time.sleep(_PAUSE_SECONDS)
    drawn: str = store.get(f"answer {question}").decode()
    store.set(f"{drawn}{ranks.rank}", "")
    return drawn


def connected(meeting: Meeting | None) -> Control | None:
    """This rank's end of a new control channel between all ranks, once all have come to the meeting.

    Raises:
        WorkerError: a rank did not come, or has told that it failed.
    """
    if meeting is None:
        return None
    meeting.join()
    return meeting.connect(own_address(os.environ.get("MASTER_ADDR", "")))


def _raising_if_lost(call: Any, *arguments: Any) -> Any:
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
        raise WorkerError(f"{did_not_come('a rank', 'ps.torch.loader', seconds, 'rank')} ({error})") from error
