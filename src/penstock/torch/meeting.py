"""The control channel between ranks, which find each other through the store of torch.distributed.

Ranks agree on steps over this channel and not by collectives: those would have to come in one order on all ranks,
which a thread that reads ahead cannot keep, and on the GPU they would wait for the training step.
"""

import itertools
import os
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed
from torch.distributed import distributed_c10d

from penstock.distribute.cluster.description import own_address
from penstock.distribute.control.channel import Control
from penstock.distribute.control.hub import Hub
from penstock.distribute.feed.dataset import SETUP_SECONDS
from penstock.errors import WorkerError
from penstock.runtime.at_exit import end_before_libraries
from penstock.torch.ranks import Ranks, group_is_initialised

_calls = itertools.count()
_ALL_CAME = "all came"
"""The name under which the last rank to come sets "", or one that failed, what it failed with."""


def connected(ranks: Ranks, failure_timeout_seconds: float) -> Control | None:
    """This rank's end of a new control channel between all ranks; None for one that is alone or was given its number.

    Raises:
        WorkerError: a rank did not come, or has told that it failed.
    """
    if not _meets(ranks):
        return None
    call = next(_calls)
    store = _store_of(call)
    if store.add("came", 1) == ranks.count:
        store.set(_ALL_CAME, "")
    _wait(store, _ALL_CAME, f"not all of {ranks.count} ranks came", call)
    failure = store.get(_ALL_CAME).decode()
    if failure:
        raise WorkerError(failure)
    if ranks.rank == 0:
        hub = Hub(_own_host(), ranks.count)
        end_before_libraries(hub, Hub.finish)  # registered before the channel, and so called after it
        store.set("hub", msgspec.json.encode((hub.host, hub.port, hub.key.hex())))
    _wait(store, "hub", f"rank 0 of {ranks.count} did not come", call)
    host, port, key = msgspec.json.decode(store.get("hub"), type=tuple[str, int, str])
    return Control((host, port), bytes.fromhex(key), ranks.rank, ranks.count, failure_timeout_seconds, member="rank")


def tell_failure(ranks: Ranks, error: Exception) -> None:
    """Tell the ranks that wait for this one in `connected` why it does not come; nothing where they do not wait."""
    if _meets(ranks):
        said = f"ps.torch.loader failed on rank {ranks.rank} of {ranks.count}: {type(error).__name__}: {error}"
        _store_of(next(_calls)).set(_ALL_CAME, said)


def _meets(ranks: Ranks) -> bool:
    return ranks.count > 1 and ranks.source != "arguments"


def _store_of(call: int) -> Any:
    return torch.distributed.PrefixStore(f"penstock/loader/{call}", _store())


def _wait(store: Any, name: str, otherwise: str, call: int) -> None:
    try:
        store.wait([name], timedelta(seconds=SETUP_SECONDS))
    except RuntimeError as error:
        raise WorkerError(
            f"{otherwise} to call {call + 1} of ps.torch.loader within {SETUP_SECONDS:.0f} seconds: every rank must "
            f"make the same loaders in the same order ({error})"
        ) from error


def _store() -> Any:
    """The store of the default process group; without one, that of torchrun, which the group will use later."""
    if group_is_initialised():
        return distributed_c10d._get_default_store()
    return next(torch.distributed.rendezvous("env://"))[0]


def _own_host() -> str:
    """By what the other ranks reach rank 0."""
    master = os.environ.get("MASTER_ADDR", "")
    return master if master == "localhost" or master.startswith("127.") else own_address()
