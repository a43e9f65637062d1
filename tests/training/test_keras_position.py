"""A `fit` that was killed goes on with the very next batch: the ledger in its weights tells."""

import json
import runpy
import signal
from pathlib import Path
from typing import Any

import forked
import keras
import numpy as np
import pytest

import penstock as ps

PROGRAM = Path(__file__).parent / "fit_that_dies.py"
EPOCHS, EXAMPLES, fit, ids_of = (runpy.run_path(str(PROGRAM))[name] for name in ("EPOCHS", "EXAMPLES", "fit", "ids_of"))


class Crash(Exception):
    """What a fit of this process ends with."""


def crash() -> None:
    raise Crash


def crashed(directory: Path, kind: str, batch: int) -> None:
    with pytest.raises(Crash):
        fit(directory, kind, batch, crash)


def assert_every_row_once_an_epoch(variables: list[Any]) -> None:
    epochs = ids_of(variables)
    assert [sorted(epoch) for epoch in epochs] == [list(range(EXAMPLES))] * EPOCHS
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.slow
def test_a_killed_fit_resumes_with_the_next_batch_and_equal_weights(tmp_path: Path) -> None:
    killed = forked.run(str(PROGRAM), str(tmp_path / "killed"), "finite", "7", timeout=110, training=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with (tmp_path / "killed/position/position.jsonl").open("a") as file:
        file.write('{"batch": 7, "sta')  # a line that a kill has cut off
    variables = fit(tmp_path / "killed", "finite", 0, crash, seed=5)
    assert_every_row_once_an_epoch(variables)
    assert not list((tmp_path / "killed/position").iterdir())
    for one, other in zip(variables, fit(tmp_path / "whole", "finite", 0, crash, seed=5), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        ("finite", 4),
        ("repeated", 3),
        *(pytest.param(*case, marks=pytest.mark.extended) for case in [("finite", 1), ("finite", 5), ("repeated", 8)]),
    ],
)
def test_whatever_the_batch_the_ledger_is_complete(tmp_path: Path, kind: str, batch: int) -> None:
    """4 and 8 are the last of an epoch, saved before Keras knows that it has ended; at 1 nothing is saved."""
    crashed(tmp_path, kind, batch)
    assert_every_row_once_an_epoch(fit(tmp_path, kind, 0, crash))


@pytest.mark.extended
def test_two_kills_and_a_length_that_is_not_known(tmp_path: Path) -> None:
    crashed(tmp_path, "unknown", 4)
    with pytest.warns(UserWarning, match="ran out of data"):  # as Keras says of any data of unknown length
        crashed(tmp_path, "unknown", 9)
    with pytest.warns(UserWarning, match="ran out of data"):
        variables = fit(tmp_path, "unknown", 0, crash)
    assert_every_row_once_an_epoch(variables)


@pytest.mark.slow
def test_epochs_after_one_entered_in_the_middle_are_whole(
    tmp_path: Path,
) -> None:
    """Two of the second epoch's four steps are left; the third epoch must not end after three."""
    with pytest.warns(UserWarning, match="ran out of data"):
        crashed(tmp_path, "unknown", 7)
    with pytest.warns(UserWarning, match="ran out of data"):
        variables = fit(tmp_path, "unknown", 0, crash)
    assert_every_row_once_an_epoch(variables)


def small_model() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def dataset() -> ps.Dataset:
    return ps.Dataset.from_tensor_slices((np.ones((6, 2), "f"), np.ones((6, 1), "f"))).batch(2)


