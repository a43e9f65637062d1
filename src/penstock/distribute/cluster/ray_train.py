"""Workers of Ray Train, whose backends connect them."""

import sys

from penstock.distribute.cluster.description import Cluster, Environment
from penstock.errors import InvalidArgumentError


def ray_train(_: Environment) -> Cluster | None:
    """None outside Ray Train, or for its only worker.

    Ray Train itself sets no variables; its TorchTrainer sets those of torchrun, `ps.ray.PenstockConfig` those of
    `penstock launch`, JaxTrainer none unless it has a TPU or GPU. Ray is not imported here: a process that is its
    worker has done so.

    Raises:
        InvalidArgumentError: this is one of several workers, and nothing says how they reach each other.
    """
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        count, number = int(context.get_world_size()), int(context.get_world_rank())
    except (RuntimeError, AttributeError):  # not in a worker
        return None
    if count == 1:
        return None
    raise InvalidArgumentError(
        f"this is worker {number} of {count} of Ray Train, which has not told the workers of each other: give the "
        "trainer ps.ray.PenstockConfig(), as DataParallelTrainer(..., backend_config=...) or "
        "JaxTrainer(..., jax_config=...)"
    )
