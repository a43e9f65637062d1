"""`run_steps` leaves Keras's variables as single steps do, and `check_weights` names those that differ."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

ROWS = np.random.default_rng(0).normal(size=(70, 6)).astype(np.float32)
LABELS = ROWS[:, :1]


class Training:
    """A small model with all kinds of variables: weights, moving statistics, a seed, a metric, an optimiser's."""

    def __init__(self, strategy: ps.Strategy) -> None:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            self.model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(1)])
            self.model.build((None, 6))
            self.updates = keras.optimizers.SGD(0.1, momentum=0.9)
            self.loss = keras.losses.MeanSquaredError(reduction=None)
            self.seed = keras.random.SeedGenerator(3)
            self.error = keras.metrics.MeanSquaredError()
        self.strategy = strategy
        self.traced = 0

    def step(self, batch):
        self.traced += 1
        rows, labels = batch

        def loss():
            predictions = self.model(rows, training=True)
            self.error.update_state(labels, predictions)
            return ps.training.compute_average_loss(self.loss(labels, predictions), global_batch_size="actual")

        value, gradients = ps.keras.value_and_grad(loss, self.model.trainable_variables)()
        self.updates.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.seed.next()
        return value

    def steps(self) -> ps.types.DistributedDataset:
        dataset = ps.Dataset.from_tensor_slices((ROWS, LABELS)).shuffle(70, seed=2).batch(16)
        return self.strategy.distribute_dataset(dataset)

    def variables(self) -> list[np.ndarray]:
        every = [*self.model.variables, *self.updates.variables, *self.error.variables, self.seed.state]
        return [np.asarray(variable.value) for variable in every]


def checked(replicas: int) -> ps.MirroredStrategy:
    return ps.MirroredStrategy([f"cpu:{number}" for number in range(replicas)], check_weights=True)


@pytest.mark.extended
def test_many_steps_equal_single_ones_and_are_compiled_once() -> None:
    single, many = Training(mirrored(4)), Training(checked(4))  # what is right passes the check
    losses = []
    for _ in range(2):
        losses += [single.strategy.run(single.step, args=(batch,)) for batch in single.steps()]
    stacked = [many.strategy.run_steps(many.step, iter(many.steps()), 5)]
    traced = many.traced
    stacked += [many.strategy.run_steps(many.step, iter(many.steps()), 5)]
    assert many.traced == traced
    expected = [np.asarray(single.strategy.local_results(loss)[0]) for loss in losses]
    own = np.concatenate([np.asarray(many.strategy.local_results(values)[0]) for values in stacked])
    np.testing.assert_allclose(own, expected, rtol=1e-5)
    for value, other in zip(many.variables(), single.variables(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-7)
    assert int(many.updates.iterations.value) == 10


@pytest.mark.slow
def test_gradients_that_nobody_summed_are_found_and_the_weight_is_named() -> None:
    strategy = checked(2)
    with strategy.scope():
        model, updates = keras.Sequential([keras.layers.Dense(1, use_bias=False)]), keras.optimizers.SGD(1.0)
        model.build((None, 1))

    def step(rows):
        # The gradient of a replica's own rows, without a sum over the replicas.
        updates.apply([jnp.mean(rows, axis=0)[:, None]], model.trainable_variables)
        return 0

    (batch,) = strategy.distribute_dataset(ps.Dataset.from_tensors(np.float32([[1], [2], [5], [6]])))
    message = r"check_weights: sequential.*/kernel differs by up to 4 between.*ps\.keras\.value_and_grad"
    with pytest.raises(ps.InvalidArgumentError, match=message):
        strategy.run(step, args=(batch,))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "steps", "most"), [(4, 1, 6), (3, 1, 6), (8, 2, 12)])
def test_by_how_much_a_weight_differs_in_full_and_ragged_and_many_steps(rows: int, steps: int, most: int) -> None:
    strategy = checked(4)
    with strategy.scope():
        first, second = keras.Variable(np.zeros(3), name="first"), keras.Variable(np.zeros(3), name="second")

    def step(rows):
        first.assign(first + 1)
        second.assign(second + np.float32([0, 2, 0]) * ps.get_replica_context().replica_id_in_sync_group)
        return rows.sum()

    iterator = iter(strategy.distribute_dataset(ps.Dataset.range(rows).batch(4)))
    with pytest.raises(ps.InvalidArgumentError, match=f"second differs by up to {most} between"):
        strategy.run_steps(step, iterator, steps)


@pytest.mark.slow
def test_one_replica_whose_weight_is_no_number_differs() -> None:
    strategy = checked(2)
    with strategy.scope():
        weight = keras.Variable(np.zeros(3), name="weight")

    def step(bad):
        place = ps.get_replica_context().replica_id_in_sync_group
        weight.assign(weight + keras.ops.where(place >= bad, np.float32("nan"), 0.0))

    with pytest.raises(ps.InvalidArgumentError, match="weight differs by up to inf between"):
        strategy.run(step, args=(np.int32(1),))
    weight.assign(np.zeros(3))
    strategy.run(step, args=(np.int32(0),))  # on both, which is no difference
