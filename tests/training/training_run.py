"""Training runs, of which tests kill the last: `training_run.py KIND STEP MOMENT WORKER DIRECTORY...`.

A run saves as it goes, in its directory, and goes on from the newest checkpoint there. That in the last directory kills
itself, or only one worker of several, at a moment of a step, unless the step is "-". `penstock launch` starts them.

Every worker keeps a ledger. A run that begins to train writes a line with the step that it goes on after; then each
step gets a line with the ids of the examples that it used.
"""

import json
import os
import signal
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

# Before Keras is imported.
os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import penstock as ps

EPOCHS, EXAMPLES, BATCH, STEPS_PER_SAVE = 2, 50, 8, 3

kind, fatal_step, fatal_moment, fatal_worker, *directories = sys.argv[1:]


class JaxTraining:
    """State in, state out, on one device."""

    def __init__(self, dataset: ps.Dataset) -> None:
        self.optimizer = optax.adam(0.05)
        params = {"w": jnp.ones(3), "b": jnp.zeros(())}
        self.state = params, self.optimizer.init(params)
        self.iterator = iter(dataset)
        self.objects = {"state": self.state}
        self.update = jax.jit(self._update, donate_argnums=0)

    def _update(self, state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((jnp.tanh(x @ params["w"]) - x[:, 0] + params["b"]) ** 2)

        params, optimizer = state
        value, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer = self.optimizer.update(gradients, optimizer)
        return (optax.apply_updates(params, updates), optimizer), value

    def step(self, batch: Any) -> float:
        self.state, loss = self.update(self.state, batch["x"])
        return float(loss)

    def ids(self, batch: Any) -> list[int]:
        return batch["id"].tolist()

    def values(self) -> dict[str, Any]:
        return {"state": self.state}

    def restored(self, values: dict[str, Any]) -> None:
        self.state = values["state"]

    def result(self) -> list[Any]:
        return jax.tree.leaves(self.state)


@cache
def the_strategy() -> ps.Strategy:
    """The strategy of all runs of this process."""
    return ps.MirroredStrategy() if os.environ["PENSTOCK_NUM_PROCESSES"] == "1" else ps.MultiWorkerMirroredStrategy()


class KerasTraining:
    """A model, its optimizer and a metric, on all replicas.

    Args:
        depends_on_replicas: whether the model has layers that see how many replicas there are: a random one, which
            draws differently on each, and one with statistics of its share of the batch.
    """

    def __init__(self, dataset: ps.Dataset, depends_on_replicas: bool) -> None:
        self.strategy = the_strategy()
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            inner = (
                [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=4)] if depends_on_replicas else []
            )
            self.model = keras.Sequential(
                [keras.Input((3,)), keras.layers.Dense(8, "relu"), *inner, keras.layers.Dense(1)]
            )
            self.optimizer = keras.optimizers.Adam(0.05)
            self.optimizer.build(self.model.trainable_variables)
            self.metric = keras.metrics.MeanSquaredError()
        self.iterator = iter(self.strategy.distribute_dataset(dataset))
        self.objects = {"model": self.model, "optimizer": self.optimizer, "metric": self.metric}

    def _replica_step(self, batch: Any) -> Any:
        def loss() -> Any:
            predictions = self.model(batch["x"], training=True)
            errors = keras.losses.mean_squared_error(batch["x"][:, :1], predictions)
            return ps.compute_average_loss(errors, global_batch_size="actual"), predictions

        variables = self.model.trainable_variables
        (value, predictions), gradients = ps.keras.value_and_grad(loss, variables, has_aux=True)()
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.metric.update_state(batch["x"][:, :1], predictions)
        return value

    def step(self, batch: Any) -> float:
        return float(self.strategy.reduce("SUM", self.strategy.run(self._replica_step, args=(batch,))))

    def ids(self, batch: Any) -> list[int]:
        return [number for part in self.strategy.local_results(batch) for number in np.asarray(part["id"]).tolist()]

    def values(self) -> dict[str, Any]:
        return {}

    def restored(self, values: dict[str, Any]) -> None: ...

    def result(self) -> list[Any]:
        return [variable.value for one in self.objects.values() for variable in one.variables]


class Run:
    """One training from its beginning, or from the newest checkpoint, to its end or its death.

    Args:
        directory: where its checkpoints, ledgers and results are.
        fatal: whether it is the one that kills itself.
    """

    def __init__(self, directory: str, fatal: bool) -> None:
        self._directory = Path(directory)
        self._worker = os.environ["PENSTOCK_PROCESS_ID"]
        self._fatal = fatal and fatal_worker in ("-", self._worker)
        self._step = 0

    def train(self) -> None:
        training = KINDS[kind](dataset())
        checkpoint = ps.Checkpoint(
            **training.objects, step=0, iterator=training.iterator, max_to_keep=2, asynchronous=True
        )
        latest = ps.latest_checkpoint(self._directory)
        if latest is not None:
            values = checkpoint.restore(latest)
            self._step = values["step"]
            training.restored(values)
        self._write({"after": self._step})
        for batch in training.iterator:
            self._reached("before the step")
            loss = training.step(batch)
            self._step += 1
            self._write({"step": self._step, "ids": training.ids(batch), "loss": loss})
            self._reached("before saving")
            if self._step % STEPS_PER_SAVE == 0:
                checkpoint.save(self._directory / "ckpt", step=self._step, **training.values())
                self._reached("while saving")
                checkpoint.wait()
                self._reached("after saving")
        training.iterator.close()
        checkpoint.close()
        results = map(np.asarray, training.result())
        np.savez(self._directory / f"result-{self._worker}.npz", *results)

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._directory / f"ledger-{self._worker}", "a") as ledger:
            ledger.write(json.dumps(line) + "\n")

    def _reached(self, moment: str) -> None:
        if self._fatal and (str(self._step), moment) == (fatal_step, fatal_moment):
            os.kill(os.getpid(), signal.SIGKILL)


def dataset() -> ps.Dataset:
    features = np.random.default_rng(1).random((EXAMPLES, 3), np.float32)
    examples = ps.Dataset.from_tensor_slices({"id": np.arange(EXAMPLES), "x": features})
    return examples.shuffle(EXAMPLES, seed=3).batch(BATCH).repeat(EPOCHS).prefetch(2)


KINDS = {
    "jax": JaxTraining,
    "keras": partial(KerasTraining, depends_on_replicas=True),
    "keras, any number of replicas": partial(KerasTraining, depends_on_replicas=False),
}

for directory in directories:
    Run(directory, fatal=directory == directories[-1]).train()
