"""Keras models, optimizers and metrics whose variables are on parameter servers."""

import gc
from collections.abc import Iterator

import jax
import keras
import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.slow  # Keras in four processes

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
WEIGHTS = np.full((3, 1), 2.0, np.float32)
TRAINED: list[keras.Model] = []


@pytest.fixture(scope="module")
def strategy() -> Iterator[ps.ParameterServerStrategy]:
    partitioner = ps.parameter_server.FixedShardsPartitioner(2)
    with ps.ParameterServerStrategy(num_workers=1, num_ps=2, variable_partitioner=partitioner) as strategy:
        ps.ClusterCoordinator(strategy)
        yield strategy
        weights = [model.get_weights() for model in TRAINED]
    for model, before in zip(TRAINED, weights, strict=True):  # they have outlived the servers
        for own, newest in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(own, newest)


def a_model() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])


def test_optimizer_weights_and_metrics_equal_an_undisturbed_loop(strategy) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    with strategy.scope():
        model, metric = a_model(), keras.metrics.MeanSquaredError()
        optimizer = keras.optimizers.Adam(schedule)
        optimizer.build(model.trainable_variables)
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())

    def gradients_of(of):
        def loss(weights, x, y):
            predicted, _ = of.stateless_call(weights, [], x)
            return jax.numpy.mean((predicted - y) ** 2), predicted

        return jax.grad(loss, has_aux=True)

    def step(rows):
        x, y = X[rows], Y[rows]
        gradients, predicted = gradients_of(model)([v.value for v in model.trainable_variables], x, y)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(y, predicted)
        return float(metric.count)

    counts = [strategy.coordinator.schedule(step, args=(list(range(n, n + 8)),)).fetch() for n in (0, 8, 16)]
    expected, expected_metric = keras.optimizers.Adam(schedule), keras.metrics.MeanSquaredError()
    for begin in (0, 8, 16):
        rows = slice(begin, begin + 8)
        weights = [v.value for v in alone.trainable_variables]
        gradients, predicted = gradients_of(alone)(weights, X[rows], Y[rows])
        expected.apply(gradients, alone.trainable_variables)
        expected_metric.update_state(Y[rows], predicted)

    assert counts == [8, 16, 24]
    for variable, other in zip(model.weights + optimizer.variables, alone.weights + expected.variables, strict=True):
        assert variable.shape == other.shape
        np.testing.assert_allclose(variable.value, other.value, rtol=1e-5, atol=1e-6, err_msg=variable.path)
    np.testing.assert_allclose(metric.result(), expected_metric.result(), rtol=1e-6)
    metric.reset_state()
    model.trainable_variables[0].assign(np.full((3, 4), 2.0))
    optimizer.variables[2].assign(np.full((3, 4), 3.0))  # a slot of two shards

    def weight():
        return float(model.trainable_variables[0].value.min()), float(metric.count)

    assert strategy.coordinator.schedule(weight).fetch() == (2.0, 0.0)
    assert np.asarray(optimizer.variables[2].value).tolist() == [[3.0] * 4] * 3


def test_workers_release_variables_of_forgotten_models(strategy) -> None:
    def held():
        gc.collect()
        return sum(type(found).__name__ == "ServedVariable" for found in gc.get_objects())

    def schedule_use_of(model):
        assert strategy.coordinator.schedule(lambda: float(model.weights[0].value[0, 0])).fetch() == 2.0

    before = strategy.coordinator.schedule(held).fetch()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer=lambda *_, **__: WEIGHTS)]
        )
    schedule_use_of(model)
    assert strategy.coordinator.schedule(held).fetch() == before + 2
    del model
    for step in range(300):  # more functions than are kept for their own sake
        strategy.coordinator.schedule(lambda step=step: step)
    assert strategy.coordinator.schedule(held).fetch() == 0


