"""TPU slices of several hosts: on GKE by variables, on Cloud TPU virtual machines by the metadata that JAX asks."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.addresses import host_of, joined_address
from penstock.distribute.cluster.description import (
    Cluster,
    Environment,
    IncompleteError,
    checked,
    coordinator_port,
    several,
    whole_number,
)

_HOSTS: Final = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_PORT: Final = 8482
"""JAX's own for TPUs: jax/_src/clusters/cloud_tpu_cluster.py."""

_GOOGLE: Final = "0x1ae0"


def gke_tpu(environment: Environment) -> Cluster | None:
    """The hosts of a slice, or with MEGASCALE_* of several; None if there is one alone.

    GKE, LeaderWorkerSet and KubeRay list a slice's hosts in TPU_WORKER_HOSTNAMES or, with ports, in
    TPU_PROCESS_ADDRESSES, and number them by TPU_WORKER_ID. The processes are counted as in JAX, by slice.

    Raises:
        IncompleteError: there are several, and no number of this one.
    """
    listed = next((environment[name] for name in _HOSTS if environment.get(name)), "")
    if not listed:
        return None
    hosts = [host_of(host.strip()) for host in listed.split(",")]
    slices = whole_number(environment, "MEGASCALE_NUM_SLICES") if several(environment, "MEGASCALE_NUM_SLICES") else 1
    if len(hosts) * slices == 1:
        return None
    needed = ["TPU_WORKER_ID"]
    if slices > 1:
        needed += ["MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"]
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise IncompleteError(
            f"the environment names {len(hosts) * slices} TPU hosts without {' and '.join(missing)}: set all of them, "
            "or none"
        )
    number = whole_number(environment, "TPU_WORKER_ID")
    first = hosts[0]
    if slices > 1:
        number += whole_number(environment, "MEGASCALE_SLICE_ID") * len(hosts)
        first = host_of(environment["MEGASCALE_COORDINATOR_ADDRESS"])
    address = joined_address(first, coordinator_port(environment, _PORT))
    names = ("the first TPU host", "the number of TPU hosts", "the number of this TPU host")
    return checked(Cluster(address, len(hosts) * slices, number, "GKE TPU"), names)


def cloud_tpu(environment: Environment, devices: Path = Path("/sys/bus/pci/devices")) -> Cluster | None:
    """A Cloud TPU virtual machine, whose other hosts JAX learns from the metadata server; None elsewhere.

    It is recognised by its hardware: Google's number among the PCI devices, and libtpu to use it. What lists its hosts
    in variables, if only itself, is not asked twice, and TPU_SKIP_MDS_QUERY says that there is no metadata server.
    """
    if environment.get("TPU_SKIP_MDS_QUERY") or any(environment.get(name) for name in _HOSTS):
        return None
    if find_spec("libtpu") is None and not environment.get("TPU_LIBRARY_PATH"):
        return None
    vendors = (path.read_text().strip() for path in devices.glob("*/vendor"))
    return Cluster(None, None, None, "Cloud TPU") if _GOOGLE in vendors else None
