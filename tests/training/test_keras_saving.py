"""Models that Keras saved come back compiled, as without penstock, and go on training."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
DATASET = ps.Dataset.from_tensor_slices((ROWS, ROWS.sum(axis=1, keepdims=True))).batch(4)


def compiled_model() -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    # Objects rather than names, which Keras does not find again in its older format.
    loss, error = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=[error])
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("replicas", [0, 2])
def test_a_loaded_model_is_compiled_and_evaluates_as_before(tmp_path: Path, suffix: str, replicas: int) -> None:
    with mirrored(replicas).scope() if replicas else nullcontext():
        model = compiled_model()
        model.fit(DATASET, verbose=0)
        model.save(tmp_path / f"model{suffix}")
        loaded = keras.models.load_model(tmp_path / f"model{suffix}")
        assert loaded.compiled
        assert loaded.evaluate(DATASET, verbose=0) == pytest.approx(model.evaluate(DATASET, verbose=0))


@pytest.mark.slow
def test_a_loaded_model_goes_on_training_where_it_was(tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = compiled_model()
        model.fit(DATASET, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    losses = [one.fit(DATASET, epochs=2, verbose=0).history["loss"] for one in (model, loaded)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert int(loaded.optimizer.iterations.value) == int(model.optimizer.iterations.value) == 6
    assert {len(variable.value.sharding.device_set) for variable in loaded.weights} == {2}


def test_a_model_that_overrides_compile_is_still_told_so(tmp_path: Path) -> None:
    @keras.saving.register_keras_serializable("penstock-tests")
    class Own(keras.Sequential):  # type: ignore[misc]  # Keras has no types
        def compile(self, *args: Any, **kwargs: Any) -> None:
            super().compile(*args, **kwargs)

    model = Own([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=r"`compile\(\)` was not called as part of model loading"):
        keras.models.load_model(tmp_path / "model.keras")
