"""Processes that Slurm's `srun` has started."""

import re
from typing import Final

from penstock.addresses import joined_address
from penstock.distribute.cluster.description import (
    Cluster,
    Environment,
    checked,
    coordinator_port,
    several,
    whole_number,
)
from penstock.errors import InvalidArgumentError

_STEP: Final = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_CHOICE: Final = re.compile(r"\[([^\[\],-]+)[^\[\]]*\]")


def slurm(environment: Environment) -> Cluster | None:
    """The tasks of a Slurm job step, the first of which runs on its first node.

    Raises:
        InvalidArgumentError: the job has several tasks, but this process is its batch script, outside any step.
    """
    if not several(environment, "SLURM_NTASKS") or not environment.get("SLURM_JOB_ID"):
        return None
    if not all(environment.get(name) for name in _STEP):
        raise InvalidArgumentError(
            f"this Slurm job has {environment['SLURM_NTASKS']} tasks, but this process is none of them: start it in "
            "the batch script by `srun python ...`, or use ps.MirroredStrategy for this one process"
        )
    job = whole_number(environment, "SLURM_JOB_ID")
    # JAX's port, so that a process that JAX connects by itself meets the others.
    port = coordinator_port(environment, job % 2**12 + (2**16 - 2**12))
    address = joined_address(first_host(environment["SLURM_STEP_NODELIST"]), port)
    count, number = whole_number(environment, "SLURM_NTASKS"), whole_number(environment, "SLURM_PROCID")
    local = whole_number(environment, "SLURM_LOCALID")
    cluster = Cluster(address, count, number, "Slurm", local)
    return checked(cluster, ("SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"))


def first_host(hosts: str) -> str:
    """The first host of a list as Slurm writes it.

    >>> first_host("node[001,007-015],login"), first_host("rack[1-2]node[03-04]"), first_host("node7")
    ('node001', 'rack1node03', 'node7')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return _CHOICE.sub(r"\1", first[0] if first else hosts)
