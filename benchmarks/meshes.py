"""Cost of `ps.jax.loader` on a mesh of eight devices, against JAX's own way from the same batches to global arrays.

It must be the first to use JAX in its process, which it asks for eight CPU devices. As a program,
`python -m benchmarks.meshes`, it is one of two processes with four devices each.
"""

import io
import json
import os
import sys
from dataclasses import asdict
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import penstock as ps
from benchmarks.timing import Figure, best_in_turn, processor_ratio, processor_seconds, seconds
from penstock.launch import launch

STEPS = 50
BATCH = 64
LENGTH = 1024


def measure() -> list[Figure]:
    """The figures of this file."""
    jax.config.update("jax_num_cpu_devices", 8)
    dataset = ps.Dataset.from_tensor_slices(columns()).shuffle(seed=1).batch(BATCH)
    return [*steps(dataset, sharding()), *states(dataset, sharding()), *on_two_processes()]


def sharding() -> NamedSharding:
    """Rows and columns divided on three axes."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))


def columns(processes: int = 1) -> dict[str, np.ndarray]:
    """The rows of an epoch of so many processes."""
    tokens = np.random.default_rng(0).integers(0, 50_000, (processes * BATCH * STEPS, LENGTH), np.int32)
    return {"tokens": tokens, "weights": np.ones_like(tokens, np.float32)}


def steps(dataset: ps.Dataset, divided: NamedSharding) -> list[Figure]:
    """An epoch of batches of 512 KiB, rows and columns divided."""
    ahead = ps.jax.loader(dataset, divided)

    def ours() -> None:
        for batch in ahead:
            jax.block_until_ready(batch)

    def bare() -> None:
        for batch in dataset:
            arrays = {name: jax.make_array_from_process_local_data(divided, rows) for name, rows in batch.items()}
            jax.block_until_ready(arrays)

    return [processor_ratio("jax.make_array_from_process_local_data / ps.jax.loader", ours, bare, 0.7)]


def states(dataset: ps.Dataset, divided: NamedSharding) -> list[Figure]:
    """The state in the middle of an epoch."""
    with ps.jax.loader(dataset, divided) as loader:
        taken = iter(loader)
        next(taken)
        size = len(json.dumps(loader.state_dict()))
        milliseconds = 1000 * min(seconds(loader.state_dict) for _ in range(20))
    return [
        Figure("the state of a ps.jax.loader as JSON", size, 1000, at_least=False, unit="B"),
        Figure("taking it", milliseconds, 1, at_least=False, unit="ms"),
    ]


def on_two_processes() -> list[Figure]:
    """Steps of two processes, each with as many rows as the one above: what the slower one says."""
    output = io.BytesIO()
    command = [sys.executable, "-m", "benchmarks.meshes"]
    status = launch(command, num_workers=2, devices_per_worker=4, stdout=output, stderr=io.BytesIO())
    if status:
        raise RuntimeError(f"the processes ended with status {status}")
    lines = [line.partition(" ")[2] for line in output.getvalue().decode().splitlines()]
    one, other = [[Figure(**figure) for figure in json.loads(line)] for line in lines if line.startswith("[")]
    return [first if first.value < second.value or not first.reached else second for first, second in zip(one, other)]


def as_one_of_two() -> list[Figure]:
    """An epoch of this process's half of each batch, against its rows taken by hand."""
    jax.distributed.initialize(os.environ["PENSTOCK_COORDINATOR_ADDRESS"], 2, int(os.environ["PENSTOCK_WORKER_INDEX"]))
    rows, divided = columns(2), sharding()
    dataset = ps.Dataset.from_tensor_slices(rows).shuffle(seed=1).batch(2 * BATCH)
    ahead = ps.jax.loader(dataset, divided)
    in_the_step = ps.jax.loader(dataset, divided, input_options=ps.InputOptions(per_replica_buffer_size=0))
    order = np.random.default_rng(1).permutation(len(rows["tokens"]))

    def exhaust(loader: ps.jax.MeshLoader) -> None:
        for batch in loader:
            jax.block_until_ready(batch)

    def bare() -> None:
        for start in range(jax.process_index() * BATCH, len(order), 2 * BATCH):
            taken = order[start : start + BATCH]
            arrays = {
                name: jax.make_array_from_process_local_data(divided, column[taken]) for name, column in rows.items()
            }
            jax.block_until_ready(arrays)

    # The least of many: what the other process and the machine do in a round weighs on one way or the other.
    ways = (partial(exhaust, ahead), partial(exhaust, in_the_step), bare)
    with_thread, alone, theirs = best_in_turn([partial(processor_seconds, way) for way in ways], rounds=25)
    assert ahead._control is not None
    before = ahead._control.sent
    exhaust(ahead)
    return [
        Figure("the same on two processes, rows by hand / ps.jax.loader", theirs / with_thread, 0.7),
        Figure("the same without a thread ahead", theirs / alone, 0.7),
        Figure(f"messages in {STEPS} steps", ahead._control.sent - before, 0, at_least=False, unit="messages"),
    ]


if __name__ == "__main__":
    print(json.dumps([asdict(figure) for figure in as_one_of_two()]), flush=True)
