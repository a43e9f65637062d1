"""Scaled losses add up to the tutorial's numbers, also over short and empty shares and with weights."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps


def losses_of(shares: list[list[float]], **arguments) -> tuple[list[float], float]:
    """What each replica's part is, and their sum, on devices and in host memory alike."""
    strategies = [mirrored(len(shares)), ps.HostStrategy(len(shares))]
    found = []
    for strategy in strategies:
        parts = strategy.run(
            lambda losses: ps.training.compute_average_loss(losses, **arguments),
            args=(ps.PerReplica([np.array(share, np.float32) for share in shares]),),
        )
        found.append(([float(part) for part in parts.values], float(strategy.reduce("SUM", parts))))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.slow
def test_the_tutorials_losses() -> None:
    assert losses_of([[2, 3], [4, 5]], global_batch_size=4) == ([1.25, 2.25], 3.5)
    assert losses_of([[2, 3], [4, 5]]) == ([1.25, 2.25], 3.5)


@pytest.mark.slow
def test_short_shares_weigh_more_without_the_true_number_of_examples() -> None:
    assert losses_of([[2, 4], [6]]) == ([1.5, 3.0], 4.5)
    assert losses_of([[2, 4], [6]], global_batch_size=3) == ([2.0, 2.0], 4.0)
    assert losses_of([[2, 4], [6]], global_batch_size="actual") == ([2.0, 2.0], 4.0)
    assert losses_of([[2, 4], [6]], global_batch_size=4) == ([1.5, 1.5], 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, "actual", 4])
def test_an_empty_share_adds_nothing(size) -> None:
    parts, total = losses_of([[2, 6], []], global_batch_size=size)
    assert parts[1] == 0
    assert total == (4.0 if size == "actual" else 2.0)


def test_all_axes_of_a_loss_are_summed() -> None:
    strategy = ps.HostStrategy()
    loss = strategy.run(lambda: ps.training.compute_average_loss(jnp.array([[1.0, 2.0], [3.0, 4.0]])))
    assert float(loss) == 5


def test_sample_weights_may_have_an_axis_more_than_losses_as_in_keras() -> None:
    assert float(ps.training.compute_average_loss(np.float32([2, 4]), np.float32([[1], [0.5]]), 2)) == 2


@pytest.mark.parametrize("weight", [[1, 0.5], [[1], [0.5]], 0.5])
def test_sample_weights_fit_as_in_keras(weight) -> None:
    expected = {"float": 5.0}.get(type(weight).__name__, (3 + 0.5 * 7) / 2)
    losses = np.array([[1, 2], [3, 4]], np.float32)
    assert float(ps.training.compute_average_loss(losses, np.array(weight), 2)) == expected / (
        2 if weight == 0.5 else 1
    )


@pytest.mark.parametrize("size", [None, "actual", 3, 4])
def test_sample_weights_change_the_sum_and_not_the_denominator(size) -> None:
    def step(losses, weights):
        return ps.training.compute_average_loss(losses, sample_weight=weights, global_batch_size=size)

    losses, weights = ([np.array(part, np.float32) for part in parts] for parts in ([[2, 4], [6]], [[1, 0.5], [2]]))
    denominators = {None: (4, 2), "actual": (3, 3), 3: (3, 3), 4: (4, 4)}[size]
    for strategy in (mirrored(2), ps.HostStrategy(2)):
        parts = strategy.run(step, args=(ps.PerReplica(losses), ps.PerReplica(weights)))
        np.testing.assert_allclose(
            strategy.local_results(parts), [4 / denominators[0], 12 / denominators[1]], rtol=1e-6
        )


def test_a_share_without_rows_adds_nothing_with_weights_either() -> None:
    strategy = mirrored(2)
    empty = ps.PerReplica([np.array([2, 6], np.float32), np.zeros(0, np.float32)])
    parts = strategy.run(lambda losses: ps.training.compute_average_loss(losses, sample_weight=losses), args=(empty,))
    assert [float(part) for part in parts.values] == [10, 0]


