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


def connected(ranks: Ranks, failure_timeout_seconds: float) -> Control | None:
    """This rank's end of a new control channel between all ranks; None for one that is alone or was given its number.

    Raises:
        WorkerError: rank 0 did not come.
    """
    if ranks.count == 1 or ranks.source == "arguments":
        return None
    call = next(_calls)
    store = torch.distributed.PrefixStore(f"penstock/loader/{call}", _store())
    if ranks.rank == 0:
        hub = Hub(_own_host(), ranks.count)
        end_before_libraries(hub, Hub.finish)  # registered before the channel, and so called after it
        store.set("hub", msgspec.json.encode((hub.host, hub.port, hub.key.hex())))
    try:
        store.wait(["hub"], timedelta(seconds=SETUP_SECONDS))
    except RuntimeError as error:
        raise WorkerError(
            f"rank 0 of {ranks.count} did not come to call {call + 1} of ps.torch.loader within {SETUP_SECONDS:.0f} "
            f"seconds: every rank must make the same loaders in the same order ({error})"
        ) from error
    host, port, key = msgspec.json.decode(store.get("hub"), type=tuple[str, int, str])
    return Control((host, port), bytes.fromhex(key), ranks.rank, ranks.count, failure_timeout_seconds)


def _store() -> Any:
    """The store of the default process group; without one, that of torchrun, which the group will use later."""
    if group_is_initialised():
        return distributed_c10d._get_default_store()
    return next(torch.distributed.rendezvous("env://"))[0]


def _own_host() -> str:
    """By what the other ranks reach rank 0."""
    master = os.environ.get("MASTER_ADDR", "")
    return master if master == "localhost" or master.startswith("127.") else own_address()
