"""Launchers that list all processes in JSON: `TF_CONFIG`, and SageMaker's variables."""

import json
from typing import Any, Final

from penstock.addresses import joined_address
from penstock.distribute.cluster.description import (
    Cluster,
    Environment,
    IncompleteError,
    checked,
    coordinator_port,
)
from penstock.errors import InvalidArgumentError

_TRAINING: Final = ("chief", "master", "worker")
"""The jobs of a TF_CONFIG whose tasks train together, in the order in which TensorFlow numbers them."""


def tf_config(environment: Environment) -> Cluster | None:
    """The cluster of TF_CONFIG, as TensorFlow's MultiWorkerMirroredStrategy reads it; None for its evaluator.

    It is what Kubeflow's TFJob, Vertex AI and SageMaker's TensorFlow containers set: `{"cluster": {"chief": [ADDRESS],
    "worker": [ADDRESS, ...]}, "task": {"type": "worker", "index": 0}}`. The chief is
    worker 0, where there is one.

    Raises:
        InvalidArgumentError: it is no such JSON, or this process is a parameter server.
    """
    text = environment.get("TF_CONFIG")
    if not text:
        return None
    document = _parsed("TF_CONFIG", text)
    try:
        jobs, task = document.get("cluster") or {}, document.get("task") or {}
        addresses = {job: list(jobs[job]) for job in _TRAINING if job in jobs}
        kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}, got {text}'
        ) from error
    if not addresses or kind == "evaluator":  # it evaluates alone, outside the cluster
        return None
    if kind not in addresses:
        raise InvalidArgumentError(
            f"TF_CONFIG says that this process is a {kind!r}, which trains nothing: make the strategy in the tasks "
            f"{' and '.join(map(repr, addresses))} only"
        )
    if not 0 <= index < len(addresses[kind]):
        raise InvalidArgumentError(
            f"TF_CONFIG's task has the index {index}, but its cluster lists {len(addresses[kind])} of {kind!r}"
        )
    everyone = [address for job in addresses.values() for address in job]
    before = sum(len(addresses[job]) for job in list(addresses)[: list(addresses).index(kind)])
    return checked(
        Cluster(str(everyone[0]), len(everyone), before + index, "TF_CONFIG"),
        ("the first address of TF_CONFIG", "TF_CONFIG's number of tasks", "the place in TF_CONFIG's task"),
    )


def sagemaker(environment: Environment) -> Cluster | None:
    """The hosts of an Amazon SageMaker training job, one process on each.

    SM_HOSTS is a sorted JSON list whose first host is the master, SM_CURRENT_HOST one of it: so
    aws/sagemaker-training-toolkit, src/sagemaker_training/environment.py. The hosts know each other by these names.

    Raises:
        IncompleteError: only one of the two is set.
        InvalidArgumentError: this host is not in the list.
    """
    hosts, own = environment.get("SM_HOSTS"), environment.get("SM_CURRENT_HOST")
    if not hosts and not own:
        return None
    if not hosts or not own:
        raise IncompleteError(
            "the environment has only one of SM_HOSTS and SM_CURRENT_HOST, both of which SageMaker sets: set both, "
            "or none"
        )
    everyone = _parsed("SM_HOSTS", hosts)
    if not isinstance(everyone, list) or own not in everyone:
        raise InvalidArgumentError(f"SM_HOSTS must be a JSON list with SM_CURRENT_HOST, {own!r}, in it, got {hosts}")
    address = joined_address(str(everyone[0]), coordinator_port(environment))
    return Cluster(address, len(everyone), everyone.index(own), "SageMaker")


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be JSON, got {text!r}: {error}") from error
