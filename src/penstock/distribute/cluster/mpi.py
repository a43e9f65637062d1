"""Processes that `mpirun` or `mpiexec` has started: Open MPI, and MPICH with its relatives."""

import re
import zlib
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

_LAUNCHER: Final = re.compile(r"tcp://(.+?)[,:]|tcp6://\[(.+?)[,\]]")
_LAUNCHES: Final = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "PBS_JOBID")
"""Variables that are equal in all processes of a launch and differ between launches or jobs: they choose the port."""


def open_mpi(environment: Environment) -> Cluster | None:
    """Return what Open MPI 4 or 5 says.

    Version 4 names the machine of `mpirun`, where process 0 is unless hosts were ordered otherwise. Version 5 says how
    many processes run on this machine: if all do, process 0 is here; otherwise the address stays unknown.
    """
    if not several(environment, "OMPI_COMM_WORLD_SIZE"):
        return None
    host = None
    found = _LAUNCHER.search(environment.get("OMPI_MCA_orte_hnp_uri", ""))
    if found:
        host = found[1] or found[2]
    elif environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["OMPI_COMM_WORLD_SIZE"]:
        host = "127.0.0.1"
    return _of_mpi(
        environment,
        "Open MPI",
        host,
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    )


def mpich(environment: Environment) -> Cluster | None:
    """Return what Hydra says, the launcher of MPICH and Intel MPI.

    It sets PMI_RANK, PMI_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS (pmodels/mpich, src/pm/hydra/proxy/pmip_cb.c), and
    nothing that says where process 0 is, unless all processes are on this machine.
    """
    if not several(environment, "PMI_SIZE") or not environment.get("MPI_LOCALNRANKS"):
        return None
    host = "127.0.0.1" if environment["MPI_LOCALNRANKS"] == environment["PMI_SIZE"] else None
    return _of_mpi(environment, "MPICH", host, ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"))


def other_pmi(environment: Environment) -> Cluster | None:
    """Another launcher with PMI, such as Cray's PALS; tried after Slurm, whose srun may set the same variables."""
    if not several(environment, "PMI_SIZE"):
        return None
    return _of_mpi(environment, "PMI", None, ("PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"))


def _of_mpi(environment: Environment, source: str, host: str | None, names: tuple[str, str, str]) -> Cluster:
    launch = next((environment[name] for name in _LAUNCHES if environment.get(name)), "")
    # As JAX, from its range, but by a checksum: the names of launches are no numbers that differ in their last digits.
    port = zlib.crc32(launch.encode()) % 2**12 + (2**16 - 2**12)
    address = None if host is None else joined_address(host, coordinator_port(environment, port))
    count, number, local = names
    own = whole_number(environment, number) if environment.get(number) else -1
    local_index = whole_number(environment, local) if environment.get(local) else None
    cluster = Cluster(address, whole_number(environment, count), own, source, local_index)
    return checked(cluster, (f"the address of {source}", count, number))
