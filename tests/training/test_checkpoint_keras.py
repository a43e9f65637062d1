"""A Keras model, its optimizer, a metric and the place in the data, with a strategy, without one, and with another."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps

rng = np.random.default_rng(0)
FEATURES, LABELS = rng.random((24, 4), np.float32), rng.random((24, 1), np.float32)


def mirrored(replicas: int) -> ps.MirroredStrategy:
    return ps.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])


def make_dataset(batch: int = 8) -> ps.Dataset:
    return ps.Dataset.from_tensor_slices((FEATURES, LABELS)).shuffle(24, seed=5).repeat().batch(batch)


def make_model(width: int = 3, name: str = "head") -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1, name=name)])


@dataclass
class Training:
    """A model and all that belongs to its training, made anew, and therefore with other names of Keras's choosing."""

    model: keras.Model
    optimizer: keras.Optimizer
    metric: keras.Metric

    @classmethod
    def make(cls, width: int = 3) -> "Training":
        model = make_model(width)
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        return cls(model, optimizer, keras.metrics.MeanSquaredError())

    @property
    def checkpoint(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "metrics": [self.metric]}

    @property
    def variables(self) -> list[list[keras.Variable]]:
        return [list(self.model.trainable_variables), list(self.optimizer.variables), list(self.metric.variables)]

    def step(self, values: Any, batch: Any) -> Any:
        (weights, optimizer, metric), (features, labels) = values, batch
        replica = ps.get_replica_context()

        def loss(weights: Any) -> Any:
            predictions, _ = self.model.stateless_call(weights, [], features)
            return jnp.sum((predictions - labels) ** 2) / (len(labels) * replica.num_replicas_in_sync), predictions

        gradients, predictions = jax.grad(loss, has_aux=True)(weights)
        gradients = replica.all_reduce("sum", gradients)
        weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
        updated = self.metric.stateless_update_state(metric, labels, predictions)
        grown = [replica.all_reduce("sum", new - old) for new, old in zip(updated, metric, strict=True)]
        return weights, optimizer, [old + more for old, more in zip(metric, grown, strict=True)]

    def train(self, strategy: ps.Strategy, iterator: Iterator[Any], steps: int) -> None:
        for _ in range(steps):
            values = [[variable.value for variable in group] for group in self.variables]
            result = strategy.local_results(strategy.run(self.step, args=(values, next(iterator))))[0]
            for group, new in zip(self.variables, result, strict=True):
                for variable, value in zip(group, new, strict=True):
                    variable.assign(value)

    def values(self) -> list[Any]:
        return [np.asarray(variable.value) for group in self.variables for variable in group]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """A checkpoint after three steps on four replicas, and the values after three more."""
    keras.utils.set_random_seed(0)  # a weight that comes near zero would have all its digits in rounding
    strategy, training = mirrored(4), Training.make()
    with iter(strategy.distribute_dataset(make_dataset())) as iterator:
        training.train(strategy, iterator, 3)
        path = ps.Checkpoint(**training.checkpoint, iterator=iterator).save(tmp_path_factory.mktemp("saved") / "ckpt")
        training.train(strategy, iterator, 3)
    return path, training.values()


@pytest.mark.extended
@pytest.mark.parametrize("replicas", [4, 2, pytest.param(1, marks=pytest.mark.extended)])
def test_training_goes_on_as_if_nothing_had_been(saved: tuple[str, list[Any]], replicas: int) -> None:
    path, expected = saved
    strategy, training = mirrored(replicas), Training.make()
    with iter(strategy.distribute_dataset(make_dataset())) as iterator:
        restored = ps.Checkpoint(**training.checkpoint, iterator=iterator).restore(path)
        assert restored["metrics"] == [training.metric]
        training.train(strategy, iterator, 3)
    for found, value in zip(training.values(), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=0 if replicas == 4 else 1e-5)


@pytest.mark.slow
def test_it_is_restored_without_a_strategy(saved: tuple[str, list[Any]]) -> None:
    path, expected = saved
    training = Training.make()
    training.model.compile(optimizer=training.optimizer, loss="mse")
    with iter(make_dataset()) as iterator:
        ps.Checkpoint(**training.checkpoint, iterator=iterator).restore(path)
        for _ in range(3):
            training.model.train_on_batch(*next(iterator))
    for found, value in zip(training.values()[:4], expected[:4], strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5)


def test_variables_stay_where_they_lie(saved: tuple[str, list[Any]]) -> None:
    path, _ = saved
    training = Training.make()
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("replica",)), PartitionSpec())
    for variable in training.model.variables:
        variable.assign(jax.device_put(variable.value, everywhere))
    ps.Checkpoint(**training.checkpoint).restore(path, partial=True)
    assert {variable.value.sharding for variable in training.model.variables} == {everywhere}
    assert not any(variable.value.committed for variable in training.optimizer.variables)


