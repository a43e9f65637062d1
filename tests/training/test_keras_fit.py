"""`model.fit(dataset)`: Keras's own loops give the same numbers on any number of devices, and lose no row."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import penstock as ps
from penstock.report.report import load_report

random = np.random.default_rng(0)
FEATURES = random.normal(size=(30, 4)).astype("float32")
LABELS = random.normal(size=(30, 1)).astype("float32")
WEIGHTS = random.random(30, "float32")
NUMBERS = np.arange(30, dtype="int32")


def mirrored(replicas: int) -> ps.MirroredStrategy:
    return ps.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])


def rows(*columns: Any, batch: int = 8) -> ps.Dataset:
    """Batches of 8 over 30 rows: the last one has 6, which 4 devices do not divide."""
    return ps.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0]).batch(batch)


def small_model(optimizer: str) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(5, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    updates = keras.optimizers.SGD(0.01, momentum=0.9) if optimizer == "momentum" else optimizer
    model.compile(updates, "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


def plain_model() -> Any:
    """For what does not depend on the layers."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", weighted_metrics=["mse"])
    return model


def weights_of(model: Any) -> list[Any]:
    return [np.asarray(variable.value) for variable in model.weights]


class Seen(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Adds up its inputs' rows, one by one: what a compiled step has really seen."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.counts = self.add_weight(shape=(30,), initializer="zeros", trainable=False)

    def call(self, numbers: Any, training: bool = False) -> Any:
        if training:
            self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(keras.ops.cast(numbers, "int32"), 30), axis=0))
        return self.scale * keras.ops.cast(numbers, "float32")[:, None]


