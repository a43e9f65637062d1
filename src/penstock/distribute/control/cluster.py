"""Which processes train together: from arguments, or from the environment that a launcher has set."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from penstock.errors import InvalidArgumentError, InvalidTypeError

_ADDRESS: Final = re.compile(r"(\[[^\[\]\s]+\]|[^:\[\]\s]+):(\d{1,5})")


@dataclass(frozen=True)
class Cluster:
    """The processes of one training job, and which of them this one is.

    Args:
        coordinator_address: HOST:PORT at which process 0 listens.
        num_workers: how many processes take part.
        worker_index: which of them this one is, from 0.
        source: where this comes from, for messages. If the three others are None, `jax.distributed.initialize()`
            finds them by itself.
    """

    coordinator_address: str | None
    num_workers: int | None
    worker_index: int | None
    source: str


@dataclass(frozen=True)
class _Variables:
    """The environment variables with which one family of launchers describes a cluster.

    Args:
        signs: variables that nothing else uses: if one of them is set, the others are expected.
        port: the variable with the port, if the address has none.
    """

    source: str
    address: str
    port: str | None
    count: str
    number: str
    signs: tuple[str, ...]


_PENSTOCK: Final = _Variables(
    "penstock launch",
    "PENSTOCK_COORDINATOR_ADDRESS",
    None,
    "PENSTOCK_NUM_WORKERS",
    "PENSTOCK_WORKER_INDEX",
    ("PENSTOCK_COORDINATOR_ADDRESS", "PENSTOCK_NUM_WORKERS", "PENSTOCK_WORKER_INDEX"),
)
_OTHERS: Final = (
    # Kubeflow Trainer's. Its address alone is a setting of JAX, for a cluster that JAX finds by itself.
    _Variables(
        "JAX_* variables",
        "JAX_COORDINATOR_ADDRESS",
        None,
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
        ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    ),
    # JAXJob of Kubeflow's training operator. The two other names may mean anything.
    _Variables(
        "JAXJob", "COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID", ("COORDINATOR_ADDRESS",)
    ),
    # torchrun, Ray Train, Kubeflow's PyTorchJob. The address alone is often set for a process without others.
    _Variables("torchrun", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", ("WORLD_SIZE", "RANK")),
)


def find_cluster(
    coordinator_address: str | None = None,
    num_workers: int | None = None,
    worker_index: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """The cluster that this process belongs to; None if neither arguments nor environment name one.

    The arguments, if given; otherwise the variables of `penstock launch`; of Kubeflow's JAX jobs; of torchrun, Ray
    Train and PyTorchJob; otherwise Open MPI, Slurm or an indexed Job of Kubernetes, whose details JAX finds by itself.

    Raises:
        InvalidArgumentError: some of the arguments or variables are missing, or have values that cannot be.
        InvalidTypeError: an argument of the wrong kind.

    >>> find_cluster("10.0.0.1:1234", num_workers=2, worker_index=0)
    Cluster(coordinator_address='10.0.0.1:1234', num_workers=2, worker_index=0, source='arguments')
    >>> find_cluster(environment={"MASTER_ADDR": "a", "MASTER_PORT": "1234", "WORLD_SIZE": "2", "RANK": "1"})
    Cluster(coordinator_address='a:1234', num_workers=2, worker_index=1, source='torchrun')
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
    return _checked(Cluster(coordinator_address, num_workers, worker_index, "arguments"), names)


def _from_environment(environment: Mapping[str, str]) -> Cluster | None:
    if _is_named(_PENSTOCK, environment):
        return _read(_PENSTOCK, environment)
    incomplete = None
    for variables in _OTHERS:
        if _is_named(variables, environment):
            if not _missing(variables, environment):
                return _read(variables, environment)
            incomplete = incomplete or variables
    scheduler = _scheduler(environment)
    if scheduler is not None:
        # Scripts for Slurm often set a few of the variables above, for all processes alike.
        return Cluster(None, None, None, scheduler)
    return None if incomplete is None else _read(incomplete, environment)


