"""Keras steps that would give wrong numbers in silence, and are refused when they are traced."""

import sys

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

ROWS = np.ones((8, 3), np.float32)


def batch_of(strategy: ps.Strategy, rows: np.ndarray = ROWS):
    return next(iter(strategy.distribute_dataset(ps.Dataset.from_tensors(rows))))


def dense() -> keras.Sequential:
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    model.build((None, 3))
    return model


@pytest.fixture
def strategy() -> ps.MirroredStrategy:
    return mirrored(2)


def train(model, optimizer, rows):
    def loss():
        return ps.training.compute_average_loss(model(rows)[:, 0] ** 2)

    value, gradients = ps.keras.value_and_grad(loss, model.trainable_variables)()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return value


# Variables from outside the scope.


def test_a_metric_made_outside_the_scope_is_named(strategy) -> None:
    outside = keras.metrics.Mean(name="outside_mean")
    with pytest.raises(ps.InvalidArgumentError, match=r"outside_mean/total, which was made outside strategy\.scope"):
        strategy.run(lambda rows: outside.update_state(rows), args=(batch_of(strategy),))


@pytest.mark.slow
def test_a_model_or_an_optimiser_made_outside_the_scope_is_refused(strategy) -> None:
    outside = dense(), keras.optimizers.SGD(0.1)
    with strategy.scope():
        inside = dense(), keras.optimizers.SGD(0.1)
        other = keras.optimizers.SGD(0.1)
    batch = batch_of(strategy)
    for model, optimizer, name in [(outside[0], other, "kernel"), (inside[0], outside[1], "(SGD|sgd.*)/iteration")]:
        with pytest.raises(ps.InvalidArgumentError, match=f"variable .*{name}, which was made outside"):
            strategy.run(lambda rows, m=model, o=optimizer: train(m, o, rows), args=(batch,))
    strategy.run(lambda rows: train(*inside, rows), args=(batch,))


def test_a_ragged_step_and_many_steps_refuse_them_too(strategy) -> None:
    outside = keras.metrics.Mean()
    steps = strategy.distribute_dataset(ps.Dataset.range(7).batch(4))
    with pytest.raises(ps.InvalidArgumentError, match="made outside"):
        strategy.run_steps(lambda rows: outside.update_state(rows), iter(steps), 2)
    with pytest.raises(ps.InvalidArgumentError, match="made outside"):
        strategy.run(lambda rows: outside.update_state(rows), args=(batch_of(strategy, ROWS[:3]),))


def test_what_a_step_only_reads_may_come_from_anywhere(strategy) -> None:
    weight = keras.Variable(3.0)
    assert float(strategy.run(lambda: weight * 2).values[1]) == 6


@pytest.mark.slow
def test_objects_made_inside_may_make_their_variables_later(strategy) -> None:
    with strategy.scope():
        built_outside, built_by_the_step = (
            keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")]) for _ in range(2)
        )
        optimizers = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1, momentum=0.9)
    built_outside.build((None, 3))

    def step(rows):
        built_by_the_step(rows)
        return [train(*pair, rows) for pair in zip((built_outside, built_by_the_step), optimizers)]

    first, second = (
        [float(strategy.reduce("SUM", loss)) for loss in strategy.run(step, args=(batch_of(strategy),))]
        for _ in range(2)
    )
    assert second < first


@pytest.mark.slow
def test_a_step_runs_inside_the_scope_that_its_model_was_made_in(strategy) -> None:
    with strategy.scope():
        model, optimizer = dense(), keras.optimizers.SGD(0.01)
        with strategy.scope():
            metric = keras.metrics.Mean()

        def step(rows):
            value = train(model, optimizer, rows)
            metric.update_state(value)
            return value

        strategy.run(step, args=(batch_of(strategy),))
    strategy.run(step, args=(batch_of(strategy),))
    assert int(metric.count.value) == 4


def test_an_object_at_the_place_of_a_forgotten_one_is_another(strategy) -> None:
    with strategy.scope():
        forgotten = [keras.Variable(0.0) for _ in range(20)]
    del forgotten
    outside = [keras.Variable(0.0, name="new") for _ in range(20)]
    with pytest.raises(ps.InvalidArgumentError, match="new, which was made outside"):
        strategy.run(lambda: len([variable.assign(variable + 1) for variable in outside]))


# Losses that average.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "differentiated"),
    [("sum_over_batch_size", True), ("mean", False), ("mean_with_sample_weight", True)],
)
def test_a_loss_that_averages_is_refused_where_it_is_called(strategy, reduction: str, differentiated: bool) -> None:
    with strategy.scope():
        model, loss = dense(), keras.losses.MeanSquaredError(reduction=reduction)

    def step(rows):
        def value():
            return loss(rows[:, :1], model(rows))

        return ps.keras.value_and_grad(value, model.trainable_variables)()[0] if differentiated else value()

    message = rf"'mean_squared_error' has reduction='{reduction}'.*reduction=None.*compute_average_loss.*\"sum\""
    for rows in (ROWS, ROWS[:3]):
        with pytest.raises(ps.InvalidArgumentError, match=message) as raised:
            strategy.run(step, args=(batch_of(strategy, rows),))
        assert "return loss(rows[:, :1], model(rows))" in [str(line.statement).strip() for line in raised.traceback]
    assert sys.getprofile() is None


@pytest.mark.slow
@pytest.mark.parametrize("reduction", [None, "none", "sum"])
def test_losses_that_do_not_average_are_welcome(strategy, reduction: str | None) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    total = strategy.run(lambda rows: jnp.sum(loss(rows * 0, rows)), args=(batch_of(strategy),))
    assert float(total.values[0]) == 4


@pytest.mark.slow
def test_metrics_may_average_and_so_may_losses_outside_of_run(strategy) -> None:
    with strategy.scope():
        metric = keras.metrics.MeanSquaredError()
    loss = keras.losses.MeanSquaredError()
    assert float(loss(ROWS * 0, ROWS)) == 1
    strategy.run(lambda rows: metric.update_state(rows * 0, rows), args=(batch_of(strategy),))
    assert float(metric.result()) == 1


def test_an_average_is_refused_under_a_profiler_too(strategy) -> None:
    calls = []

    def profiler(frame, event, argument):
        calls.append(event)

    loss = keras.losses.MeanSquaredError()
    sys.setprofile(profiler)
    try:
        with pytest.raises(ps.InvalidArgumentError, match="reduction='sum_over_batch_size'"):
            strategy.run(lambda rows: loss(rows, rows), args=(batch_of(strategy),))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert "call" in calls
