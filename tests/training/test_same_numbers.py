"""Training gives the numbers of an undistributed loop on one replica and on four: Keras and plain JAX alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

ROWS = np.random.default_rng(0).random((70, 12), dtype=np.float32)
LABELS = (10 * ROWS[:, 3]).astype(np.int32)
DECAY = 1e-3


def dataset() -> ps.Dataset:
    """70 rows in batches of 16: of the last one's 6 rows, four replicas get 2, 2, 2 and 0."""
    return ps.Dataset.from_tensor_slices((ROWS, LABELS)).shuffle(70, seed=1).batch(16)


@dataclass
class Numbers:
    """What an epoch gives: of every step the loss and the gradients, and the weights and the correct answers after."""

    losses: list[float] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    correct: int = 0
    weights: list[np.ndarray] = field(default_factory=list)

    def note(self, loss: Any, gradients: Any) -> None:
        self.losses.append(float(loss))
        self.gradients += map(np.asarray, jax.tree.leaves(gradients))


def keras_model(optimizer: str) -> tuple[keras.Model, keras.Optimizer]:
    keras.utils.set_random_seed(0)
    regularizer = keras.regularizers.L2(DECAY)
    model = keras.Sequential(
        [
            keras.Input((12,), dtype="float64"),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=regularizer, dtype="float64"),
            keras.layers.Dense(10, kernel_regularizer=regularizer, dtype="float64"),
        ]
    )
    updates = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.01}})
    updates.build(model.trainable_variables)
    return model, updates


def keras_alone(optimizer: str) -> Numbers:
    model, updates = keras_model(optimizer)
    weights, state = ([variable.value for variable in part.variables] for part in (model, updates))
    numbers = Numbers()

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def value_and_grad(weights, rows, labels):
        logits, _, losses = model.stateless_call(weights, [], rows, training=True, return_losses=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean() + sum(losses), logits

    update = jax.jit(updates.stateless_apply)
    for rows, labels in dataset():
        (loss, logits), gradients = value_and_grad(weights, rows, labels)
        weights, state = update(state, gradients, weights)
        numbers.note(loss, gradients)
        numbers.correct += int(jnp.sum(logits.argmax(-1) == labels))
    numbers.weights = list(map(np.asarray, weights))
    return numbers


def keras_distributed(strategy: ps.MirroredStrategy, optimizer: str) -> Numbers:
    with strategy.scope():
        model, updates = keras_model(optimizer)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None, dtype="float64")
        correct = keras.metrics.Sum()

    def step(batch):
        rows, labels = batch

        def forward():
            logits = model(rows, training=True)
            loss = ps.training.compute_average_loss(loss_object(labels, logits), global_batch_size="actual")
            return loss + ps.training.scale_regularization_loss(model.losses), logits

        (loss, logits), gradients = ps.keras.value_and_grad(forward, model.trainable_variables, has_aux=True)()
        updates.apply_gradients(zip(gradients, model.trainable_variables))
        correct.update_state(logits.argmax(-1) == labels)
        return loss, gradients

    numbers = Numbers()
    for batch in strategy.distribute_dataset(dataset()):
        loss, gradients = strategy.run(step, args=(batch,))
        numbers.note(strategy.reduce("SUM", loss), strategy.local_results(gradients)[0])
    numbers.correct = int(correct.result())
    numbers.weights = [np.asarray(variable.value) for variable in model.variables]
    return numbers


OPTAX = {"sgd": optax.sgd(0.1), "adam": optax.adam(0.01)}


def jax_start(optimizer: str) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    weights = {
        "hidden": random.normal(0, 0.1, (12, 8)),
        "out": random.normal(0, 0.1, (8, 10)),
        "bias": np.zeros(10),
    }
    return weights, OPTAX[optimizer].init(weights)


def jax_logits(weights, rows):
    return jnp.tanh(rows @ weights["hidden"]) @ weights["out"] + weights["bias"]


def penalty(weights):
    return DECAY * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))


def jax_alone(optimizer: str) -> Numbers:
    weights, state = jax_start(optimizer)
    numbers = Numbers()

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def value_and_grad(weights, rows, labels):
        logits = jax_logits(weights, rows)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean() + penalty(weights), logits

    @jax.jit
    def update(weights, state, gradients):
        updates, state = OPTAX[optimizer].update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    for rows, labels in dataset():
        (loss, logits), gradients = value_and_grad(weights, rows, labels)
        weights, state = update(weights, state, gradients)
        numbers.note(loss, gradients)
        numbers.correct += int(jnp.sum(logits.argmax(-1) == labels))
    numbers.weights = list(map(np.asarray, jax.tree.leaves(weights)))
    return numbers


def jax_distributed(strategy: ps.MirroredStrategy, optimizer: str) -> Numbers:
    def step(weights, state, batch):
        rows, labels = batch

        def loss_of(weights):
            logits = jax_logits(weights, rows)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            loss = ps.training.compute_average_loss(losses, global_batch_size="actual")
            return loss + ps.training.scale_regularization_loss(penalty(weights)), logits

        (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        gradients = ps.get_replica_context().all_reduce("SUM", gradients)
        updates, state = OPTAX[optimizer].update(gradients, state, weights)
        correct = jnp.sum(logits.argmax(-1) == labels)
        return optax.apply_updates(weights, updates), state, (loss, correct), gradients

    numbers = Numbers()
    weights, state = jax_start(optimizer)
    for batch in strategy.distribute_dataset(dataset()):
        weights, state, parts, gradients = strategy.run(step, args=(weights, state, batch))
        loss, correct = strategy.reduce("SUM", parts)
        numbers.note(loss, strategy.local_results(gradients)[0])
        numbers.correct += int(correct)
    numbers.weights = list(map(np.asarray, jax.tree.leaves(strategy.local_results(weights)[0])))
    return numbers


@pytest.fixture
def double_precision() -> Iterator[None]:
    """In float64 the order of a sum hardly shows: in float32 Adam makes much of what is left of a gradient near 0."""
    with jax.enable_x64(True):
        yield


@pytest.mark.extended
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.long), "adam"])
@pytest.mark.parametrize(
    ("alone", "distributed"),
    [(keras_alone, keras_distributed), (jax_alone, jax_distributed)],
    ids=["keras", "jax"],
)
def test_numbers_are_those_of_an_undistributed_loop(
    alone: Callable[[str], Numbers], distributed: Callable[[ps.MirroredStrategy, str], Numbers], optimizer: str
) -> None:
    expected = alone(optimizer)
    assert len(expected.losses) == 5
    for replicas in (1, 4):
        found = distributed(mirrored(replicas), optimizer)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=0, atol=1e-12)
        for one, other in zip(found.gradients, expected.gradients, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
        for one, other in zip(found.weights, expected.weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
        assert found.correct == expected.correct
