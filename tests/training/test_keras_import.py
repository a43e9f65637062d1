"""penstock and Keras find each other in either order of imports, on the backend that the user has chosen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
import penstock.distribute
from penstock.cli import main
from penstock.training.keras import import_hook as keras_import
from penstock.training.keras.import_hook import chosen_backend


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


@pytest.mark.extended
@pytest.mark.slow
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


@pytest.mark.extended
@pytest.mark.slow
def test_another_backend_is_left_alone_and_refused_where_jax_is_needed() -> None:
    *refusals, backend = run(OTHER_BACKEND, KERAS_BACKEND="numpy").splitlines()
    assert backend == "numpy"
    assert [line.partition(" needs Keras on JAX, but Keras's backend is numpy, by the")[0] for line in refusals] == [
        "a ps.Dataset given to a Keras model",
        "a Keras variable in the scope of MirroredStrategy(cpu:0)",
        "ps.keras",
    ]


@pytest.mark.parametrize(
    ("named", "written", "chosen"),
    [
        ("numpy", '{"backend": "jax"}', "numpy"),
        ("", '{"backend": "torch"}', "torch"),
        ("", '{"backend": "jax"}', "jax"),
        ("", None, "jax"),
        ("", '{"backend": "tensorflow"}', "jax"),
        ("tensorflow", None, "tensorflow"),
    ],
)
def test_jax_is_chosen_unasked_only_where_keras_would_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, written: str | None, chosen: str
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", named)
    if written is not None:
        (tmp_path / "keras.json").write_text(written)
    monkeypatch.setattr(keras_import, "find_spec", lambda name: None)  # as where TensorFlow is not installed
    assert chosen_backend() == chosen


@pytest.mark.parametrize(("named", "written"), [("", "torch"), ("torch", "jax")])
def test_the_demo_leaves_the_backend_alone_too_and_says_that_it_needs_jax(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, written: str
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", named)
    (tmp_path / "keras.json").write_text(json.dumps({"backend": written}))
    assert main(["demo"]) == 1
    assert "the demo needs Keras on JAX, but Keras's backend is torch, by the" in capsys.readouterr().err
