"""Cost of distribution: input against bare `device_put`, `run` against a `shard_map` loop by hand.

It asks JAX for four CPU devices when it is imported, so it must be the first to use JAX in its process.
"""

import statistics
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from benchmarks.timing import Figure, cost_ratio, processor_ratio, speed_ratio

REPLICAS = 4
jax.config.update("jax_num_cpu_devices", REPLICAS)

ROUNDS = 9
STEPS = 150


def measure() -> list[Figure]:
    """The figures of this file."""
    strategy = ps.MirroredStrategy(jax.devices("cpu")[:REPLICAS])
    mesh = Mesh(np.array(jax.devices("cpu")[:REPLICAS]), ("replica",))
    return [
        Figure("epoch of shuffled images on 4 replicas / NumPy gather and device_put", epoch_ratio(strategy), 0.5),
        Figure("step of distributed input / device_put of its slices", input_ratio(strategy), 1.5, at_least=False),
        *step_figures(SmallStep(strategy, mesh)),
        Figure("an epoch of small steps, 100 in one program / one by one", many_steps_ratio(strategy), 1.5),
    ]


def epoch_ratio(strategy: ps.MirroredStrategy) -> float:
    """An epoch of images like Fashion-MNIST's, shuffled and batched, against the bare loop that does the same."""
    rng = np.random.default_rng(0)
    images = rng.random((60_000, 28, 28, 1), dtype=np.float32)
    labels = rng.integers(0, 10, 60_000).astype(np.int32)
    dataset = ps.Dataset.from_tensor_slices((images, labels)).shuffle(60_000).batch(256, drop_remainder=True)
    steps = strategy.distribute_dataset(dataset)
    split = NamedSharding(Mesh(np.array(jax.devices("cpu")[:REPLICAS]), ("replica",)), PartitionSpec("replica"))

    def ours() -> None:
        for batch in steps:
            jax.block_until_ready(batch)

    def bare() -> None:
        order = rng.permutation(len(images))
        for start in range(0, len(images) - 255, 256):
            rows = order[start : start + 256]
            jax.block_until_ready(jax.device_put((images[rows], labels[rows]), split))

    return speed_ratio(ours, bare, rounds=5)


def input_ratio(strategy: ps.MirroredStrategy) -> float:
    """Iterating a distributed constant batch of 256 images against putting its slices on their devices.

    How fast memory is copied depends on where it lies, so the ratio is the median of several batches.
    """
    return statistics.median(input_ratio_of(strategy) for _ in range(5))


def input_ratio_of(strategy: ps.MirroredStrategy) -> float:
    images = not_for_jax_to_keep(np.random.default_rng(0).random((256, 28, 28, 1), dtype=np.float32))
    slices = np.split(images, REPLICAS)
    devices = jax.devices("cpu")[:REPLICAS]
    steps = iter(strategy.distribute_dataset(ps.Dataset.from_tensors(images).repeat()))

    def ours() -> None:
        for _ in range(STEPS):
            jax.block_until_ready(next(steps))

    def bare() -> None:
        for _ in range(STEPS):
            jax.block_until_ready(jax.device_put(slices, devices))

    with steps:
        return cost_ratio(ours, bare)


