"""The training of elastic_training.py on Ray Train, on three Ray nodes of one machine, one of which is lost.

Usage: elastic_on_ray.py DIRECTORY STEP: the node of one worker is removed when that step has been logged.
"""

import sys
import threading
import time
from pathlib import Path

import elastic_training
import ray
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

import penstock as ps


def train(config: dict[str, str]) -> None:
    elastic_training.main(Path(config["directory"]), every=2, pause=0.5)


def main(directory: Path, step: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=cluster.address)

    def remove() -> None:
        log = directory / "log"
        while not log.exists() or len(log.read_text().splitlines()) <= step:
            time.sleep(0.1)
        cluster.remove_node(nodes[0], allow_graceful=False)

    threading.Thread(target=remove, daemon=True).start()
    trainer = JaxTrainer(
        train,
        train_loop_config={"directory": str(directory)},
        jax_config=ps.ray.PenstockConfig(),
        scaling_config=ScalingConfig(num_workers=(2, 3), resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(directory / "ray"), failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
