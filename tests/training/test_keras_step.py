"""Keras steps in `strategy.run`: variables found and merged by kind. `test_same_numbers.py` has the numbers."""

from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
from jax import lax
from tests.distribute.conftest import mirrored

import penstock as ps

ROWS = np.random.default_rng(0).random((70, 6), dtype=np.float32)
LABELS = np.arange(70) % 10


@dataclass
class Training:
    """A small model and what its training gives."""

    strategy: ps.Strategy
    layers: tuple[keras.layers.Layer, ...] = ()
    traced: int = 0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        keras.utils.set_random_seed(0)
        with self.strategy.scope():
            regularizer = keras.regularizers.L2(1e-3)
            self.model = keras.Sequential(
                [
                    keras.layers.Dense(4, activation="relu", kernel_regularizer=regularizer),
                    *self.layers,
                    keras.layers.Dense(10, kernel_regularizer=regularizer),
                ]
            )
            self.model.build((None, 6))
            self.updates = keras.optimizers.SGD(0.1, momentum=0.9)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(self, batch):
        self.traced += 1
        rows, labels = batch

        def loss():
            logits = self.model(rows, training=True)
            average = ps.training.compute_average_loss(self.loss(labels, logits), global_batch_size="actual")
            return average + ps.training.scale_regularization_loss(self.model.losses), logits

        (value, logits), gradients = ps.keras.value_and_grad(loss, self.model.trainable_variables, has_aux=True)()
        self.updates.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.accuracy.update_state(labels, logits)
        return value

    def run(self, epochs: int = 2) -> "Training":
        dataset = ps.Dataset.from_tensor_slices((ROWS, LABELS)).shuffle(70, seed=1).batch(16)
        steps = self.strategy.distribute_dataset(dataset)
        for _ in range(epochs):
            for batch in steps:
                losses = self.strategy.run(self.step, args=(batch,))
                self.losses.append(float(self.strategy.reduce("SUM", losses)))
        return self


@pytest.mark.extended
def test_a_step_is_traced_once_for_its_variables_and_then_compiled(four_replicas) -> None:
    training = Training(four_replicas).run(epochs=1)
    traced = training.traced
    training.run(epochs=2)
    assert training.traced == traced


@pytest.mark.extended
def test_metrics_count_every_example_once(four_replicas) -> None:
    training = Training(four_replicas).run(epochs=1)
    total, count = (float(np.asarray(variable.value)) for variable in training.accuracy.variables)
    assert count == 70
    assert total == round(float(training.accuracy.result()) * 70)
    training.accuracy.reset_state()
    training.run(epochs=1)
    assert float(np.asarray(training.accuracy.variables[1].value)) == 70


@pytest.mark.slow
def test_moving_statistics_are_the_mean_of_the_replicas_that_have_rows(four_replicas) -> None:
    layer = keras.layers.BatchNormalization(momentum=0.0)
    with four_replicas.scope():
        layer.build((None, 1))

    def step(rows):
        layer(rows, training=True)
        return 0

    full = four_replicas.distribute_dataset(ps.Dataset.from_tensors(np.arange(8, dtype=np.float32)[:, None]))
    four_replicas.run(step, args=(next(iter(full)),))
    assert float(np.asarray(layer.moving_mean.value)[0]) == 3.5  # of 0.5, 2.5, 4.5, 6.5
    ragged = four_replicas.distribute_dataset(ps.Dataset.from_tensors(np.arange(3, dtype=np.float32)[:, None]))
    four_replicas.run(step, args=(next(iter(ragged)),))
    assert float(np.asarray(layer.moving_mean.value)[0]) == 1.0  # of 0, 1, 2


@pytest.mark.extended
def test_normalised_models_train_over_ragged_steps(four_replicas) -> None:
    training = Training(four_replicas, layers=(keras.layers.BatchNormalization(),)).run()
    assert np.isfinite(training.losses).all()
    assert training.losses[-1] < training.losses[0]


@pytest.mark.slow
def test_random_layers_draw_differently_on_every_replica_and_in_every_step(four_replicas) -> None:
    with four_replicas.scope():
        layer = keras.layers.Dropout(0.5, seed=3)

    def step(rows):
        return layer(rows, training=True)

    ones = ps.Dataset.from_tensors(np.ones((256, 8), np.float32)).repeat(2)
    masks = [
        tuple(np.asarray(part).tobytes() for part in four_replicas.run(step, args=(batch,)).values)
        for batch in four_replicas.distribute_dataset(ones)
    ]
    assert len({mask for step_masks in masks for mask in step_masks}) == 8
    assert np.asarray(layer.seed_generator.state.value).tolist() == [3, 2]


