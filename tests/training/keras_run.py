"""Training of a Keras model, as `training_run` describes it."""

import os
from functools import cache, partial
from typing import Any

# Before Keras is imported.
os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from training_run import run

import penstock as ps


@cache
def the_strategy() -> ps.Strategy:
    """The strategy of all runs of this process."""
    return ps.MirroredStrategy() if os.environ["PENSTOCK_NUM_WORKERS"] == "1" else ps.MultiWorkerMirroredStrategy()


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
            self.model = keras.Sequential([keras.Input((3,)), *inner, keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.05)
            self.optimizer.build(self.model.trainable_variables)
            self.metric = keras.metrics.MeanSquaredError()
        self.iterator = iter(self.strategy.distribute_dataset(dataset))
        self.objects = {"model": self.model, "optimizer": self.optimizer, "metric": self.metric}

    def _replica_step(self, batch: Any) -> Any:
        def loss() -> Any:
            predictions = self.model(batch["x"], training=True)
            errors = keras.losses.mean_squared_error(batch["x"][:, :1], predictions)
            return ps.training.compute_average_loss(errors, global_batch_size="actual"), predictions

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


run(
    {
        "keras": partial(KerasTraining, depends_on_replicas=True),
        "keras, any number of replicas": partial(KerasTraining, depends_on_replicas=False),
    }
)