@pytest.mark.extended
def test_fit_evaluates_here_and_counts_every_row_once(strategy) -> None:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.02), loss="mse", metrics=["mae"], steps_per_execution=2)
    TRAINED.append(model)
    frozen = model.layers[0].get_weights()[0]

    def dataset_fn(context):
        dataset = ps.Dataset.from_tensor_slices((X, Y)).repeat()
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8)

    whole = ps.Dataset.from_tensor_slices((X, Y)).batch(16)
    seen = []
    batches = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"])))
    history = model.fit(
        dataset_fn, epochs=2, steps_per_epoch=25, validation_data=whole, verbose=0, callbacks=[batches]
    ).history
    assert [batch for batch, _ in seen] == [*range(1, 25, 2), 24] * 2
    assert int(model.optimizer.iterations.value) == 50
    assert float(model.metrics[0].count) == 25 * 8
    assert history["val_loss"][1] < history["loss"][0] < 3
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], frozen)
    assert abs(model.layers[1].get_weights()[2]).min() > 0  # its moving mean
    assert model.evaluate(X, Y, verbose=0) == pytest.approx([history["val_loss"][1], history["val_mae"][1]], rel=1e-5)
    assert model.predict(whole, verbose=0).shape == (32, 1)
    assert float(model.metrics[0].count) == 25 * 8  # evaluation has counted in copies

    finite = ps.Dataset.from_tensor_slices((X, Y)).batch(8)
    with pytest.raises(ps.OutOfRangeError, match=r"use dataset.repeat\(\)"):
        model.fit(finite, steps_per_epoch=50, verbose=0)
    with pytest.raises(ps.InvalidArgumentError, match="takes steps_per_epoch"):
        model.fit(finite, verbose=0)
    with pytest.raises(ps.InvalidArgumentError, match="make elements of"):
        model.fit(X, y=Y, steps_per_epoch=1)
    with pytest.raises(ps.InvalidArgumentError, match="takes arguments by name"):
        model.fit(finite, None, 8)


def test_callbacks_end_fit_and_see_the_optimizers_iterations(strategy) -> None:
    with strategy.scope():
        model = a_model()
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
    rows = strategy.coordinator.create_per_worker_dataset(ps.Dataset.from_tensor_slices((X, Y)).repeat().batch(8))
    seen = []

    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            self.model.stop_training |= batch == 2

        def on_epoch_end(self, epoch, logs=None):
            seen.append(f"end of epoch {epoch}")

    model.fit(rows, epochs=5, steps_per_epoch=10, verbose=0, callbacks=[Stopping()])
    assert seen == [0, 1, 2, 3, "end of epoch 0"]  # the fourth was queued when the third had ended

    def fail(batch, logs):
        raise KeyError("no such label")

    failing = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(KeyError, match="no such label"):
        model.fit(rows, steps_per_epoch=3, verbose=0, callbacks=[failing])
    assert strategy.coordinator.done()
    iterations = []
    reading = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    reading.on_test_end = lambda logs=None: iterations.append(int(model.optimizer.iterations.value))
    model.evaluate(X, Y, verbose=0, callbacks=[reading])
    assert iterations == [6]  # four of the first fit, and two that were queued when the callback failed


def test_fit_refuses_a_report_of_what_the_workers_read(strategy) -> None:
    with strategy.scope():
        model = a_model()
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
    rows = ps.Dataset.from_tensor_slices((X, Y)).repeat().batch(8)
    with pytest.raises(ps.InvalidArgumentError, match="under a ps.ParameterServerStrategy the workers read theirs"):
        model.fit(lambda _: rows, steps_per_epoch=3, verbose=0, callbacks=[ps.keras.WriteReport("run.json")])


def test_fit_refuses_models_that_it_cannot_train(strategy) -> None:
    class OwnStep(keras.Sequential):
        def train_step(self, *args):
            raise NotImplementedError

    with strategy.scope():
        model, own, unbuilt = a_model(), OwnStep([keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(1)])
        own.compile("sgd", loss="mse")
        unbuilt.compile("sgd", loss="mse")
    empty = ps.Dataset.from_tensor_slices((X[:0], Y[:0])).batch(8)
    for refused, match in ((model, "needs model.compile"), (own, "OwnStep has its own train_step")):
        with strategy.scope(), pytest.raises(ps.InvalidArgumentError, match=match):
            refused.fit(empty, steps_per_epoch=1, verbose=0)
    with pytest.raises(ps.InvalidArgumentError, match="got a dataset without any batch"):
        unbuilt.fit(empty, steps_per_epoch=1, verbose=0)


def test_a_compiled_models_optimizer_is_built_for_its_first_function(strategy) -> None:
    with strategy.scope():
        model = a_model()
        model.compile(keras.optimizers.SGD(0.5), loss="mse")
    before = model.get_weights()
    optimizer = model.optimizer

    def step():
        optimizer.apply([np.ones(weight.shape, np.float32) for weight in model.trainable_variables])

    strategy.coordinator.schedule(step).fetch()
    for own, first in zip(model.get_weights(), before, strict=True):
        np.testing.assert_allclose(own, first - 0.5, rtol=1e-6)


