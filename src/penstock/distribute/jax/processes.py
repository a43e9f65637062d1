"""The control channel between the processes of JAX's cluster, whatever runs on their devices."""

import itertools
import threading

import jax

from penstock.addresses import host_of
from penstock.distribute.cluster.description import Cluster, own_address
from penstock.distribute.control.channel import Control
from penstock.distribute.control.meeting import Meeting
from penstock.distribute.jax.interface import ProcessesStore, coordinator_address
from penstock.errors import InvalidArgumentError

_lock = threading.Lock()
_shared: list[Control] = []
_meetings = itertools.count(1)


def meeting_of_processes(
    call: str, own: int, count: int, failure_timeout_seconds: float | None, member: str = "worker"
) -> Meeting:
    """Return where processes meet for one more call that all of them make.

    Args:
        call: its name, for errors.
        own: the number of this process.
        count: the number of all.
        failure_timeout_seconds: as of `Control`.
        member: what users call one of them.

    Raises:
        InvalidArgumentError: `jax.distributed` is not initialised, so that they have no store.
    """
    if not jax.distributed.is_initialized():
        raise InvalidArgumentError(f"{call} needs jax.distributed.initialize() where there are several processes")
    number = next(_meetings)
    return Meeting(
        ProcessesStore(f"penstock/{number}/"), f"{call} (call {number})", own, count, member, failure_timeout_seconds
    )


def control_of_all_processes(meeting: Meeting) -> Control:
    """The channel that all loaders of this process share; the first that all have come to make opens it."""
    with _lock:
        if not _shared or _shared[0].closed:
            _shared[:] = [meeting.connect(own_address(host_of(coordinator_address())))]
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


def open_channel(cluster: Cluster | None, worker: int, workers: int, failure_timeout_seconds: float | None) -> Control:
    """This worker's end of a new control channel; worker 0 sends the others its address.

    Args:
        cluster: says how the other workers reach this process's machine, if it is known.
        worker: the number of this worker, which is that of its process.
        workers: the number of workers.
        failure_timeout_seconds: as of `Control`.

    Raises:
        WorkerError: a worker did not make its strategy in time.
    """
    meeting = meeting_of_processes("MultiWorkerMirroredStrategy", worker, workers, failure_timeout_seconds)
    meeting.join()
    return meeting.connect(_own_host(cluster))


def _own_host(cluster: Cluster | None) -> str:
    """By what the other workers reach this process: the coordinator's host, which it is, or its address."""
    if cluster is not None and cluster.coordinator_address is not None:
        return host_of(cluster.coordinator_address)
    return own_address(host_of(coordinator_address()))
