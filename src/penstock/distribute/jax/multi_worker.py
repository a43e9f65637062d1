"""`MultiWorkerMirroredStrategy` and `TPUStrategy`: one replica on each device of several processes."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from penstock.addresses import host_of, is_loopback
from penstock.distribute.cluster.description import Cluster, own_address
from penstock.distribute.cluster.finding import find_cluster
from penstock.distribute.cluster.tpu import cloud_tpu
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.jax.interface import reach_collectives_at
from penstock.distribute.jax.mesh_strategy import MeshStrategy
from penstock.distribute.jax.processes import check_connected, open_channel
from penstock.distribute.tensorflow import STRATEGY
from penstock.errors import InvalidArgumentError, WorkerError


@STRATEGY
class MultiWorkerMirroredStrategy(MeshStrategy):
    """One replica on each device of every worker; each process is a worker and runs the same program.

    The processes find each other by the arguments or, without any, by what their launcher says: `penstock launch`,
    torchrun, Slurm, MPI, Ray Train, Kubernetes, SageMaker, TPU slices, TF_CONFIG (the page "Many machines" lists them).
    Without either, this process is the only worker. A launcher that names others and not how to reach them is an error.
    JAX must not have been used before, because its devices are fixed then; `jax.distributed` may have been initialised
    already. Every worker must make the same calls in the same order.

    A step whose slices are equal in size is one compiled program over all devices. If slices differ, every worker
    computes the step for all replicas, so that the numbers are the same; if that happens often,
    `ps.InputOptions(partial_batch="pad")` keeps every step in the one program.

    If a worker fails or is lost, the next call on every other worker raises `WorkerError` with its name and its error.
    A process that is blocked in a collective is ended after `failure_timeout_seconds`; so is one whose program has
    ended after a failure and that waits for the others. (JAX itself ends the others at once if the process of worker 0
    is lost, and after 100 seconds for any other.)

    Args:
        coordinator_address: HOST:PORT at which the process of worker 0 listens.
        num_workers: the number of workers.
        worker_index: the number of this worker, from 0.
        local_device_ids: which of this machine's devices belong to this process, where several share it.
        failure_timeout_seconds: after another worker's failure, how long a process may stay blocked on its devices,
            30 s by default; also how long this call, and one that distributes a dataset, waits for workers that do not
            make it, 300 s by default, and how long a step does, half an hour by default.
        check_weights: as of `MirroredStrategy`.

    Raises:
        InvalidArgumentError: arguments or an environment that are incomplete, workers with unequal numbers of devices,
            JAX was used before, or `jax.distributed` was initialised for this process alone though there are others.
        WorkerError: another worker did not start in time.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.MultiWorkerMirroredStrategy(num_workers=1, worker_index=0, coordinator_address="localhost:1")
        >>> strategy.num_replicas_in_sync == len(strategy.local_results(0))
        True
    """

    _platform: ClassVar[str | None] = None

    def __init__(
        self,
        coordinator_address: str | None = None,
        num_workers: int | None = None,
        worker_index: int | None = None,
        *,
        local_device_ids: Sequence[int] | None = None,
        failure_timeout_seconds: float | None = None,
        check_weights: bool = False,
    ) -> None:
        cluster = _cluster_to_join(coordinator_address, num_workers, worker_index)
        if cluster is not None and cluster.num_workers != 1 and not jax.distributed.is_initialized():
            _join_cluster(cluster, local_device_ids)
        devices = sorted(self._all_devices(), key=lambda device: (device.process_index, device.id))
        counts = Counter(device.process_index for device in devices)
        if len(set(counts.values())) > 1:
            each = [counts[number] for number in sorted(counts)]
            raise InvalidArgumentError(f"every worker must have the same number of devices, got {each}")
        workers = StrategyWorkers(len(counts), sorted(counts).index(jax.process_index()), counts[jax.process_index()])
        control = None
        if workers.count > 1:
            control = open_channel(cluster, workers.index, workers.count, failure_timeout_seconds)
        super().__init__(devices, workers, control, check_weights)

    def _all_devices(self) -> list[jax.Device]:
        return jax.devices(self._platform)

    def __repr__(self) -> str:
        workers = self._workers
        return f"{type(self).__name__}(worker {workers.index} of {workers.count}, {workers.replicas} replicas each)"

    def close(self) -> None:
        """End the connection to the other workers. It ends with the process otherwise."""
        if self._control is not None:
            self._control.close()


class TPUStrategy(MultiWorkerMirroredStrategy):
    """One replica on each TPU core of every host; otherwise as `MultiWorkerMirroredStrategy`.

    Raises:
        InvalidArgumentError: there is no TPU.

    Example:
        >>> import penstock as ps
        >>> try:
        ...     strategy = ps.TPUStrategy()
        ... except ps.InvalidArgumentError:
        ...     strategy = ps.MirroredStrategy()  # on a machine without TPUs
    """

    _platform = "tpu"

    def _all_devices(self) -> list[jax.Device]:
        try:
            return super()._all_devices()
        except RuntimeError as error:
            raise InvalidArgumentError(
                f"TPUStrategy needs TPU devices, and JAX finds none here ({error}): use MirroredStrategy for others"
            ) from error


def _cluster_to_join(
    coordinator_address: str | None, num_workers: int | None, worker_index: int | None
) -> Cluster | None:
    """Return what this process is a part of; None if that is what JAX knows already, or if there is nothing to know."""
    connected = jax.distributed.is_initialized()
    given = any(value is not None for value in (coordinator_address, num_workers, worker_index))
    if connected and jax.process_count() > 1 and not given:
        return None  # JAX is connected already, and knows the cluster
    cluster = find_cluster(coordinator_address, num_workers, worker_index)
    if connected:
        check_connected(cluster, "leave it to the strategy, or initialise it for all of them")
    return cloud_tpu(os.environ) if cluster is None and not connected else cluster


def _join_cluster(cluster: Cluster, local_device_ids: Sequence[int] | None) -> None:
    """Let this process join the cluster."""
    if local_device_ids is None and cluster.local_index is not None:
        local_device_ids = [cluster.local_index]  # as JAX, where a launcher starts a process for each device
    known: dict[str, Any] = {}
    if cluster.coordinator_address is not None:
        known = {
            "coordinator_address": cluster.coordinator_address,
            "num_processes": cluster.num_workers,
            "process_id": cluster.worker_index,
            # Nothing is missing: JAX must not look for a cluster itself.
            "cluster_detection_method": "deactivate",
        }
    try:
        jax.distributed.initialize(**known, local_device_ids=local_device_ids)
        _reach_collectives(host_of(cluster.coordinator_address or ""))
    except (RuntimeError, OSError) as error:
        if "must be called before" not in str(error):
            raise WorkerError(f"the workers ({cluster.source}) did not find each other: {error}") from error
        raise InvalidArgumentError(
            "MultiWorkerMirroredStrategy must be made before anything else uses JAX: its devices are fixed by then"
        ) from error


def _reach_collectives(coordinator: str) -> None:
    """Have the others reach this process by the address that it has towards the coordinator, where there is one."""
    own = own_address(coordinator)
    if is_loopback(own) == is_loopback(coordinator):
        reach_collectives_at(own)
