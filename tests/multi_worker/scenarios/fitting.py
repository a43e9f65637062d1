"""Keras on several workers: a loop of one's own, and Keras's `fit`, `evaluate` and `predict`."""

import os
import runpy
import warnings
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras_training import trained
from scenarios.steps import said

import penstock as ps

PROGRAM = Path(__file__).parents[2] / "training" / "fit_that_dies.py"


_random = np.random.default_rng(0)
_FEATURES, _LABELS = _random.normal(size=(30, 4)).astype("f"), _random.normal(size=(30, 1)).astype("f")


def _data() -> ps.Dataset:
    """Thirty rows: the last batch has 6, which 4 devices do not divide."""
    return ps.Dataset.from_tensor_slices((_FEATURES, _LABELS)).batch(8)


def _model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


def _weights(model: Any) -> list[Any]:
    return [np.asarray(variable.value) for variable in model.variables]


def own_loop(strategy: Any) -> Any:
    """Every worker draws weights of its own: those of worker 0 are what all begin with."""
    return trained(strategy, seed=strategy._workers.index)


def training(strategy: Any) -> Any:
    """Models that begin differently on every worker are trained as that of worker 0."""
    with strategy.scope():
        model = _model(seed=1 + strategy._workers.index)
        history = model.fit(_data(), epochs=2, validation_data=_data(), verbose=0).history
        evaluated = model.evaluate(_data(), verbose=0)
        predicted = model.predict(_data(), verbose=0)
    return {"history": history, "evaluated": evaluated, "predicted": predicted, "weights": _weights(model)}


def training_alone(strategy: Any) -> Any:
    """The same on one device, from arrays, without penstock: once is enough."""
    if strategy._workers.index:
        return None
    model = _model(seed=1)
    given = {"x": _FEATURES, "y": _LABELS, "batch_size": 8, "verbose": 0}
    history = model.fit(**given, epochs=2, shuffle=False, validation_data=(_FEATURES, _LABELS)).history
    predicted = model.predict(_FEATURES, batch_size=8, verbose=0)
    return {
        "history": history,
        "evaluated": model.evaluate(**given),
        "predicted": predicted,
        "weights": _weights(model),
    }


def files_of_unequal_length(strategy: Any) -> Any:
    """One worker has 12 rows and the other 3: the mean of their squares, and what is predicted of them."""
    dataset = ps.TextLineDataset(["long.txt", "short.txt"]).map(lambda line: np.float32([int(line)])).batch(8)
    warnings.filterwarnings("ignore", "Your input ran out of data")  # as Keras says of any data of unknown length
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, inputs * 1)
        model.compile(loss="mse")
        mean = model.evaluate(dataset.map(lambda rows: (rows, rows * 0)), verbose=0)
        return {"mean": mean, "predicted": model.predict(dataset, verbose=0)[:, 0].tolist()}


def unseeded_order(strategy: Any) -> Any:
    """What all workers predict of an order that nobody has given a seed."""
    dataset = ps.Dataset.range(30).shuffle(30).map(lambda row: np.float32([row])).batch(8)
    with strategy.scope():
        inputs = keras.Input((1,))
        return keras.Model(inputs, inputs * 2).predict(dataset, verbose=0)[:, 0].tolist()


def going_on(strategy: Any) -> Any:
    """A fit that crashes on all workers, and goes on."""
    warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras 3.15 on NumPy 2
    program = runpy.run_path(str(PROGRAM))
    directory = Path(f"backup-{strategy._workers.index}").absolute()

    def crash() -> None:
        raise RuntimeError("crashed")

    try:
        program["fit_under"](strategy, directory, "finite", 5, crash)
    except RuntimeError as error:
        crashed = said(error)
    variables = program["fit_under"](strategy, directory, "finite", 0, crash)
    return {"crashed": crashed, "ids": program["ids_of"](variables)}
