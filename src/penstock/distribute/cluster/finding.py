"""`find_cluster`: from arguments, or from the environment that a launcher has set."""

import dataclasses
import logging
import os
from typing import Final

from penstock.distribute.cluster.description import Cluster, Environment, IncompleteError, checked
from penstock.distribute.cluster.documents import sagemaker, tf_config
from penstock.distribute.cluster.kubernetes import kubernetes
from penstock.distribute.cluster.mpi import mpich, open_mpi, other_pmi
from penstock.distribute.cluster.ray_train import ray_train
from penstock.distribute.cluster.slurm import slurm
from penstock.distribute.cluster.tpu import gke_tpu
from penstock.distribute.cluster.variables import JAX, JAX_JOB, LEADER_WORKER_SET, PENSTOCK, TORCHRUN
from penstock.errors import InvalidArgumentError, InvalidTypeError

_logger = logging.getLogger(__name__)

# The launcher that is closest to this process comes first: Ray's workers inherit the variables of the Slurm step that
# started Ray, mpirun under Slurm starts processes within another step, and a pod's variables are in all of them.
_LAUNCHERS: Final = (
    PENSTOCK,
    JAX,
    JAX_JOB,
    TORCHRUN,
    tf_config,
    ray_train,
    gke_tpu,
    LEADER_WORKER_SET,
    sagemaker,
    open_mpi,
    mpich,
    slurm,
    other_pmi,
    kubernetes,
)


def find_cluster(
    coordinator_address: str | None = None,
    num_workers: int | None = None,
    worker_index: int | None = None,
    environment: Environment = os.environ,
) -> Cluster | None:
    """The cluster that this process belongs to; None if neither arguments nor environment name one.

    The arguments, if given; otherwise the variables of `penstock launch` and `ps.ray.PenstockConfig`; of Kubeflow's JAX
    jobs; of torchrun and PyTorchJob; TF_CONFIG; of TPU slices on GKE, LeaderWorkerSet, SageMaker, Open MPI, MPICH,
    Slurm, or an indexed Job of Kubernetes. PENSTOCK_COORDINATOR_ADDRESS completes a launcher that does not say where
    process 0 is.

    Raises:
        InvalidArgumentError: some of the arguments or variables are missing, or have values that cannot be; or a
            launcher says that there are others, and not how to find them.
        InvalidTypeError: an argument of the wrong kind.

    >>> find_cluster("10.0.0.1:1234", num_workers=2, worker_index=0).source
    'arguments'
    >>> find_cluster(environment={"MASTER_ADDR": "a", "MASTER_PORT": "1234", "WORLD_SIZE": "2", "RANK": "1"})
    Cluster(coordinator_address='a:1234', num_workers=2, worker_index=1, source='torchrun', local_index=None)
    >>> find_cluster(environment={})
    """
    arguments = {"coordinator_address": coordinator_address, "num_workers": num_workers, "worker_index": worker_index}
    missing = [name for name, value in arguments.items() if value is None]
    if len(missing) == len(arguments):
        return _from_environment(environment)
    if coordinator_address is None or num_workers is None or worker_index is None:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
        raise InvalidArgumentError(f"got {given} without {' and '.join(missing)}: give all three, or none")
    if not isinstance(coordinator_address, str):
        raise InvalidTypeError(f"coordinator_address must be a string HOST:PORT, got {coordinator_address!r}")
    for name in ("num_workers", "worker_index"):
        if type(arguments[name]) is not int:
            raise InvalidTypeError(f"{name} must be an int, got {arguments[name]!r}")
    names = ("coordinator_address", "num_workers", "worker_index")
    return checked(Cluster(coordinator_address, num_workers, worker_index, "arguments"), names)


def warn_of_others(strategy: str, advice: str, environment: Environment = os.environ) -> None:
    """Log a warning if a launcher says that this is one of several processes, each of which would train alone."""
    try:
        cluster = find_cluster(environment=environment)
    except InvalidArgumentError as error:
        _logger.warning("%s is a single worker here, alone with its data, but: %s", strategy, error)
        return
    if cluster is not None and (cluster.num_workers is None or cluster.num_workers > 1):
        count, number = cluster.num_workers, cluster.worker_index
        which = f"num_workers={count}, worker_index={number}" if count is not None else "num_workers and worker_index"
        _logger.warning(
            "%s is a single worker here, which reads everything, though the environment (%s) names several "
            "processes: %s",
            strategy,
            cluster.source,
            advice.format(which=which),
        )


def _from_environment(environment: Environment) -> Cluster | None:
    incomplete: IncompleteError | None = None
    for launcher in _LAUNCHERS:
        try:
            found = launcher(environment)
        except IncompleteError as error:
            if launcher is PENSTOCK and environment.get(PENSTOCK.number):  # who numbers them must say the rest too
                raise
            # Scripts for Slurm often set a few of these variables, for all processes alike.
            incomplete = incomplete or error
            continue
        if found is not None:
            return _with_address(found, environment)
    if incomplete is not None:
        raise incomplete
    return None


def _with_address(cluster: Cluster, environment: Environment) -> Cluster:
    """The cluster with the address of process 0, which may have been given by itself."""
    if cluster.coordinator_address is not None or cluster.num_workers in (None, 1):
        return cluster
    given = environment.get(PENSTOCK.address)
    if not given:
        raise InvalidArgumentError(
            f"{cluster.source} started {cluster.num_workers} processes, of which this is number "
            f"{cluster.worker_index}, but does not say where number 0 is: set {PENSTOCK.address}=HOST:PORT for all of "
            "them, with the host of number 0 and a free port"
        )
    names = (PENSTOCK.address, "", "")
    return checked(dataclasses.replace(cluster, coordinator_address=given), names)
