"""Pods of an indexed Job of Kubernetes, or of a JobSet's."""

import re
import socket
from importlib.util import find_spec

from penstock.addresses import joined_address
from penstock.distribute.cluster.description import (
    Cluster,
    Environment,
    checked,
    coordinator_port,
    whole_number,
)
from penstock.errors import InvalidArgumentError


def kubernetes(environment: Environment) -> Cluster | None:
    """The pods of a Job, which numbers them by JOB_COMPLETION_INDEX and does not say how many there are.

    PENSTOCK_NUM_WORKERS says that in the Job's manifest. The first pod is then known by this one's name, JOB-INDEX
    followed by the domain of the headless service (a JobSet has one for its Jobs). Without it, JAX asks the
    cluster by the package kubernetes.

    Raises:
        InvalidArgumentError: neither is there, or the pods have no names for each other.
    """
    if not environment.get("KUBERNETES_SERVICE_HOST") or not environment.get("JOB_COMPLETION_INDEX"):
        return None
    if not environment.get("PENSTOCK_NUM_WORKERS"):
        if find_spec("kubernetes") is not None:
            return Cluster(None, None, None, "Kubernetes")
        raise InvalidArgumentError(
            "this is a pod of an indexed Kubernetes Job (JOB_COMPLETION_INDEX is set), which does not say how many "
            "pods it has: set PENSTOCK_NUM_WORKERS to the Job's completions, or pip install kubernetes, by which JAX "
            "asks the cluster"
        )
    count, number = whole_number(environment, "PENSTOCK_NUM_WORKERS"), whole_number(environment, "JOB_COMPLETION_INDEX")
    given = environment.get("PENSTOCK_COORDINATOR_ADDRESS")
    address = given or joined_address(_first_pod(number), coordinator_port(environment))
    names = ("PENSTOCK_COORDINATOR_ADDRESS", "PENSTOCK_NUM_WORKERS", "JOB_COMPLETION_INDEX")
    return checked(Cluster(address, count, number, "Kubernetes"), names)


def _first_pod(number: int) -> str:
    """The name of the Job's first pod; the pod's own full name is in its /etc/hosts, if it has a subdomain."""
    name = socket.getfqdn()
    own, _, domain = name.partition(".")
    job = re.fullmatch(rf"(.+)-{number}", own)
    if not domain or job is None:
        raise InvalidArgumentError(
            f"this pod's name is {name!r}, by which no other pod finds it: give the Job's pod template a `subdomain` "
            "that is the name of a headless service, or set PENSTOCK_COORDINATOR_ADDRESS=HOST:PORT of the first pod"
        )
    return f"{job[1]}-0.{domain}"