def not_for_jax_to_keep(array: np.ndarray) -> np.ndarray:
    """A copy that JAX copies too: what begins at a multiple of 64 bytes it takes over on CPU devices as it is."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = (16 - memory.ctypes.data) % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@dataclass
class SmallStep:
    """A step of a small linear model by `run`, and the same step by hand on the same arrays."""

    strategy: ps.MirroredStrategy
    mesh: Mesh

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        batch = (rng.random((256, 64), dtype=np.float32), rng.random((256,), dtype=np.float32))
        self.batch = next(iter(self.strategy.distribute_dataset(ps.Dataset.from_tensors(batch))))
        weights = {"slope": np.zeros(64, np.float32), "offset": np.float32(0)}
        split, same = PartitionSpec("replica"), NamedSharding(self.mesh, PartitionSpec())
        by_hand = jax.shard_map(self.by_hand, mesh=self.mesh, in_specs=split, out_specs=split, check_vma=False)
        self.compiled = jax.jit(by_hand)
        rows = jax.tree.map(lambda weight: np.stack([weight] * REPLICAS), weights)
        self.stacked = jax.device_put(rows, NamedSharding(self.mesh, split))
        self.placed, _ = self.strategy.run(linear_step, args=(weights, *self.batch))
        self.total = jax.jit(jnp.sum, out_shardings=same)

    @staticmethod
    def by_hand(weights, features, targets):
        weights, features, targets = jax.tree.map(lambda rows: rows[0], (weights, features, targets))
        value, gradients = jax.value_and_grad(linear_loss)(weights, features, targets)
        gradients = jax.lax.psum(gradients, "replica")
        weights = jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients)
        return jax.tree.map(lambda value: value[None], (weights, value))

    def ours(self, *, reduce: bool) -> None:
        """An epoch by `run`, and with `reduce` the sum of the replicas' losses after each step."""
        state = self.placed
        for _ in range(STEPS):
            state, value = self.strategy.run(linear_step, args=(state, *self.batch))
            jax.block_until_ready(self.strategy.reduce("SUM", value) if reduce else value)

    def bare(self, *, reduce: bool) -> None:
        """The same by hand."""
        state, (features, targets) = self.stacked, self.batch
        for _ in range(STEPS):
            state, value = self.compiled(state, features.stacked, targets.stacked)
            jax.block_until_ready(self.total(value) if reduce else value)


def linear_loss(weights, features, targets):
    return jnp.sum((features @ weights["slope"] + weights["offset"] - targets) ** 2) / 256


def linear_step(weights, features, targets):
    value, gradients = jax.value_and_grad(linear_loss)(weights, features, targets)
    gradients = ps.get_replica_context().all_reduce("SUM", gradients)
    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients), value


def step_figures(step: SmallStep) -> list[Figure]:
    """The speed of a small step by `run` over that of the same step by hand, and of both with a sum of its losses."""
    # Steps of a fifth of a millisecond, in which devices wait for each other: few rounds differ by a tenth.
    return [
        processor_ratio(
            "strategy.run of a small step / shard_map by hand, speed",
            lambda: step.ours(reduce=False),
            lambda: step.bare(reduce=False),
            0.7,
            rounds=41,
        ),
        processor_ratio(
            "strategy.run and strategy.reduce / shard_map and a sum by hand, speed",
            lambda: step.ours(reduce=True),
            lambda: step.bare(reduce=True),
            0.7,
            rounds=41,
        ),
    ]


def many_steps_ratio(strategy: ps.MirroredStrategy) -> float:
    """An epoch of a small linear model by `run_steps`, its input included, against one by `run`."""
    rng = np.random.default_rng(0)
    examples = rng.random((32_000, 8), dtype=np.float32), rng.random((32_000,), dtype=np.float32)
    steps = strategy.distribute_dataset(ps.Dataset.from_tensor_slices(examples).batch(32))

    def step(weights, batch):
        features, targets = batch
        value, gradients = jax.value_and_grad(lambda weights: jnp.sum((features @ weights - targets) ** 2))(weights)
        return weights - 0.01 * ps.get_replica_context().all_reduce("SUM", gradients) / 32, value

    def together() -> None:
        weights, iterator = np.zeros(8, np.float32), iter(steps)
        for _ in range(10):
            weights, _ = strategy.run_steps(step, iterator, 100, state=weights)
        jax.block_until_ready(weights)

    def one_by_one() -> None:
        weights = np.zeros(8, np.float32)
        for batch in steps:
            weights, _ = strategy.run(step, args=(weights, batch))
        jax.block_until_ready(weights)

    return speed_ratio(together, one_by_one, rounds=5)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
