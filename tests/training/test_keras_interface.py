"""Whether Keras still has what penstock takes from it beyond its documentation: where this fails, Keras has changed."""

from typing import Any

import keras
import numpy as np
import pytest

import penstock as ps
from penstock.training.keras.interface import (
    DataAdapter,
    built_with,
    config_with_objects,
    has_value,
    jax_epoch_iterator,
    set_first_epoch,
    set_values,
    values_of,
)
from penstock.training.keras.objects import NOTED, was_seen

CHANGED = f"Keras {keras.__version__} has changed what penstock.training.keras.interface takes from it: "


def test_variables_keep_their_arrays_where_they_did() -> None:
    variable = keras.Variable(1.0)
    (value,) = values_of([variable])
    assert value is variable.value, CHANGED + "Variable._value"
    set_values([variable], [value + 1])
    assert float(variable.value) == 2, CHANGED + "Variable._value"
    with keras.StatelessScope():
        made = keras.Variable("zeros", shape=())
        assert not has_value(made), CHANGED + "variables made in a stateless scope"
    assert has_value(made), CHANGED + "a stateless scope no longer initialises what was made in it"


def test_stateless_scopes_know_the_scope_around_them() -> None:
    with keras.StatelessScope() as outer, keras.StatelessScope() as inner:
        assert inner.original_scope is outer, CHANGED + "StatelessScope.original_scope"
    assert outer.original_scope is None, CHANGED + "StatelessScope.original_scope"


@pytest.mark.parametrize("name", ["compile", "fit", "evaluate", "predict", "make_train_function"])
def test_models_inherit_the_methods_that_are_wrapped(name: str) -> None:
    definer = next(base for base in keras.Model.__mro__ if name in vars(base))
    assert hasattr(vars(definer)[name], "__wrapped__"), CHANGED + f"Model.{name}"
    assert getattr(keras.Sequential, name) is vars(definer)[name], CHANGED + f"Model.{name}"


@pytest.mark.parametrize("name", ["_get_iterator", "catch_stop_iteration"])
def test_batches_are_read_by_the_methods_that_are_wrapped(name: str) -> None:
    assert hasattr(getattr(jax_epoch_iterator(), name), "__wrapped__"), CHANGED + f"JAXEpochIterator.{name}"
    assert hasattr(jax_epoch_iterator()(np.ones((2, 1))), "_num_batches"), CHANGED + "EpochIterator._num_batches"


def test_fit_takes_adapters() -> None:
    data = ps.keras.as_input(ps.Dataset.range(4).batch(2))
    assert isinstance(data, DataAdapter)
    documented = {"get_jax_iterator", "num_batches", "batch_size", "on_epoch_begin", "on_epoch_end"}
    assert documented <= set(dir(DataAdapter)), CHANGED + "DataAdapter"


def test_optimizers_can_be_made_again_for_other_variables() -> None:
    weight, schedule = keras.Variable(1.0), keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = keras.optimizers.SGD(schedule)
    optimizer.build([weight])
    assert built_with(optimizer) == [weight], CHANGED + "Optimizer._trainable_variables"
    assert config_with_objects(optimizer)["learning_rate"] is schedule, CHANGED + "Optimizer._learning_rate"


@pytest.mark.slow
def test_callbacks_set_the_first_epoch() -> None:
    class Later(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_begin(self, logs: Any = None) -> None:
            set_first_epoch(self.model, 2)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = ps.Dataset.from_tensors((np.ones((1, 1)), np.ones((1, 1))))
    history = model.fit(data, epochs=3, callbacks=[Later()], verbose=0)
    assert history.epoch == [2], CHANGED + "Trainer._initial_epoch"


def test_everything_that_is_made_is_seen() -> None:
    made: list[Any] = [
        keras.Variable(1.0),
        keras.layers.Dense(1),
        keras.Sequential(),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        keras.random.SeedGenerator(1),
        keras.metrics.AUC(),
    ]
    for one in made:
        assert was_seen(one), CHANGED + f"{type(one).__name__}.__new__"
    assert all(any(isinstance(one, kind) for one in made) for kind in NOTED)
