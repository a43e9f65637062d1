"""A Keras training over two workers with two replicas each: the numbers of one process, on every worker."""

import numpy as np
from tests.distribute.conftest import mirrored
from tests.multi_worker.keras_training import trained


def test_training_gives_the_weights_of_one_process_on_every_worker(scenario) -> None:
    first, second = scenario("keras_steps").of("training")
    assert first == second
    expected = trained(mirrored(4), seed=0)
    np.testing.assert_allclose(first["losses"], expected["losses"], rtol=1e-5)
    assert first["accuracy"] == expected["accuracy"]
    for variable, own in zip(first["variables"], expected["variables"], strict=True):
        np.testing.assert_allclose(variable, own, rtol=1e-4, atol=1e-6)