class StopsItself(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = True


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_an_epoch_that_was_entered_in_the_middle_lets_others_stop_training(tmp_path: Path, first: bool) -> None:
    model = small_model()
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(1)
    data = ps.keras.as_input(dataset())
    with iter(dataset()) as iterator:
        state = iterator.state_dict()
    lines = [{"batch": 0, "epoch": 0}, {"batch": 0, "state": state}]
    (tmp_path / "position.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    callbacks = [ps.keras.KeepPosition(data, tmp_path), StopsItself()]
    history = model.fit(data, epochs=5, callbacks=callbacks if first else callbacks[::-1], verbose=0)
    assert history.epoch == [0]
    assert int(model.optimizer.iterations.value) == 3


@pytest.mark.slow
def test_the_order_of_the_callbacks_matters_and_is_checked(tmp_path: Path) -> None:
    def callbacks(data: Any, *others: Any) -> list[Any]:
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
        return [ps.keras.KeepPosition(data, tmp_path / "position"), backup, *others]

    failing = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: crash())
    data = ps.keras.as_input(dataset())
    with pytest.raises(Crash):
        small_model().fit(data, callbacks=callbacks(data, failing), verbose=0)
    data = ps.keras.as_input(dataset())
    with pytest.raises(ps.InvalidArgumentError, match="in this order"):
        small_model().fit(data, callbacks=callbacks(data), verbose=0)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    data = ps.keras.as_input(dataset())
    with pytest.raises(ps.InvalidTypeError, match="as_input"):
        ps.keras.KeepPosition(dataset(), tmp_path)
    with pytest.raises(ps.InvalidArgumentError, match="every"):
        ps.keras.KeepPosition(data, tmp_path, every=0)
    with pytest.raises(ps.InvalidArgumentError, match="other data than fit"):
        small_model().fit(dataset(), callbacks=[ps.keras.KeepPosition(data, tmp_path)], verbose=0)
    with pytest.raises(ps.InvalidArgumentError, match=r"3 batches and steps_per_epoch=2: .*dataset\.repeat\(\)"):
        small_model().fit(data, steps_per_epoch=2, callbacks=[ps.keras.KeepPosition(data, tmp_path)], verbose=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.StorageError, match="cannot write"):
        small_model().fit(data, callbacks=[ps.keras.KeepPosition(data, tmp_path / "file")], verbose=0)


class Stops(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback of a user's own: it stops training after so many epochs, of all fits together."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.counted: dict[str, Any] = {"epochs": 0, "mean": np.float32(0)}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.counted["epochs"] += 1
        if self.counted["epochs"] >= self.limit:
            self.model.stop_training = True


class CrashesAt(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, batch: int, when: str) -> None:
        super().__init__()
        self.batch = batch
        setattr(self, when, self._crash)

    def _crash(self, *_: Any, **__: Any) -> None:
        if int(self.model.optimizer.iterations.value) == self.batch:
            crash()


def stopping_fit(directory: Path, stopping: Any, crashes: list[Any], first: bool = True) -> Any:
    """The model, of a fit whose validation gets worse from the second epoch on; 4 steps an epoch."""
    features = np.random.default_rng(0).normal(size=(32, 4)).astype("f")
    labels = features.sum(1, keepdims=True)
    data = ps.keras.as_input(ps.Dataset.from_tensor_slices((features, labels)).shuffle(32, seed=1).batch(8))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    keeping = [
        keras.callbacks.BackupAndRestore(directory / "backup", save_freq=1),
        ps.keras.KeepPosition(data, directory / "position"),
    ]
    callbacks = [*crashes, stopping, *keeping] if first else [*crashes, *keeping, stopping]
    worse = ps.Dataset.from_tensor_slices((features, -labels)).batch(8)
    model.fit(data, validation_data=worse, epochs=9, callbacks=callbacks, verbose=0)
    return model


STOPPING = {
    "early": lambda: keras.callbacks.EarlyStopping(patience=4, min_delta=1e-3, restore_best_weights=True),
    "plateau": lambda: keras.callbacks.ReduceLROnPlateau(patience=2, cooldown=1, factor=0.5, min_delta=1e-3),
    "own": lambda: Stops(5),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", ["early", "own", pytest.param("plateau", marks=pytest.mark.extended)])
def test_callbacks_stop_a_resumed_fit_where_they_would_have(tmp_path: Path, name: str) -> None:
    whole = stopping_fit(tmp_path / "whole", STOPPING[name](), [])
    for batch in (6, 14):  # in two epochs, one after the other
        with pytest.raises(Crash):
            stopping_fit(tmp_path / "killed", STOPPING[name](), [CrashesAt(batch, "on_train_batch_end")], batch == 6)
    resumed = stopping_fit(tmp_path / "killed", STOPPING[name](), [])
    assert int(resumed.optimizer.iterations.value) == int(whole.optimizer.iterations.value)
    for one, other in zip(
        [*resumed.variables, *resumed.optimizer.variables], [*whole.variables, *whole.optimizer.variables], strict=True
    ):
        np.testing.assert_array_equal(one.value, other.value)
    assert not list((tmp_path / "killed/position").iterdir())


@pytest.mark.slow
def test_a_killed_fit_that_callbacks_had_stopped_trains_no_further(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        stopping_fit(tmp_path, Stops(2), [CrashesAt(8, "on_train_end")], first=False)
    told = Stops(2)
    assert int(stopping_fit(tmp_path, told, []).optimizer.iterations.value) == 8
    assert told.counted["epochs"] == 2


@pytest.mark.slow
def test_an_end_of_an_epoch_that_callbacks_were_not_told_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Crash):
        stopping_fit(tmp_path, Stops(3), [CrashesAt(8, "on_test_begin")])
    assert int(stopping_fit(tmp_path, Stops(3), []).optimizer.iterations.value) == 16
    assert caplog.messages == ["KeepPosition: fit was killed before callbacks were told the end of epoch 2"]