class Ledger(keras.callbacks.Callback):  # type: ignore[misc]
    """Which rows each epoch has seen, and after how many batches."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[float]] = []
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches[-1] += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(np.asarray(self.model.layers[0].counts.value).tolist())


def counting_model() -> Any:
    model = keras.Sequential([Seen()])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def shuffled() -> ps.Dataset:
    """Another order in each epoch, beginning with the first one."""
    return ps.Dataset.from_tensor_slices((FEATURES, LABELS, WEIGHTS)).shuffle(30, seed=3).batch(8)


@dataclass
class Trained:
    """A model after three epochs, and the numbers that they gave."""

    model: Any
    history: dict[str, list[float]]
    evaluated: Any
    predicted: Any


@cache  # tests of the same training need it once
def trained(replicas: int, optimizer: str) -> Trained:
    dataset = rows(FEATURES, LABELS, WEIGHTS)
    with mirrored(replicas).scope():
        model = small_model(optimizer)
        history = model.fit(shuffled(), epochs=3, validation_data=dataset, verbose=0).history
        return Trained(model, history, model.evaluate(dataset, verbose=0), model.predict(dataset, verbose=0))


def trained_on_arrays(optimizer: str) -> Trained:
    """As `trained`, without penstock and on one device."""
    model, dataset = small_model(optimizer), shuffled()
    arrays = {"sample_weight": WEIGHTS, "batch_size": 8, "verbose": 0}
    history: dict[str, list[float]] = {}
    for _ in range(3):
        features, labels, weights = (np.concatenate(column) for column in zip(*dataset, strict=True))
        validation = {"validation_data": (FEATURES, LABELS, WEIGHTS), "validation_batch_size": 8}
        given = arrays | validation | {"sample_weight": weights, "shuffle": False}
        for name, values in model.fit(features, labels, **given).history.items():
            history.setdefault(name, []).extend(values)
    evaluated = model.evaluate(FEATURES, LABELS, **arrays)
    return Trained(model, history, evaluated, model.predict(FEATURES, batch_size=8, verbose=0))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("optimizer", "replicas"),
    [
        ("momentum", 4),
        pytest.param("momentum", 1, marks=pytest.mark.extended),
        *(pytest.param("adam", replicas, marks=pytest.mark.long) for replicas in (1, 4)),
    ],
)
def test_the_numbers_are_those_of_arrays_without_penstock(optimizer: str, replicas: int) -> None:
    """Momentum has a state of its own, and shows gradients of a wrong size, to which Adam is blind."""
    expected, found = trained_on_arrays(optimizer), trained(replicas, optimizer)
    assert found.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5)
    for one, two in zip(weights_of(expected.model), weights_of(found.model), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.evaluated, expected.evaluated, rtol=1e-5)
    np.testing.assert_allclose(found.predicted, expected.predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [3, *(pytest.param(count, marks=pytest.mark.extended) for count in (1, 4))])
def test_each_epoch_sees_every_row_once(replicas: int) -> None:
    ledger = Ledger()
    with mirrored(replicas).scope():
        dataset = ps.Dataset.from_tensor_slices((NUMBERS, LABELS)).shuffle(30, seed=1).batch(8)
        counting_model().fit(dataset, epochs=2, callbacks=[ledger], verbose=0)
    assert ledger.epochs == [[1.0] * 30, [2.0] * 30]
    assert ledger.batches == [4, 4]


def first_of_each_epoch(fit: Callable[[ps.Dataset], object]) -> list[list[int]]:
    """The first two rows of each epoch that is read while fit is called with a shuffled dataset."""
    read: list[list[int]] = []

    def noted(numbers: Any, labels: Any) -> Any:
        read.append(numbers.tolist())
        return numbers, labels

    dataset = ps.Dataset.from_tensor_slices((NUMBERS, LABELS)).shuffle(30, seed=1).batch(30)
    fit(ps.Dataset.zip(dataset).map(noted))
    return [numbers[:2] for numbers in read]


@pytest.mark.slow
def test_epochs_are_the_datasets_though_keras_reads_a_batch_first() -> None:
    plain = ps.Dataset.from_tensor_slices(NUMBERS).shuffle(30, seed=1).batch(30)
    expected = [next(iter(plain))[:2].tolist() for _ in range(4)]

    def twice(dataset: ps.Dataset) -> None:
        with mirrored(2).scope():
            model = counting_model()
            model.fit(dataset, epochs=3, verbose=0)
            model.fit(dataset, verbose=0)

    found = first_of_each_epoch(twice)
    assert found == [expected[0], *expected]  # the look at the first batch, then four epochs


@pytest.mark.slow
def test_a_fit_goes_on_in_the_data_where_the_epoch_before_ended() -> None:
    ledger = Ledger()
    with mirrored(4).scope():
        dataset = rows(NUMBERS, LABELS, batch=10).repeat()
        counting_model().fit(dataset, epochs=3, steps_per_epoch=2, callbacks=[ledger], verbose=0)
    assert ledger.epochs == [[1.0] * 20 + [0.0] * 10, [2.0] * 10 + [1.0] * 20, [2.0] * 30]


@pytest.mark.slow
def test_the_total_of_the_progress_bar_is_known() -> None:
    totals: list[Any] = []
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: totals.append(callback.params["steps"]))
    with mirrored(4).scope():
        model = plain_model()
        model.fit(rows(FEATURES, LABELS), callbacks=[callback], verbose=0)
        model.fit(rows(FEATURES, LABELS).repeat(), steps_per_epoch=3, callbacks=[callback], verbose=0)
    assert totals == [4, 3]


def test_weights_and_the_moving_statistics_stay_whole_on_every_device() -> None:
    model = trained(4, "momentum").model
    for variable in [*model.variables, *model.optimizer.variables]:
        assert len(variable.value.sharding.device_set) == 4
        assert variable.value.is_fully_replicated, variable.path


@pytest.mark.slow
def test_full_batches_are_split_and_others_whole() -> None:
    data = ps.keras.as_input(rows(FEATURES, LABELS))
    with mirrored(4).scope():
        plain_model().fit(data, verbose=0)
        *full, (last, _) = data.get_jax_iterator()
    assert [{shard.data.shape for shard in x.addressable_shards} for x, _ in full] == [{(2, 4)}] * 3
    assert {shard.data.shape for shard in last.addressable_shards} == {(6, 4)}
    np.testing.assert_array_equal(np.concatenate([*(x for x, _ in full), last]), FEATURES)


@pytest.mark.slow
def test_keras_leaves_batches_where_they_are_on_accelerators_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it puts them on a device ahead of the steps, which JAX refuses for batches of several workers."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    data, read = ps.keras.as_input(rows(FEATURES, LABELS)), list[int]()
    noting = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: read.append(data.taken))
    with mirrored(2).scope():
        plain_model().fit(data, callbacks=[noting], verbose=0)
    assert read == [0, 1, 2, 3]


@pytest.mark.slow
def test_sample_weights_count() -> None:
    with mirrored(4).scope():
        model = plain_model()
        loss = model.evaluate(rows(FEATURES, LABELS, WEIGHTS), return_dict=True, verbose=0)
        errors = (model.predict(FEATURES, verbose=0) - LABELS)[:, 0] ** 2
    assert loss["weighted_mse" if "weighted_mse" in loss else "mse"] == pytest.approx(
        float(np.sum(errors * WEIGHTS) / np.sum(WEIGHTS)), rel=1e-5
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    "labels",
    [
        NUMBERS[:, None] % 3,
        np.eye(3, dtype=bool)[NUMBERS % 3],
        *(
            pytest.param(labels, marks=pytest.mark.extended)
            for labels in (NUMBERS % 3, NUMBERS % 3 == 1, np.eye(3)[NUMBERS % 3])
        ),
    ],
    ids=lambda labels: f"{labels.dtype}{labels.shape}",
)
def test_classes_weigh_as_with_arrays(labels: Any) -> None:
    weights = {0: 2.0, 2: 0.25}
    losses = []
    for strategy in (None, mirrored(4)):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else nullcontext():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            kind = keras.losses.CategoricalCrossentropy if labels.shape[-1] == 3 else "sparse_categorical_crossentropy"
            model.compile("sgd", kind(from_logits=True) if labels.shape[-1] == 3 else kind)
            given: Any = {"class_weight": weights, "epochs": 2, "verbose": 0}
            if strategy:
                losses.append(model.fit(rows(FEATURES, labels), **given).history["loss"])
            else:
                losses.append(model.fit(FEATURES, labels, batch_size=8, shuffle=False, **given).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_dictionaries_are_named_inputs() -> None:
    inputs = {name: keras.Input((2,), name=name) for name in ("left", "right")}
    model = keras.Model(inputs, keras.layers.Subtract()([inputs["left"], inputs["right"]]))
    model.compile("sgd", "mse")
    features = {"right": FEATURES[:, 2:], "left": FEATURES[:, :2]}
    with mirrored(4).scope():
        predicted = model.predict(rows(features), verbose=0)
    np.testing.assert_allclose(predicted, FEATURES[:, :2] - FEATURES[:, 2:], rtol=1e-6)


@pytest.mark.slow
def test_predictions_come_in_the_order_of_the_dataset() -> None:
    with mirrored(4).scope():
        model = counting_model()
        predicted = model.predict(rows(NUMBERS), verbose=0)
    assert predicted[:, 0].tolist() == list(range(30))


@pytest.mark.slow
def test_averaged_weights_stay_averages_in_the_next_fit() -> None:
    weights = []
    for replicas in (1, 4):
        keras.utils.set_random_seed(1)
        with mirrored(replicas).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), "mse")
            for _ in range(2):
                model.fit(rows(FEATURES, LABELS), verbose=0)
        weights.append(weights_of(model))
        assert int(model.optimizer.iterations.numpy()) == 8
    for one, four in zip(*weights):
        np.testing.assert_allclose(four, one, rtol=1e-5)


@pytest.mark.slow
def test_a_model_goes_from_one_strategy_to_another() -> None:
    model = plain_model()
    for strategy in (None, mirrored(4)):
        with strategy.scope() if strategy else nullcontext():
            model.fit(rows(FEATURES, LABELS), verbose=0)
            model.predict(FEATURES, verbose=0)
        assert len(model.variables[0].value.sharding.device_set) == (strategy.num_replicas_in_sync if strategy else 1)


@pytest.mark.slow
def test_a_row_of_each_example_does_not_split_a_variable() -> None:
    class Last(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.last = self.add_weight(shape=(8, 4), trainable=False)

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.last.assign(inputs)
            return inputs

    layer = Last()
    with mirrored(4).scope():
        model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(rows(FEATURES[:8], LABELS[:8]), verbose=0)
    assert layer.last.value.is_fully_replicated
    np.testing.assert_array_equal(layer.last.value, FEATURES[:8])


@pytest.mark.slow
def test_a_model_compiled_in_a_scope_trains_on_its_devices_outside() -> None:
    with mirrored(4).scope():
        model = plain_model()
    model.fit(rows(FEATURES, LABELS), verbose=0)
    assert len(model.variables[0].value.sharding.device_set) == 4


@pytest.mark.slow
def test_without_a_strategy_one_device_is_used() -> None:
    model = plain_model()
    model.fit(rows(FEATURES, LABELS), epochs=2, validation_data=rows(FEATURES, LABELS), verbose=0)
    assert len(model.variables[0].value.sharding.device_set) == 1
    assert model.predict(rows(FEATURES), verbose=0).shape == (30, 1)


@pytest.mark.slow
def test_a_dataset_of_unknown_length_is_read_to_its_end() -> None:
    ledger = Ledger()
    dataset = ps.Dataset.from_tensor_slices((NUMBERS, LABELS)).filter(lambda x, y: x % 2 == 0).batch(4)
    with mirrored(4).scope(), pytest.warns(UserWarning, match="ran out of data"):
        counting_model().fit(dataset, epochs=2, callbacks=[ledger], verbose=0)
    assert ledger.epochs == [[1.0, 0.0] * 15, [2.0, 0.0] * 15]


@pytest.mark.slow
def test_an_epoch_that_is_longer_than_the_first_is_read_to_its_end_too() -> None:
    def noted(x: Any, y: Any, generator: np.random.Generator) -> Any:
        return x, y, generator.random()

    def random_rows() -> ps.Dataset:
        dataset = ps.Dataset.from_tensor_slices((FEATURES, LABELS)).map(noted, seed=3)
        return dataset.filter(lambda x, y, drawn: drawn < 0.5).map(lambda x, y, drawn: (x, y)).batch(1)

    again = random_rows()
    lengths = [len(list(again)) for _ in range(3)]
    assert max(lengths) > lengths[0] + 1  # Keras asks for one step more than there was
    dataset = random_rows()
    model = plain_model()
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(dataset, epochs=3, verbose=0)
    assert int(model.optimizer.iterations.value) == sum(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_eight_calls_of_a_parallel_map_run_together_in_fit(replicas: int) -> None:
    meeting = threading.Barrier(8, timeout=20)

    def together(number: Any) -> Any:
        meeting.wait()  # every call ends only when eight are inside
        time.sleep(0.005)  # long enough for every call to be a task of its own
        return FEATURES[number % 30], LABELS[number % 30]

    pair = (ps.TensorSpec((4,), np.float32), ps.TensorSpec((1,), np.float32))
    dataset = ps.Dataset.range(4).map(together, num_parallel_calls=8, output_signature=pair).batch(4).repeat(8)
    with mirrored(replicas).scope():
        model = plain_model()
        model.fit(rows(FEATURES, LABELS, batch=4), verbose=0)  # it is built here, and looks at no batch in advance
        history = model.fit(dataset, epochs=2, verbose=0).history
    assert len(history["loss"]) == 2


@pytest.mark.slow
def test_a_generator_of_the_users_own_still_goes_into_fit() -> None:
    def batches() -> Iterator[Any]:
        yield FEATURES, LABELS

    with pytest.warns(UserWarning, match="ran out of data"):  # Keras says so of every generator
        history = plain_model().fit(batches(), shuffle=False, verbose=0).history
    assert len(history["loss"]) == 1


@pytest.mark.slow
def test_a_step_after_fit_takes_its_variables() -> None:
    strategy = mirrored(4)
    with strategy.scope():
        model = plain_model()
        model.fit(rows(FEATURES, LABELS), verbose=0)
        (batch,) = strategy.distribute_dataset(rows(FEATURES[:8]))
        outputs = strategy.gather(strategy.run(lambda x: model(x), args=(batch,)), axis=0)
    np.testing.assert_allclose(outputs, model.predict(FEATURES[:8], verbose=0), rtol=1e-5)


def refused(match: str, dataset: Any, error: type[Exception] = ps.InvalidArgumentError, **arguments: Any) -> None:
    model = plain_model()
    with mirrored(4).scope(), pytest.raises(error, match=match):
        model.fit(dataset, **arguments)


@pytest.mark.slow
def test_what_a_dataset_brings_itself_is_refused() -> None:
    refused("sample_weight=.*make elements of", rows(FEATURES, LABELS), sample_weight=WEIGHTS)
    refused("its own weights", rows(FEATURES, LABELS, WEIGHTS), class_weight={0: 1.0})
    refused("no labels", rows(FEATURES), class_weight={0: 1.0})
    refused("labels of shape", rows(FEATURES, np.zeros((30, 2, 2))), class_weight={0: 1.0})
    refused("dictionary of classes", rows(FEATURES, LABELS), ps.InvalidTypeError, class_weight=[1.0])
    refused(r"use dataset\.batch", rows(FEATURES, LABELS), batch_size=8)
    with mirrored(4).scope(), pytest.raises(ps.InvalidArgumentError, match="by name"):
        plain_model().fit(rows(FEATURES), LABELS)


@pytest.mark.slow
def test_data_that_no_model_can_take_is_refused() -> None:
    refused("at least one batch", rows(FEATURES).take(0))
    refused(r"give model\.fit steps_per_epoch=\.\.\.$", rows(FEATURES, LABELS).repeat())
    refused("batch", ps.Dataset.range(5), ps.ElementError)
    unbatched = ps.Dataset.from_tensor_slices((FEATURES, LABELS))
    refused(r"elements that are single rows need \.batch\(", unbatched, ps.ElementError)
    ragged = ps.Dataset.range(4).map(lambda n: (np.ones(n + 1, np.float32), 1.0)).ragged_batch(2)
    refused("use padded_batch in place of ragged_batch", ragged, ps.ElementError)
    refused("turn strings into numbers", rows(np.array(["a", "b"]), np.ones(2)), ps.InvalidTypeError)
    distributed = mirrored(4).distribute_dataset(rows(FEATURES))
    refused("give it the plain dataset", distributed, ps.InvalidTypeError)
    data = ps.keras.as_input(rows(FEATURES, LABELS))
    refused("make two of them", data, validation_data=data)
    refused("takes a dataset as validation_data where it trains on one", FEATURES, validation_data=data)
    with pytest.raises(ps.InvalidTypeError, match=r"takes a ps\.Dataset, got list"):
        ps.keras.as_input([1])


def test_strategies_without_devices_and_two_ways_to_split_are_refused() -> None:
    with ps.HostStrategy(2).scope(), pytest.raises(ps.InvalidArgumentError, match=r"use ps\.MirroredStrategy"):
        plain_model().fit(rows(FEATURES, LABELS))
    model, distribution = plain_model(), keras.distribution.DataParallel(devices=jax.devices())
    refusal = pytest.raises(ps.InvalidArgumentError, match="Keras's own distribution")
    with distribution.scope(), mirrored(4).scope(), refusal:
        model.fit(rows(FEATURES, LABELS))


def test_write_report_saves_each_epoch_and_fills_its_logs(tmp_path: Path) -> None:
    data = ps.keras.as_input(rows(FEATURES, LABELS))
    seen = []

    class Reads(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(load_report(tmp_path / "run.json").ranks[0].steps.count)

    write = ps.keras.WriteReport(tmp_path / "run.json", tmp_path / "run.html", metrics=True)
    history = plain_model().fit(data, epochs=2, callbacks=[write, Reads()], verbose=0).history
    assert seen == history["penstock/steps"] == [4, 4]
    assert data.report().ranks[0].steps.count == data.metrics()["penstock/steps"] == 4
    assert "batch at test_keras_fit.py" in (tmp_path / "run.html").read_text()


def test_write_report_on_devices_tells_of_the_steps_there(tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = plain_model()
    model.fit(rows(FEATURES, LABELS), callbacks=[ps.keras.WriteReport(tmp_path / "run.json")], verbose=0)
    names = [operator.name for operator in load_report(tmp_path / "run.json").ranks[0].operators]
    assert {"batch", "step"} <= set(names)


def test_a_report_that_cannot_be_written_stops_no_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write = ps.keras.WriteReport(tmp_path / "no" / "run.json")
    assert plain_model().fit(rows(FEATURES, LABELS), callbacks=[write], verbose=0).epoch == [0]
    assert "WriteReport has written nothing: the report was not written to '" in caplog.text


def test_write_report_without_anything_to_write_or_tell_of_is_refused() -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"nothing to write: WriteReport\('run.html'"):
        ps.keras.WriteReport()
    with pytest.raises(ps.InvalidArgumentError, match="give model.fit a ps.Dataset"):
        plain_model().fit(FEATURES, LABELS, callbacks=[ps.keras.WriteReport("run.json")], verbose=0)
