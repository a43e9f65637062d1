"""The layers that Keras can run without TensorFlow, compared with Keras itself."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import penstock as ps
from penstock.preprocessing import CategoryEncoding, Discretization, Normalization, Rescaling

IS_LOWEST = keras.__version__.startswith("3.12.")
"""Keras 3.12 refuses a mean for the first of two axes, and finds other boundaries in a compressed sketch."""

numbers = st.floats(-1000, 1000, width=32)


def same(ours: Any, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    assert np.asarray(ours).dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-5)


@pytest.mark.slow
@settings(max_examples=20)
@given(arrays.arrays(np.float32, (4, 3), elements=numbers), numbers, numbers)
def test_rescaling(inputs: Any, scale: float, offset: float) -> None:
    layer = Rescaling(scale, offset)
    same(layer(inputs), keras.layers.Rescaling(scale, offset)(inputs))
    same(layer(inputs), layer.to_keras()(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [[[0, 255]], np.arange(12, dtype=np.uint8).reshape(2, 2, 3)])
def test_rescaling_of_integers_and_by_channel(inputs: Any) -> None:
    same(Rescaling(1 / 255)(inputs), keras.layers.Rescaling(1 / 255)(np.array(inputs)))
    if np.ndim(inputs) == 3:
        same(Rescaling([1, 2, 3], [3, 2, 1])(inputs), keras.layers.Rescaling([1, 2, 3], [3, 2, 1])(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("axis", [-1, None, 1, (1, 2), (-1, 1), (0, 1, 2)])
def test_normalization_learned_from_an_array(axis: Any, invert: bool) -> None:
    data = np.random.default_rng(0).normal(5, 3, (6, 4, 3)).astype(np.float32)
    ours, theirs = Normalization(axis, invert=invert), keras.layers.Normalization(axis, invert=invert)
    ours.adapt(data)
    theirs.adapt(data)
    same(ours(data), theirs(data))
    if axis != 1 or not IS_LOWEST:
        same(ours(data), ours.to_keras()(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "mean", "variance"),
    [(None, 2.0, 4.0), (-1, 2.0, 4.0), (-1, [1.0, 2, 3], [1.0, 4, 0]), ((1, 2), np.ones((2, 3)), np.full((2, 3), 4.0))],
)
def test_normalization_by_numbers_given(axis: Any, mean: Any, variance: Any) -> None:
    inputs = np.arange(12).reshape(2, 2, 3)
    layer = Normalization(axis, mean, variance)
    same(layer(inputs), keras.layers.Normalization(axis, mean, variance)(inputs))
    same(layer(inputs), Normalization.from_config(layer.get_config())(inputs))


@pytest.mark.parametrize("batch", [None, 1, 7, 1000])
def test_normalization_learned_from_a_dataset_is_that_of_its_rows(batch: int | None) -> None:
    rows = np.random.default_rng(0).normal(1000, 1, (500, 3)).astype(np.float32)
    dataset = ps.Dataset.from_tensor_slices(rows)
    layer = Normalization().adapt(dataset if batch is None else dataset.batch(batch))
    np.testing.assert_allclose(layer.mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(layer.variance, rows.var(axis=0, dtype=np.float64), rtol=1e-6)
    assert np.array_equal(np.stack(list(dataset.map(layer))), layer(rows))


def test_normalization_of_single_numbers() -> None:
    layer = Normalization(axis=None).adapt(ps.Dataset.range(5))
    assert layer(2.0) == 0 and layer.get_config()["variance"] == 2.0


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("shape", [(12,), (4, 3), (12, 1)])
def test_discretization(mode: str, shape: tuple[int, ...]) -> None:
    inputs = np.random.default_rng(0).normal(1, 2, shape).astype(np.float32)
    inputs.flat[0] = 1.0
    layer = Discretization([0.0, 1.0, 2.5], output_mode=mode)
    same(layer(inputs), keras.layers.Discretization([0.0, 1.0, 2.5], output_mode=mode)(inputs))
    same(layer(inputs), layer.to_keras()(inputs))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "bins", "epsilon"), [(10, 3, 0.01), (5000, 4, 0.01), (5000, 10, 0.1), (7, 20, 0.01)])
def test_boundaries_learned_from_an_array(count: int, bins: int, epsilon: float) -> None:
    data = np.random.default_rng(1).normal(size=count).astype(np.float32)
    ours, theirs = Discretization(num_bins=bins, epsilon=epsilon), keras.layers.Discretization(None, bins, epsilon)
    ours.adapt(data)
    theirs.update_state(data)  # its `adapt` asks for TensorFlow before it comes to this
    theirs.finalize_state()
    if count < 5000 or not IS_LOWEST:
        assert ours.bin_boundaries == theirs.bin_boundaries
    assert Discretization.from_config(ours.get_config()).get_config() == ours.get_config()
    same(ours(data), ours.to_keras()(data))


def test_boundaries_learned_from_a_dataset_do_not_depend_on_its_batches() -> None:
    data = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    dataset = ps.Dataset.from_tensor_slices(data)
    learned = [Discretization(num_bins=4).adapt(d).bin_boundaries for d in (dataset, dataset.batch(999))]
    assert learned[0] == learned[1]
    np.testing.assert_allclose(learned[0], [-0.674, 0, 0.674], atol=0.05)


@pytest.mark.parametrize("mode", ["one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("inputs", [[[0, 1], [0, 0], [1, 2], [3, 1]], [3, 2, 0, 1], [[3], [2]], [[7, -1, 2]]])
def test_category_encoding(mode: str, inputs: Any) -> None:
    layer = CategoryEncoding(4, mode)
    same(layer(inputs), keras.layers.CategoryEncoding(4, mode)(np.array(inputs)))
    same(layer(inputs), layer.to_keras()(np.array(inputs)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rescaling("x"),
        lambda: Rescaling(1.0)(["x"]),
        lambda: Normalization(mean=["x"], variance=["y"]),
        lambda: Normalization(mean=[1.0], variance=[1.0])(["x"]),
        lambda: Normalization().adapt(["x"]),
        lambda: Discretization(["x"]),
        lambda: Discretization([1.0])(["x"]),
    ],
)
def test_what_is_no_number_is_refused(make: Any) -> None:
    with pytest.raises(ps.InvalidTypeError, match="takes numbers"):
        make()


@pytest.mark.slow
def test_category_encoding_by_weights() -> None:
    inputs, weights = np.array([[0, 1], [0, 0]]), np.array([[0.1, 0.2], [0.1, 0.3]])
    theirs = keras.layers.CategoryEncoding(4, "count")(inputs, count_weights=weights)
    same(CategoryEncoding(4, "count")(inputs, count_weights=weights), theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalization(mean=1.0), "mean and variance together"),
        (lambda: Normalization(mean=[1.0], variance=[1.0, 2.0]), "one shape"),
        (lambda: Normalization(axis=None, mean=[1.0], variance=[1.0]), "at most 0 axes"),
        (lambda: Normalization()([1.0]), "no mean yet"),
        (lambda: Normalization().to_keras(), "call adapt"),
        (lambda: Normalization(axis=3).adapt([[1.0]]), "the data has 2 axes"),
        (lambda: Normalization().adapt(np.zeros((0, 3))), "no data"),
        (lambda: Normalization(axis=None, mean=1.0, variance=1.0).adapt([1.0]), "was given"),
        (lambda: Discretization(), "either bin_boundaries or num_bins"),
        (lambda: Discretization([1.0], 2), "either bin_boundaries or num_bins"),
        (lambda: Discretization([2.0, 1.0]), "ascending"),
        (lambda: Discretization(num_bins=0), "at least 1"),
        (lambda: Discretization(num_bins=2, epsilon=0), "between 0 and 1"),
        (lambda: Discretization(num_bins=2)([1.0]), "no boundaries yet"),
        (lambda: Discretization(num_bins=2).to_keras(), "call adapt"),
        (lambda: Discretization(num_bins=2).adapt([]), "no values"),
        (lambda: Discretization([1.0]).adapt([1.0]), "make one with num_bins"),
        (lambda: CategoryEncoding(0), "at least 1"),
        (lambda: CategoryEncoding(2, "int"), "one of 'one_hot'"),
        (lambda: CategoryEncoding(2)([1], count_weights=[1]), "needs output_mode='count'"),
        (lambda: CategoryEncoding(2, "count")([1], count_weights=[1, 2]), "inputs' shape"),
    ],
)
def test_arguments_that_cannot_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        make()