def _is_named(variables: _Variables, environment: Mapping[str, str]) -> bool:
    return any(environment.get(name) for name in variables.signs)


def _missing(variables: _Variables, environment: Mapping[str, str]) -> list[str]:
    """The variables that are not set, or empty."""
    needed = [variables.address, variables.count, variables.number]
    if variables.port is not None and not _ADDRESS.fullmatch(environment.get(variables.address, "")):
        needed.insert(1, variables.port)
    return [name for name in needed if not environment.get(name)]


def _read(variables: _Variables, environment: Mapping[str, str]) -> Cluster:
    missing = _missing(variables, environment)
    if missing:
        known = [variables.address, variables.port, variables.count, variables.number]
        given = ", ".join(f"{name}={environment[name]}" for name in known if name and environment.get(name))
        raise InvalidArgumentError(
            f"the environment has {given} without {' and '.join(missing)}: set all of them, or none"
        )
    address = environment[variables.address]
    if variables.port is not None and not _ADDRESS.fullmatch(address):
        port = _number(environment, variables.port)
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and variables.source == "torchrun":
            port += 1  # torchrun itself listens at MASTER_PORT as long as its processes run
        address = f"[{address}]:{port}" if ":" in address and not address.startswith("[") else f"{address}:{port}"
    count, number = _number(environment, variables.count), _number(environment, variables.number)
    names = (variables.address, variables.count, variables.number)
    return _checked(Cluster(address, count, number, variables.source), names)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be a whole number, got {environment[name]!r}") from error


def _checked(cluster: Cluster, names: tuple[str, str, str]) -> Cluster:
    """The cluster itself if it can be; `names` are those under which its three values were given."""
    address, count, number = cluster.coordinator_address or "", cluster.num_workers or 0, cluster.worker_index or 0
    found = _ADDRESS.fullmatch(address)
    if not found or not 0 < int(found[2]) < 2**16:
        raise InvalidArgumentError(f"{names[0]} must be HOST:PORT, with a port from 1 to 65535, got {address!r}")
    if count < 1:
        raise InvalidArgumentError(f"{names[1]} must be at least 1, got {count}")
    if not 0 <= number < count:
        raise InvalidArgumentError(
            f"{names[2]} must be at least 0 and less than {names[1]}, which is {count}, got {number}"
        )
    return cluster


def _scheduler(environment: Mapping[str, str]) -> str | None:
    """The scheduler that has started several processes, recognised by the same variables as in JAX (0.9 and 0.10)."""
    if _several(environment, "OMPI_COMM_WORLD_SIZE"):
        if environment.get("OMPI_MCA_orte_hnp_uri"):
            return "Open MPI"
        raise InvalidArgumentError(
            "Open MPI started several processes but does not say where the first one is, as it did before version 5 by "
            "OMPI_MCA_orte_hnp_uri. Give coordinator_address=HOST:PORT of process 0, num_workers from "
            "OMPI_COMM_WORLD_SIZE and worker_index from OMPI_COMM_WORLD_RANK"
        )
    # Without srun, a batch script is one process, and has no step.
    step = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    if all(environment.get(name) for name in step) and _several(environment, "SLURM_NTASKS"):
        return "Slurm"
    if environment.get("KUBERNETES_SERVICE_HOST") and environment.get("JOB_COMPLETION_INDEX"):
        if find_spec("kubernetes") is not None:
            return "Kubernetes"
        raise InvalidArgumentError(
            "this is a pod of an indexed Kubernetes Job (JOB_COMPLETION_INDEX is set), whose other pods JAX finds by "
            "the package kubernetes, which is not installed: pip install kubernetes, or set "
            "PENSTOCK_COORDINATOR_ADDRESS, PENSTOCK_NUM_WORKERS and PENSTOCK_WORKER_INDEX"
        )
    return None


def _several(environment: Mapping[str, str], name: str) -> bool:
    return bool(environment.get(name)) and _number(environment, name) > 1
