"""Cost of a Keras step in `strategy.run`: against the same step by hand, and against TensorFlow's MirroredStrategy.

It asks JAX for four CPU devices when it is imported, so it must be the first to use JAX in its process. TensorFlow is
not part of the development environment: PENSTOCK_BENCH_TENSORFLOW names a Python that has it.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from benchmarks.overlap import CALLS, ROWS, SECONDS, slow
from benchmarks.timing import Figure, cost_ratio, seconds
from benchmarks.tutorial import NETWORKS, ROWS_PER_REPLICA, convolutional, images

REPLICAS = 4
jax.config.update("jax_num_cpu_devices", REPLICAS)

GLOBAL_BATCH = REPLICAS * ROWS_PER_REPLICA
EXAMPLES = 6_000
ROUNDS = 7


def measure() -> list[Figure]:
    """The figures of this file."""
    strategy = ps.MirroredStrategy(jax.devices("cpu")[:REPLICAS])
    return [
        Figure("strategy.run of the tutorial's Keras step / shard_map by hand", step_ratio(strategy), 1.2, False),
        Figure(f"{CALLS} calls of 20 ms below a fit whose steps cost little / ideal", fit_ratio(), 1.5, at_least=False),
        Figure("bytes of Keras variables that steps write elsewhere / all", moved(strategy), 0.001, False),
        *against_tensorflow(strategy),
    ]


def fit_ratio() -> float:
    """A pass of Keras's `fit` over a map of calls that sleep, against what these take if all run that may."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    mapped = ps.Dataset.range(ROWS).map(slow, num_parallel_calls=CALLS).batch(4).map(lambda x: (x, x[:, :1]))
    model.fit(mapped, verbose=0)  # compiles the step
    took = sorted(seconds(lambda: model.fit(mapped, verbose=0)) for _ in range(3))[1]
    return took / (ROWS * SECONDS / CALLS)


@dataclass
class Training:
    """The tutorial's step, with all that it changes."""

    strategy: ps.Strategy
    network: Callable[[], keras.Model]

    def __post_init__(self) -> None:
        with self.strategy.scope():
            self.model = self.network()
            self.optimizer = keras.optimizers.Adam(0.001)
            self.optimizer.build(self.model.trainable_variables)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()

    def variables(self) -> list[Any]:
        """All that a step writes."""
        return [*self.model.variables, *self.optimizer.variables, *self.accuracy.variables]

    def step(self, batch: Any) -> Any:
        rows, labels = batch

        def forward():
            predictions = self.model(rows, training=True)
            loss = ps.training.compute_average_loss(self.loss(labels, predictions))
            return loss + ps.training.scale_regularization_loss(self.model.losses), predictions

        value_and_grad = ps.keras.value_and_grad(forward, self.model.trainable_variables, has_aux=True)
        (loss, predictions), gradients = value_and_grad()
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.accuracy.update_state(labels, predictions)
        return loss

    def epoch(self, steps: ps.types.DistributedDataset) -> None:
        total = sum(self.strategy.reduce("SUM", self.strategy.run(self.step, args=(batch,))) for batch in steps)
        float(total), float(self.accuracy.result())


def one_batch(strategy: ps.Strategy) -> Any:
    return next(iter(strategy.distribute_dataset(ps.Dataset.from_tensors(images(GLOBAL_BATCH)))))


def step_ratio(strategy: ps.MirroredStrategy) -> float:
    """Steps by `run` against the same step as a function of its state, compiled by hand, on the same arrays."""
    training = Training(strategy, convolutional)
    batch = one_batch(strategy)
    by_hand, state = step_by_hand(Training(strategy, convolutional))

    def ours() -> None:
        for _ in range(3):
            jax.block_until_ready(strategy.run(training.step, args=(batch,)))

    def theirs() -> None:
        nonlocal state
        for _ in range(3):
            state, loss = by_hand(state, batch[0].stacked, batch[1].stacked)
            jax.block_until_ready(loss)

    return cost_ratio(ours, theirs, rounds=21)  # many short rounds: they meet the same machine


