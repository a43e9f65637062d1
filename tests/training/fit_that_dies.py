"""A `fit` with backups that ends at a batch of one's choice: `fit_that_dies.py DIRECTORY KIND BATCH` by SIGKILL."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import penstock as ps

EXAMPLES, BATCH, STEPS, EPOCHS = 30, 8, 4, 3


class Ledger(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Writes down the numbers of each step's rows, in a variable: what the weights have really been trained with."""

    def build(self, shape: Any) -> None:
        self.step = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)
        self.rows = self.add_weight(
            shape=(STEPS * EPOCHS + 1, BATCH),
            initializer=keras.initializers.Constant(-1),
            dtype="int32",
            trainable=False,
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        numbers, features = inputs
        if training:
            line = keras.ops.pad(keras.ops.cast(numbers, "int32")[None] + 1, ((0, 0), (0, BATCH - numbers.shape[0])))
            self.rows.assign(keras.ops.slice_update(self.rows.value, (self.step.value, 0), line - 1))
            self.step.assign_add(1)
        return features


class Dies(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a function after so many batches, and after those callbacks that stand before it."""

    def __init__(self, batch: int, die: Callable[[], None]) -> None:
        super().__init__()
        self.batch = batch
        self.die = die

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.jax_state_sync()
        if int(self.model.optimizer.iterations.value) == self.batch:
            self.die()


def data_of(kind: str, seed: int | None) -> ps.Dataset:
    """The data; without a seed every process draws its own."""
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(EXAMPLES, 4)).astype("f"), random.normal(size=(EXAMPLES, 1)).astype("f")
    inputs = {"number": np.arange(EXAMPLES, dtype="int32"), "features": features}
    dataset = ps.Dataset.from_tensor_slices((inputs, labels)).shuffle(EXAMPLES, seed=seed).batch(BATCH)
    return {"finite": dataset, "repeated": dataset.repeat(), "unknown": dataset.filter(lambda x, y: True)}[kind]


def fit(directory: Path, kind: str, batch: int, die: Callable[[], None], seed: int | None = None) -> list[Any]:
    """The model's variables at the end, which are those of the ledger first."""
    strategy = ps.MirroredStrategy([f"cpu:{number}" for number in range(4)])
    return fit_under(strategy, directory, kind, batch, die, seed)


def fit_under(
    strategy: ps.Strategy, directory: Path, kind: str, batch: int, die: Callable[[], None], seed: int | None = None
) -> list[Any]:
    """As `fit`, on the devices of a strategy."""
    keras.utils.set_random_seed(1)
    inputs = {"number": keras.Input((), dtype="int32", name="number"), "features": keras.Input((4,), name="features")}
    hidden = Ledger()([inputs["number"], inputs["features"]])
    hidden = keras.layers.BatchNormalization()(hidden)  # and no dropout, whose seeds BackupAndRestore does not save
    data = ps.keras.as_input(data_of(kind, seed))
    with strategy.scope():
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        callbacks = [
            keras.callbacks.BackupAndRestore(directory / "backup", save_freq=2),
            ps.keras.KeepPosition(data, directory / "position", every=3),
            Dies(batch, die),
        ]
        steps = STEPS if kind == "repeated" else None
        model.fit(data, epochs=EPOCHS, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
    return [np.asarray(variable.value) for variable in [*model.variables, *model.optimizer.variables]]


def ids_of(variables: list[Any]) -> list[list[int]]:
    """The numbers of the rows that each epoch was trained with, in order of their steps."""
    (ledger,) = (variable for variable in variables if variable.shape == (STEPS * EPOCHS + 1, BATCH))
    assert (ledger[-1] == -1).all()  # no step too many
    steps = ledger[:-1].reshape(EPOCHS, -1)
    return [[int(number) for number in epoch if number >= 0] for epoch in steps]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    fit(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL), seed=5)
