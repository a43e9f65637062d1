"""The numeric part of a transform inside a Keras model."""

import os
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest

import penstock as ps
from penstock.errors import InvalidTypeError

pytestmark = pytest.mark.slow


def preprocess(c):
    x, v = c["x"], c["v"]
    word = ps.transform.compute_and_apply_vocabulary(c["w"])
    return {
        "z": ps.transform.scale_to_z_score(x),
        "unit": ps.transform.scale_by_min_max(x, -1.0, 1.0),
        "same": ps.transform.scale_to_0_1(0 * x + 2),
        "bucket": ps.transform.bucketize(x, 3),
        "places": ps.transform.bucketize(v, 2, elementwise=True),
        "v": np.clip(np.log1p(np.abs(v)), 0.1, 2.0) @ np.ones((2, 1), np.float32),
        "rest": np.where(x > ps.transform.mean(x), x, -1.0),
        "column": v[:, 1] ** 2,
        "times": x * ps.transform.get_num_buckets_for_transformed_feature(word),
        "word": word,
    }


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    generator = np.random.default_rng(3)
    rows = {
        "x": generator.normal(size=50).astype(np.float32),
        "v": generator.normal(size=(50, 2)).astype(np.float32),
        "w": np.array(["a", "b"] * 25, object),
    }
    return rows, ps.transform.analyze(
        ps.Dataset.from_tensor_slices(rows), preprocess, tmp_path_factory.mktemp("working_dir")
    )


@pytest.mark.extended
def test_a_saved_model_transforms_as_the_function_does(output, tmp_path):
    rows, transform = output
    columns = {"x": keras.Input((), name="x"), "v": keras.Input((2,), name="v")}
    model = keras.Model(columns, transform.to_keras()(columns))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    given = {name: rows[name] for name in columns}
    found = again(given)
    expected = transform.transform_features_layer()(rows)
    assert set(found) == set(expected) - {"word"}
    for name, values in found.items():
        np.testing.assert_allclose(np.asarray(values), expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.extended
def test_a_model_loads_where_only_penstock_and_keras_are_imported(output, tmp_path):
    rows, transform = output
    column = keras.Input((), name="x")
    keras.Model(column, transform.to_keras(["z"])({"x": column})["z"]).save(tmp_path / "model.keras")
    program = (
        "import sys, penstock, keras\n"
        "assert 'penstock.transform' not in sys.modules\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "print(float(model.predict(keras.ops.convert_to_numpy([2.5]), verbose=0)[0]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.keras")], capture_output=True, text=True, check=True
    )
    expected = transform.transform_features_layer()(rows | {"x": np.full(50, 2.5, np.float32)})["z"][0]
    assert float(found.stdout) == pytest.approx(expected, rel=1e-5)


@pytest.mark.extended
def test_nan_and_infinite_numbers_are_transformed_as_the_function_does(output):
    rows, transform = output
    given = {name: np.tile(column[:3], (2, 1)[: column.ndim]) for name, column in rows.items() if name != "w"}
    given["x"][:3] = given["v"][:3, 0] = [np.nan, np.inf, -np.inf]
    found = transform.to_keras()(given)
    expected = transform.transform_features_layer()(given | {"w": rows["w"][:6]})
    for name, values in found.items():
        np.testing.assert_allclose(np.asarray(values), expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_needs_strings_is_refused(output):
    with pytest.raises(InvalidTypeError, match="'word' cannot be computed in a model, because of column 'w'"):
        output[1].to_keras(["z", "word"])