@pytest.mark.slow
def test_another_model_is_refused_and_nothing_is_changed(saved: tuple[str, list[Any]]) -> None:
    path, _ = saved
    training = Training.make(width=5)
    before = training.values()
    message = r"another 'model': expected model/dense/kernel \(float32, shape \[4, 5\]\), got .*shape \[4, 3\]"
    with iter(mirrored(2).distribute_dataset(make_dataset())) as iterator:
        with pytest.raises(ps.StateMismatchError, match=message):
            ps.Checkpoint(**training.checkpoint, iterator=iterator).restore(path)
        assert iterator.state_dict()["position"] == iter(make_dataset()).state_dict()["position"]
    for found, value in zip(training.values(), before, strict=True):
        np.testing.assert_array_equal(found, value)
    messages = [
        r"another 'model': .*; expected model/dense/bias .* \[5\]\), got .* \[3\]\); expected model/head/kernel",
        r", and another 'optimizer': expected optimizer/.*kernel.* \[4, 5\]\), got .*; and 1 more$",
    ]
    for message in messages:
        with pytest.raises(ps.StateMismatchError, match=message):
            ps.Checkpoint(**training.checkpoint).restore(path, partial=True)
    with pytest.raises(ps.StateMismatchError, match="expected model/output/kernel .*, got model/head/kernel"):
        ps.Checkpoint(model=make_model(name="output")).restore(path, partial=True)
    deeper = make_model()
    deeper.add(keras.layers.Dense(1))
    with pytest.raises(ps.StateMismatchError, match="another 'model': expected model/dense_1/kernel .*got nothing"):
        ps.Checkpoint(model=deeper).restore(path, partial=True)


def test_another_dataset_leaves_the_model_as_it_was(saved: tuple[str, list[Any]]) -> None:
    path, _ = saved
    training = Training.make()
    before = training.values()
    with (
        iter(mirrored(2).distribute_dataset(make_dataset(batch=6))) as iterator,
        pytest.raises(ps.StateMismatchError, match="saved from another dataset"),
    ):
        ps.Checkpoint(**training.checkpoint, iterator=iterator).restore(path)
    for found, value in zip(training.values(), before, strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_what_is_not_built_is_built_by_restore(saved: tuple[str, list[Any]], tmp_path: Path) -> None:
    path, _ = saved
    training = Training.make()
    training.model = keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(1, name="head")])
    training.optimizer = keras.optimizers.Adam(0.01)
    with pytest.raises(
        ps.InvalidArgumentError, match="model is a Sequential that is not built yet.*to save: call it once"
    ):
        ps.Checkpoint(model=training.model).save(tmp_path / "other")
    built = Training.make()
    for one in (built, training):
        ps.Checkpoint(**one.checkpoint).restore(path, partial=True)
        one.model.compile(optimizer=one.optimizer, loss="mse")
        one.model.train_on_batch(FEATURES, LABELS)
    assert int(training.optimizer.iterations) == 4
    for found, expected in zip(training.values(), built.values(), strict=True):
        np.testing.assert_array_equal(found, expected)


