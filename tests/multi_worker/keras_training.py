"""A small Keras training that begins with a ragged step, for one process and for several."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from typing import Any

import keras
import numpy as np

import penstock as ps


def trained(strategy: Any, seed: int) -> dict[str, Any]:
    """Losses, accuracy and all variables after an epoch: a ragged step, three full ones, three in one program."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(3)])
        model.build((None, 4))
        updates = keras.optimizers.SGD(0.1, momentum=0.9)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(batch: Any) -> Any:
        rows, labels = batch

        def loss() -> Any:
            logits = model(rows, training=True)
            average = ps.training.compute_average_loss(loss_of(labels, logits), global_batch_size="actual")
            return average, logits

        (value, logits), gradients = ps.keras.value_and_grad(loss, model.trainable_variables, has_aux=True)()
        updates.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return value

    random = np.random.default_rng(0)
    examples = random.normal(size=(54, 4)).astype(np.float32), random.integers(0, 3, 54)
    dataset = ps.Dataset.from_tensor_slices(examples)
    batches = dataset.take(6).batch(8).concatenate(dataset.skip(6).batch(8))
    steps = iter(strategy.distribute_dataset(batches))
    losses = [strategy.reduce("SUM", strategy.run(step, args=(next(steps),))) for _ in range(4)]
    losses += list(strategy.reduce("SUM", strategy.run_steps(step, steps, 3)))
    variables = [np.asarray(variable.value) for variable in (*model.variables, *updates.variables)]
    return {"losses": list(map(float, losses)), "accuracy": float(accuracy.result()), "variables": variables}
