"""The control channel between the processes of JAX's cluster, whatever runs on their devices."""

import threading

import jax
import msgspec
import numpy as np
from jax.experimental import multihost_utils

from penstock.distribute.cluster.description import Cluster, own_address
from penstock.distribute.control.channel import Control
from penstock.distribute.control.hub import Hub
from penstock.errors import InvalidArgumentError
from penstock.runtime.at_exit import end_before_libraries

_MESSAGE_BYTES = 512

_lock = threading.Lock()
_shared: list[Control] = []


def control_of_all_processes(failure_timeout_seconds: float) -> Control:
    """The channel that all loaders of this process share; every process must ask for it first at the same time."""
    with _lock:
        if not _shared or _shared[0].closed:
            _shared[:] = [open_channel(None, jax.process_index(), jax.process_count(), failure_timeout_seconds)]
        return _shared[0]


def check_connected(cluster: Cluster | None, advice: str) -> None:
    """Check that JAX is connected to all processes of the cluster that a launcher names.

    Raises:
        InvalidArgumentError: there are others that JAX does not know of, and this process would be alone.
    """
    known = jax.process_count()
    if cluster is None or (cluster.num_workers or 1) <= known:
        return
    state = f"initialised for {known} process(es)" if jax.distributed.is_initialized() else "not initialised"
    raise InvalidArgumentError(
        f"jax.distributed was {state}, but {cluster.source} names {cluster.num_workers}: {advice}"
    )


def open_channel(cluster: Cluster | None, worker: int, workers: int, failure_timeout_seconds: float) -> Control:
    """This worker's end of a new control channel; worker 0 tells the others how to reach it.

    Args:
        cluster: says how the other workers reach this process's machine, if it is known.
        worker: the number of this worker, which is that of its process.
        workers: the number of workers.
        failure_timeout_seconds: as of `Control`.
    """
    address = b""
    if worker == 0:
        hub = Hub(_own_host(cluster), workers)
        end_before_libraries(hub, Hub.finish)  # registered before the channel, and so called after it
        address = msgspec.json.encode((hub.host, hub.port, hub.key.hex()))
    message = np.frombuffer(address.ljust(_MESSAGE_BYTES, b"\0"), np.uint8)
    answer = np.asarray(multihost_utils.broadcast_one_to_all(message)).tobytes().rstrip(b"\0")
    host, port, key = msgspec.json.decode(answer, type=tuple[str, int, str])
    return Control((host, port), bytes.fromhex(key), worker, workers, failure_timeout_seconds)


def _own_host(cluster: Cluster | None) -> str:
    """By what the other workers reach this process: the coordinator's host, which it is, or its address."""
    if cluster is not None and cluster.coordinator_address is not None:
        return cluster.coordinator_address.rpartition(":")[0].strip("[]")
    return own_address()