def test_losses_of_many_predictions_are_averaged_over_each_example_first() -> None:
    """Pixels of images: per-example losses divided by the pixels give the mean over all of them."""
    images = np.arange(16, dtype=np.float32).reshape(4, 2, 2)
    strategy = mirrored(2)

    def step(losses):
        return ps.training.compute_average_loss(losses / losses[0].size)

    parts = strategy.run(step, args=(ps.PerReplica(np.split(images, 2)),))
    assert float(strategy.reduce("SUM", parts)) == images.mean()


@pytest.mark.slow
def test_a_mean_of_scaled_losses_is_too_small_by_the_number_of_replicas() -> None:
    """The tutorial's warning of a Mean metric for the training loss: a total of 3.5 by a count of 2."""
    strategy = mirrored(2)
    with strategy.scope():
        tracked = keras.metrics.Mean()

    def step(losses):
        loss = ps.training.compute_average_loss(losses, global_batch_size=4)
        tracked.update_state(loss)
        return loss

    losses = ps.PerReplica([np.array([2, 3], np.float32), np.array([4, 5], np.float32)])
    parts = strategy.run(step, args=(losses,))
    assert float(strategy.reduce("SUM", parts)) == 3.5
    assert float(tracked.result()) == 1.75


@pytest.mark.slow
def test_the_gradient_for_an_empty_share_is_a_number() -> None:
    gradient = jax.grad(lambda scale: ps.training.compute_average_loss(jnp.zeros((0,)) * scale, global_batch_size=0))(
        1.0
    )
    assert float(gradient) == 0


def test_what_can_be_no_loss_is_refused() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="reduction=None"):
        ps.training.compute_average_loss(np.float32(1), global_batch_size=4)
    with pytest.raises(ps.InvalidTypeError, match="floating-point"):
        ps.training.compute_average_loss(np.arange(3), global_batch_size=4)
    with pytest.raises(ps.InvalidArgumentError, match="outside strategy.run"):
        ps.training.compute_average_loss(np.ones(3, np.float32))
    with pytest.raises(ps.InvalidTypeError, match='integer or "actual"'):
        ps.training.compute_average_loss(np.ones(3, np.float32), global_batch_size=2.5)
    with pytest.raises(ps.InvalidArgumentError, match="must not be negative"):
        ps.training.compute_average_loss(np.ones(3, np.float32), global_batch_size=-1)


def test_regularisation_is_divided_by_the_replicas() -> None:
    strategy = mirrored(4)
    parts = strategy.run(lambda: ps.training.scale_regularization_loss([jnp.array([1.0, 2.0]), 5.0]))
    assert [float(part) for part in parts.values] == [2, 2, 2, 2]
    assert float(strategy.run(lambda: ps.training.scale_regularization_loss([])).values[0]) == 0
    with pytest.raises(
        ps.InvalidArgumentError,
        match="scale_regularization_loss was called outside strategy.run.*needs no scaling there",
    ):
        ps.training.scale_regularization_loss(1.0)


def test_a_regularisation_by_the_input_adds_nothing_without_input() -> None:
    """`Layer.add_loss` of a mean over the rows is NaN for a share without rows; weight decay still counts there."""

    def step(rows):
        return ps.training.scale_regularization_loss([jnp.mean(rows), 4.0])

    strategy = mirrored(2)
    parts = strategy.run(step, args=(ps.PerReplica([np.array([2, 6], np.float32), np.zeros(0, np.float32)]),))
    assert [float(part) for part in parts.values] == [4, 2]
    parts = strategy.run(step, args=(ps.PerReplica([np.array([np.nan, 6], np.float32), np.ones(1, np.float32)]),))
    assert np.isnan(float(parts.values[0]))  # of rows that are there a NaN stays one
