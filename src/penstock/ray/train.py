"""`PenstockConfig`: the workers of Ray Train find each other."""

import os
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.train.backend import Backend, BackendConfig

from penstock.addresses import joined_address
from penstock.runtime.ports import free_port


@dataclass
class PenstockConfig(BackendConfig):
    """Connects the workers of a Ray Train group, as `penstock launch` does on one machine.

    Give it to `DataParallelTrainer(..., backend_config=ps.ray.PenstockConfig())`, or to `JaxTrainer(...,
    jax_config=ps.ray.PenstockConfig())`, which connects nothing by itself without a TPU or GPU. In the training
    function, `ps.MultiWorkerMirroredStrategy()` then needs no arguments. When Ray Train starts a smaller or larger
    group again, under `ScalingConfig(num_workers=(2, 4))`, its workers get their new numbers and address.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """Return what Ray Train starts for each group of workers."""
        return _PenstockBackend


class _PenstockBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        address = worker_group.execute_single(0, _address)
        count = len(worker_group)
        ray.get([worker_group.execute_single_async(index, _tell, address, count, index) for index in range(count)])


def _address() -> str:
    """Return where worker 0 will listen: the address by which Ray's other machines reach this one."""
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return joined_address(host, free_port())


def _tell(address: str, count: int, index: int) -> None:
    os.environ["PENSTOCK_COORDINATOR_ADDRESS"] = address
    os.environ["PENSTOCK_NUM_WORKERS"] = str(count)
    os.environ["PENSTOCK_WORKER_INDEX"] = str(index)