def step_by_hand(training: Training) -> tuple[Any, Any]:
    """The tutorial's step as a program of its state and a batch, and the first state."""
    model, optimizer, accuracy = training.model, training.optimizer, training.accuracy

    def step(state, rows, labels):
        weights, optimizer_state, counts = state
        rows, labels = rows[0], labels[0]

        def forward(weights):
            predictions, _, penalties = model.stateless_call(weights, [], rows, training=True, return_losses=True)
            losses = optax.softmax_cross_entropy_with_integer_labels(predictions, labels)
            return losses.sum() / GLOBAL_BATCH + sum(penalties) / REPLICAS, predictions

        (loss, predictions), gradients = jax.value_and_grad(forward, has_aux=True)(weights)
        gradients = jax.lax.psum(gradients, "replica")
        weights, optimizer_state = optimizer.stateless_apply(optimizer_state, gradients, weights)
        added = accuracy.stateless_update_state([jnp.zeros_like(count) for count in counts], labels, predictions)
        counts = [count + more for count, more in zip(counts, jax.lax.psum(added, "replica"), strict=True)]
        return (weights, optimizer_state, counts), loss[None]

    mesh = Mesh(np.array(jax.devices("cpu")[:REPLICAS]), ("replica",))
    same, split = PartitionSpec(), PartitionSpec("replica")
    program = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(same, split, split), out_specs=(same, split), check_vma=False),
        donate_argnums=0,
    )
    parts = (model.trainable_variables, optimizer.variables, accuracy.variables)
    state = tuple([np.asarray(variable.value) for variable in part] for part in parts)
    return program, jax.device_put(state, NamedSharding(mesh, same))


def moved(strategy: ps.MirroredStrategy) -> float:
    """The part of the variables' bytes that lie in other memory of the devices after 20 steps than after one.

    XLA gives a few scalars new places; weights and the optimiser's moments stay where they are.
    """
    training = Training(strategy, convolutional)
    batch = one_batch(strategy)

    def places() -> list[tuple[int, Any]]:
        arrays = [variable.value for variable in training.variables()]
        jax.block_until_ready(arrays)
        return [
            (array.nbytes, [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards])
            for array in arrays
        ]

    strategy.run(training.step, args=(batch,))
    before = places()
    for _ in range(20):
        jax.block_until_ready(strategy.run(training.step, args=(batch,)))
    elsewhere = sum(one[0] for one, other in zip(before, places(), strict=True) if one != other)
    return elsewhere / sum(nbytes for nbytes, _ in before)


def against_tensorflow(strategy: ps.MirroredStrategy) -> list[Figure]:
    """Epochs of a tenth of the tutorial's images, against TensorFlow's."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if python is None:
        print("no figure against TensorFlow: PENSTOCK_BENCH_TENSORFLOW names no Python that has it", file=sys.stderr)
        return []
    return [
        # The kernels of XLA and of TensorFlow for convolutions and pooling on a CPU decide this one.
        Figure("epoch of the tutorial / TensorFlow's MirroredStrategy", epochs(strategy, python, "convolutional"), 1),
        Figure("epoch of a dense network / TensorFlow's MirroredStrategy", epochs(strategy, python, "dense"), 1),
    ]


def epochs(strategy: ps.MirroredStrategy, python: str, network: str) -> float:
    """Our speed over TensorFlow's, whose process waits while ours trains, and the other way round; the best of each."""
    training = Training(strategy, NETWORKS[network])
    dataset = ps.Dataset.from_tensor_slices(images(EXAMPLES)).shuffle(EXAMPLES).batch(GLOBAL_BATCH)
    steps = strategy.distribute_dataset(dataset)
    command = [python, "-m", "benchmarks.tutorial_in_tensorflow", network, str(REPLICAS), str(EXAMPLES)]
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ours, theirs = [], []
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tensorflow:
        assert tensorflow.stdin is not None
        assert tensorflow.stdout is not None
        for _ in range(ROUNDS):
            ours.append(seconds(lambda: training.epoch(steps)))
            print(file=tensorflow.stdin, flush=True)
            theirs.append(float(tensorflow.stdout.readline()))
        tensorflow.stdin.close()
    print(f"an epoch of {network}: {min(ours):.3f} s, in TensorFlow {min(theirs):.3f} s", file=sys.stderr)
    return min(theirs) / min(ours)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
