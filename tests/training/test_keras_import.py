"""penstock and Keras find each other in either order of imports, on the backend that the user has chosen."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
import penstock.distribute
from penstock.training.keras_import import _choose_a_backend_that_is_there


def run(program: str, **environment: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


KERAS_FIRST = """
import keras
import numpy as np
from penstock.distribute import MirroredStrategy
import penstock as ps

rows = ps.Dataset.from_tensor_slices(np.ones((5, 2), "float32")).batch(4)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
print(model.predict(rows, verbose=0).shape)
strategy = MirroredStrategy()
with strategy.scope():
    metric = keras.metrics.Sum()
for batch in strategy.distribute_dataset(rows):
    strategy.run(metric.update_state, args=(batch,))
print(float(metric.result()))
"""


def test_keras_may_be_imported_first_and_strategies_come_from_any_path() -> None:
    assert run(KERAS_FIRST, KERAS_BACKEND="jax").split("\n") == ["(5, 1)", "10.0", ""]
    assert penstock.distribute.MirroredStrategy is ps.MirroredStrategy


OTHER_BACKEND = """
import penstock as ps
import keras

def refusal(call):
    try:
        call()
    except ps.InvalidArgumentError as error:
        print(error)

def variable_in_scope():
    with ps.MirroredStrategy().scope():
        keras.Variable(1.0)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
refusal(lambda: model.predict(ps.Dataset.range(4).batch(2)))
refusal(variable_in_scope)
refusal(lambda: ps.keras)
print(keras.config.backend())
"""


def test_another_backend_is_left_alone_and_refused_where_jax_is_needed() -> None:
    *refusals, backend = run(OTHER_BACKEND, KERAS_BACKEND="numpy").splitlines()
    assert backend == "numpy"
    assert [line.partition(" needs Keras on JAX, but Keras's backend is numpy, by the")[0] for line in refusals] == [
        "a ps.Dataset given to a Keras model",
        "a Keras variable in the scope of MirroredStrategy(cpu:0)",
        "ps.keras",
    ]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="then TensorFlow is what Keras takes")
@pytest.mark.parametrize(
    ("written", "chosen"), [(None, "jax"), ('{"backend": "tensorflow"}', "jax"), ('{"backend": "torch"}', None)]
)
def test_jax_is_chosen_only_where_keras_would_fail_and_nobody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str | None, chosen: str | None
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    _choose_a_backend_that_is_there()
    assert os.environ["KERAS_BACKEND"] == "numpy"
    monkeypatch.setenv("KERAS_BACKEND", "")
    if written is not None:
        (tmp_path / "keras.json").write_text(written)
    _choose_a_backend_that_is_there()
    assert os.environ["KERAS_BACKEND"] == (chosen or "")
