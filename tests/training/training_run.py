"""A training run that tests kill: `training_run.py KIND DIRECTORY STEP MOMENT [WORKER]`, started by `penstock launch`.

It saves as it goes, goes on from the newest checkpoint, and kills itself, or only one worker of several, at a moment of
a step. Every worker keeps a ledger. A process that begins to train writes a line with the step that it goes on after;
then each step gets a line with the ids of the examples that it used.
"""

import json
import os
import signal
import sys
from functools import partial
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

kind, directory, fatal_step, fatal_moment, *fatal_worker = sys.argv[1:]


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


class KerasTraining:
    """A model, its optimizer and a metric, on all replicas.

    Args:
        depends_on_replicas: whether the model has layers that see how many replicas there are: a random one, which
            draws differently on each, and one with statistics of its share of the batch.
    """

    def __init__(self, dataset: ps.Dataset, depends_on_replicas: bool) -> None:
        alone = os.environ["PENSTOCK_NUM_PROCESSES"] == "1"
        self.strategy = ps.MirroredStrategy() if alone else ps.MultiWorkerMirroredStrategy()
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


def write(line: dict[str, Any]) -> None:
    with open(Path(directory, f"ledger-{jax.process_index()}"), "a") as ledger:
        ledger.write(json.dumps(line) + "\n")


def reached(moment: str) -> None:
    here = str(jax.process_index()) in fatal_worker or not fatal_worker
    if (str(step), moment) == (fatal_step, fatal_moment) and here:
        os.kill(os.getpid(), signal.SIGKILL)


features = np.random.default_rng(1).random((EXAMPLES, 3), np.float32)
dataset = ps.Dataset.from_tensor_slices({"id": np.arange(EXAMPLES), "x": features})
dataset = dataset.shuffle(EXAMPLES, seed=3).batch(BATCH).repeat(EPOCHS).prefetch(2)
kinds = {
    "jax": JaxTraining,
    "keras": partial(KerasTraining, depends_on_replicas=True),
    "keras, any number of replicas": partial(KerasTraining, depends_on_replicas=False),
}
training = kinds[kind](dataset)
step = 0
checkpoint = ps.Checkpoint(**training.objects, step=step, iterator=training.iterator, max_to_keep=2, asynchronous=True)
latest = ps.latest_checkpoint(directory)
if latest is not None:
    values = checkpoint.restore(latest)
    step = values["step"]
    training.restored(values)
write({"after": step})
for batch in training.iterator:
    reached("before the step")
    loss = training.step(batch)
    step += 1
    write({"step": step, "ids": training.ids(batch), "loss": loss})
    reached("before saving")
    if step % STEPS_PER_SAVE == 0:
        checkpoint.save(Path(directory, "ckpt"), step=step, **training.values())
        reached("while saving")
        checkpoint.wait()
        reached("after saving")
training.iterator.close()
checkpoint.close()
np.savez(Path(directory, f"result-{jax.process_index()}.npz"), *map(np.asarray, training.result()))