@pytest.mark.slow
def test_a_model_and_its_optimiser_may_be_built_by_the_first_step(four_replicas) -> None:
    keras.utils.set_random_seed(0)
    with four_replicas.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)

    def step(rows):
        def loss():
            return ps.training.compute_average_loss(model(rows)[:, 0] ** 2, global_batch_size="actual")

        model(rows)
        value, gradients = ps.keras.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    dataset = ps.Dataset.from_tensor_slices(np.ones((32, 3), np.float32)).batch(8)
    losses = [
        float(four_replicas.reduce("SUM", four_replicas.run(step, args=(batch,))))
        for batch in four_replicas.distribute_dataset(dataset)
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 4
    assert model.built


def train_with(optimizer: keras.optimizers.Optimizer, strategy: ps.Strategy, rows: np.ndarray) -> list[np.ndarray]:
    """The weights after an epoch with an optimizer that may scale the loss."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])

    def step(batch):
        def loss():
            return optimizer.scale_loss(
                ps.training.compute_average_loss(model(batch)[:, 0] ** 2, global_batch_size="actual")
            )

        value, gradients = ps.keras.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    for batch in strategy.distribute_dataset(ps.Dataset.from_tensor_slices(rows).batch(8)):
        strategy.run(step, args=(batch,))
    return [np.asarray(weight.value) for weight in model.weights]


@pytest.mark.extended
def test_a_scaled_loss_gives_the_numbers_of_a_plain_one(four_replicas) -> None:
    """Over a ragged step too, whose loss the optimiser has scaled up by then."""
    rows = ROWS[:21]
    with four_replicas.scope():
        plain = keras.optimizers.SGD(0.1)
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=2
        )
    for one, two in zip(train_with(plain, four_replicas, rows), train_with(scaled, four_replicas, rows), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    assert float(scaled.dynamic_scale.value) == 16
    assert int(scaled.iterations.value) == 3


@pytest.mark.slow
def test_overflowing_gradients_leave_the_weights_and_halve_the_scale(four_replicas) -> None:
    with four_replicas.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        plain = keras.optimizers.SGD(0.1)
    good, overflowing = ROWS[:8], np.concatenate([ROWS[:15], np.full((1, 6), 1e30, np.float32)])
    first = train_with(plain, four_replicas, good)
    for one, two in zip(first, train_with(scaled, four_replicas, overflowing), strict=True):
        np.testing.assert_array_equal(one, two)
    assert float(scaled.dynamic_scale.value) == 4
    assert int(scaled.iterations.value) == 1


def test_a_loss_scaling_optimizer_needs_variables_inside_a_step(four_replicas) -> None:
    with four_replicas.scope():
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    with pytest.raises(ps.InvalidArgumentError, match="was called inside strategy.run.* without variables: use"):
        four_replicas.run(lambda: scaled.apply([np.ones(2, np.float32)]))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_variable_assigned_from_another_keeps_its_own_value(replicas: int) -> None:
    strategy = mirrored(replicas)
    with strategy.scope():
        weight, target, average = (keras.Variable(start) for start in (1.0, 0.0, 0.0))

    def step() -> None:
        weight.assign(weight + 1.0)
        average.assign((average + weight + target) / 2)

    held = []
    for _ in range(2):
        target.assign(weight)
        average.assign(weight)
        for _ in range(2):
            strategy.run(step)
        held.append([float(variable.numpy()) for variable in (weight, target, average)])
    assert held == [[3.0, 1.0, 3.0], [5.0, 3.0, 6.5]]


def test_what_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="build the model first"):
        ps.keras.value_and_grad(lambda: 0.0, [])
    with pytest.raises(ps.InvalidTypeError, match="takes Keras variables"):
        ps.keras.value_and_grad(lambda: 0.0, [np.ones(3)])


@pytest.fixture
def four_replicas() -> ps.MirroredStrategy:
    return mirrored(4)


@pytest.mark.slow
def test_a_loop_over_rows_that_meets_is_refused_before_variables_change() -> None:
    four = mirrored(4)
    with four.scope():
        count = keras.Variable(0)

    def step(rows):
        count.assign_add(1)
        all_reduce = ps.get_replica_context().all_reduce
        return lax.scan(lambda carry, row: (carry + all_reduce("SUM", row), None), 0, rows)[0]

    for batch in four.distribute_dataset(ps.Dataset.range(11).batch(8)):
        with pytest.raises(ps.InvalidArgumentError, match=r"length 1 .* length 0"):
            four.run(step, args=(batch,))
        break
    assert int(count.value) == 0
    for batch in four.distribute_dataset(ps.Dataset.range(16).batch(8)):
        four.run(step, args=(batch,))
    assert int(count.value) == 2