class Odd(keras.Model):  # type: ignore[misc]  # Keras has no types
    """Says nothing about how it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs["x"])

    def get_build_config(self) -> None:
        return None


@pytest.mark.slow
def test_what_cannot_be_built_must_be_built_first(saved: tuple[str, list[Any]], tmp_path: Path) -> None:
    path, _ = saved
    with pytest.raises(
        ps.InvalidArgumentError, match=r"optimizer is a Adam that.*to restore: call optimizer.build\(model.trainable"
    ):
        ps.Checkpoint(optimizer=keras.optimizers.Adam()).restore(path, partial=True)
    odd = Odd()
    odd({"x": FEATURES})
    path = ps.Checkpoint(odd=odd).save(tmp_path / "ckpt")
    with pytest.raises(ps.InvalidArgumentError, match=r"odd is a Odd that is not built yet.*or model.build"):
        ps.Checkpoint(odd=Odd()).restore(path)


def make_compiled(width: int = 3) -> keras.Model:
    model = make_model(width)
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


@pytest.mark.extended
def test_a_compiled_model_brings_its_optimizer_and_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_compiled()
    model.fit(FEATURES, LABELS, batch_size=8, shuffle=False, verbose=0)
    path = ps.Checkpoint(model=model).save(tmp_path / "ckpt")
    metrics = model.get_metrics_result()
    other, fresh = make_compiled(), make_compiled()
    other.evaluate(FEATURES[:5], LABELS[:5], verbose=0)
    ps.Checkpoint(model=other).restore(path)
    assert caplog.messages == []
    assert other.get_metrics_result() == metrics
    ps.Checkpoint(model=fresh).restore(path)  # its metrics are not made before its first batch
    (message,) = caplog.messages
    assert "mae/count" in message and message.endswith("they start from zero")
    for one in (model, other, fresh):
        one.fit(FEATURES, LABELS, batch_size=8, shuffle=False, verbose=0)
        assert int(one.optimizer.iterations) == 6
        for found, expected in zip(one.variables, model.variables, strict=True):
            np.testing.assert_array_equal(found.value, expected.value)


@pytest.mark.slow
def test_compiled_and_not_compiled_are_told_apart(tmp_path: Path) -> None:
    compiled, plain = make_compiled(), make_model()
    path = ps.Checkpoint(model=compiled).save(tmp_path / "compiled")
    message = "expected nothing, got model/optimizer/iteration.*compile the model before, or omit"
    with pytest.raises(ps.StateMismatchError, match=message):
        ps.Checkpoint(model=plain).restore(path)
    ps.Checkpoint(model=plain).restore(path, partial=True)
    np.testing.assert_array_equal(plain(FEATURES), compiled(FEATURES))
    path = ps.Checkpoint(model=plain).save(tmp_path / "plain")
    message = "expected model/optimizer/iteration.*got nothing.*saved before it was compiled: restore it before compile"
    with pytest.raises(ps.StateMismatchError, match=message):
        ps.Checkpoint(model=make_compiled()).restore(path)


def towers(*names: str) -> keras.Model:
    """Two towers of equal shapes, made in the order of their names."""
    made = {
        name: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(2)], name=name)
        for name in names
    }
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Concatenate()([made[name](inputs) for name in names]))
    model.compile("adam", "mse")
    return model


@pytest.mark.slow
def test_names_that_were_given_count_in_whatever_order_a_model_is_built(tmp_path: Path) -> None:
    model = towers("tower_1", "tower_2")
    model.fit(FEATURES, np.tile(LABELS, 4), verbose=0)
    other = towers("tower_2", "tower_1")
    path = ps.Checkpoint(model=model).save(tmp_path / "ckpt")
    ps.Checkpoint(model=other).restore(path)
    for name in ("tower_1", "tower_2"):
        for found, expected in zip(other.get_layer(name).variables, model.get_layer(name).variables, strict=True):
            np.testing.assert_array_equal(found.value, expected.value)
    slots = [
        {v.path.split("tower_")[1].split("_")[0] + str(v.shape) + v.path[-8:]: float(v.value.sum()) for v in slots}
        for slots in ([v for v in one.optimizer.variables if "kernel" in v.path] for one in (model, other))
    ]
    assert slots[0] == slots[1]
    with pytest.raises(
        ps.StateMismatchError, match="expected model/tower_3/dense/kernel.*got model/tower_1/dense/kernel"
    ):
        ps.Checkpoint(model=towers("tower_3", "tower_2")).restore(path)


@pytest.mark.slow
def test_layers_with_numbers_in_another_order_are_refused(tmp_path: Path) -> None:
    def model(*numbers: int) -> keras.Model:
        return keras.Sequential(
            [keras.Input((2,)), *(keras.layers.Dense(2, name=f"dense_{number}") for number in numbers)]
        )

    path = ps.Checkpoint(model=model(8, 9)).save(tmp_path / "ckpt")
    ps.Checkpoint(model=model(3, 12)).restore(path)
    with pytest.raises(ps.StateMismatchError, match=r"layers model/dense, model/dense_1, \.\.\. come in another order"):
        ps.Checkpoint(model=model(9, 8)).restore(path)


@pytest.mark.slow
def test_single_variables_and_seeds(tmp_path: Path) -> None:
    variable, seeds = keras.Variable([1.0, 2.0]), keras.random.SeedGenerator(4)
    keras.random.normal((2,), seed=seeds)
    path = ps.Checkpoint(variable=variable, seeds=seeds).save(tmp_path / "ckpt")
    expected = keras.random.normal((2,), seed=seeds)
    other, fresh = keras.Variable([0.0, 0.0]), keras.random.SeedGenerator(1)
    ps.Checkpoint(variable=other, seeds=fresh).restore(path)
    np.testing.assert_array_equal(other.value, [1.0, 2.0])
    np.testing.assert_array_equal(keras.random.normal((2,), seed=fresh), expected)