@pytest.mark.parametrize("length", [2, 1 << 14])
def test_what_functions_add_to_variables_without_gradients_is_summed(strategy, length) -> None:
    with strategy.scope():
        total = keras.Variable(np.zeros(length), trainable=False, dtype="float32")
        other = keras.Variable(np.full(length, 5.0), trainable=False, dtype="float32")

    def add(number):
        total.assign_add(np.full(length, number, np.float32))
        return float(other.value[0])

    for number in (1, 2, 4):
        assert strategy.coordinator.schedule(add, args=(number,)).fetch() == 5
    assert np.asarray(total.value).tolist() == [7] * length
    assert np.asarray(other.value).tolist() == [5] * length


def test_weights_without_an_optimizer_are_the_programs_at_each_read(strategy) -> None:
    with strategy.scope():
        model = a_model()

    def predict():
        return np.asarray(model(X)).tolist()

    np.testing.assert_allclose(strategy.coordinator.schedule(predict).fetch(), np.asarray(model(X)), rtol=1e-5)
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    expected = (4 * (X.sum(axis=1, keepdims=True) + 1) + 1).tolist()
    np.testing.assert_allclose(strategy.coordinator.schedule(predict).fetch(), expected, rtol=1e-5)


def test_misuse_of_scopes_is_refused_where_it_happens(strategy) -> None:
    coordinator = strategy.coordinator
    outside, unused = a_model(), keras.optimizers.SGD()
    with strategy.scope():
        model, optimizer = a_model(), keras.optimizers.SGD()
        unbuilt = keras.Sequential([keras.layers.Dense(1)])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        other = a_model()
    iterations = optimizer.iterations
    with pytest.raises(ps.InvalidArgumentError, match="LossScaleOptimizer cannot be on parameter servers"):
        coordinator.schedule(lambda: scaled.apply([]))
    with pytest.raises(
        ps.InvalidArgumentError, match=r"dense.*/kernel, which was made outside of its strategy's scope"
    ):
        coordinator.schedule(lambda: outside(X))
    with pytest.raises(ps.InvalidArgumentError, match="optimizer '(?i:sgd).*', which was made outside"):
        coordinator.schedule(lambda: unused.apply([]))
    with pytest.raises(ps.InvalidArgumentError, match=r"optimizer.build\(model.trainable_variables\)"):
        coordinator.schedule(lambda: optimizer.apply([]))
    with pytest.raises(ps.InvalidArgumentError, match="is not built, so that it has no variables"):
        coordinator.schedule(lambda: unbuilt(X))
    for built in (False, True):
        if built:
            optimizer.build(model.trainable_variables)
            coordinator.schedule(lambda: len(model.weights)).fetch()  # which brings its variables to the servers
        with pytest.raises(ps.InvalidArgumentError, match="iteration belongs to an optimizer, of which functions"):
            coordinator.schedule(lambda: int(iterations.value))

    def assign():
        model.trainable_variables[0].assign(np.zeros((3, 4)))

    def apply_some():
        optimizer.apply([np.zeros((3, 4))], model.trainable_variables[:1])

    def apply_to_another():
        optimizer.apply([np.zeros(weight.shape) for weight in model.trainable_variables], other.trainable_variables)

    refused = ((assign, "only their optimizer changes"), (apply_some, "all 4 variables"))
    for function, match in (
        *refused,
        (apply_to_another, "a gradient of '.*dense.*/kernel', with which it was not built"),
    ):
        with pytest.raises(ps.InvalidArgumentError, match=match):
            coordinator.schedule(function).fetch()
        with pytest.raises(ps.InvalidArgumentError):
            coordinator.join()


@pytest.mark.extended
def test_an_optimizer_with_variables_from_outside_the_scope_is_refused(strategy) -> None:
    outside = a_model()

    def use_it():
        with strategy.scope():
            optimizer = keras.optimizers.SGD()
        optimizer.build(outside.trainable_variables)
        with pytest.raises(ps.InvalidArgumentError, match="was built with .*dense.*/kernel, which was made outside"):
            strategy.coordinator.schedule(lambda: optimizer.apply([]))

    use_it()
    gc.collect()  # as long as this optimizer is there no function can be scheduled
