"""What `ps.jax.loader` costs on a mesh of eight devices, against JAX's own way from the same batches to global arrays.

It asks JAX for eight CPU devices when it is imported, so it must be the first to use JAX in its process.
"""

import json

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, seconds

jax.config.update("jax_num_cpu_devices", 8)

STEPS = 50
BATCH = 64
LENGTH = 1024


def measure() -> list[Figure]:
    """The figures of this file."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))
    tokens = np.random.default_rng(0).integers(0, 50_000, (BATCH * STEPS, LENGTH), np.int32)
    dataset = ps.Dataset.from_tensor_slices({"tokens": tokens, "weights": np.ones_like(tokens, np.float32)})
    dataset = dataset.shuffle(seed=1).batch(BATCH)
    return [*steps(dataset, sharding), *states(dataset, sharding)]


def steps(dataset: ps.Dataset, sharding: NamedSharding) -> list[Figure]:
    """An epoch of batches of 512 KiB, rows and columns divided."""
    ahead = ps.jax.loader(dataset, sharding)

    def ours() -> None:
        for batch in ahead:
            jax.block_until_ready(batch)

    def bare() -> None:
        for batch in dataset:
            arrays = {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}
            jax.block_until_ready(arrays)

    return [processor_ratio("jax.make_array_from_process_local_data / ps.jax.loader", ours, bare, 1 / 1.2)]


def states(dataset: ps.Dataset, sharding: NamedSharding) -> list[Figure]:
    """The state in the middle of an epoch."""
    with ps.jax.loader(dataset, sharding) as loader:
        taken = iter(loader)
        next(taken)
        size = len(json.dumps(loader.state_dict()))
        milliseconds = 1000 * min(seconds(loader.state_dict) for _ in range(20))
    return [
        Figure("the state of a ps.jax.loader as JSON", size, 1024, at_least=False, unit="B"),
        Figure("taking it", milliseconds, 1, at_least=False, unit="ms"),
    ]
