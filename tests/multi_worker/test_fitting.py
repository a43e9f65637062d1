"""Keras on two workers with two replicas each gives what it gives in one process, and all workers see the same."""

from typing import Any

import numpy as np
import pytest
from tests.distribute.conftest import mirrored
from tests.multi_worker.keras_training import trained

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def fitted(scenario) -> Any:
    return scenario("fitting")


def test_a_custom_loop_gives_equal_weights_on_every_worker(fitted: Any) -> None:
    first, second = fitted.of("own_loop")
    assert first == second
    expected = trained(mirrored(4), seed=0)
    np.testing.assert_allclose(first["losses"], expected["losses"], rtol=1e-5)
    assert first["accuracy"] == expected["accuracy"]
    for variable, own in zip(first["variables"], expected["variables"], strict=True):
        np.testing.assert_allclose(variable, own, rtol=1e-4, atol=1e-6)


def test_two_workers_train_as_one_device_does(fitted: Any) -> None:
    first, second = fitted.of("training")
    assert first == second
    alone = fitted.of("training_alone")[0]
    assert first["history"].keys() == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in alone["history"].items():
        np.testing.assert_allclose(first["history"][name], values, rtol=1e-5)
    np.testing.assert_allclose(first["evaluated"], alone["evaluated"], rtol=1e-5)
    np.testing.assert_allclose(first["predicted"], alone["predicted"], rtol=1e-4, atol=1e-5)
    assert len(first["weights"]) == len(alone["weights"])
    for one, two in zip(first["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_files_of_unequal_length_count_by_their_rows(fitted: Any) -> None:
    """Steps of workers' own batches are cut over both: 8 rows and 3, then 4 rows and none."""
    rows = [*range(12), 100, 101, 102]
    for seen in fitted.of("files_of_unequal_length"):
        assert seen["mean"] == pytest.approx(sum(row * row for row in rows) / 15, rel=1e-6)
        assert sorted(seen["predicted"]) == rows


def test_an_order_without_a_seed_is_the_same_on_all_workers(fitted: Any) -> None:
    first, second = fitted.of("unseeded_order")
    assert first == second
    assert sorted(first) == [2 * row for row in range(30)] != first


def test_a_fit_that_crashed_on_all_workers_goes_on_with_the_next_batch(fitted: Any) -> None:
    first, second = fitted.of("going_on")
    assert first == second
    assert first["crashed"] == ["RuntimeError", "crashed"]
    assert [sorted(epoch) for epoch in first["ids"]] == [list(range(30))] * 3
