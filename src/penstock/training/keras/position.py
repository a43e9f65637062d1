"""`KeepPosition`: keeps the position in the data during `fit`, so that a killed run resumes with the next batch."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from penstock.distribute.jax.for_trainers import control_channel
from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.options import check_integer
from penstock.paths import local_path
from penstock.training.keras.callbacks import AfterOthers, CallbackStates
from penstock.training.keras.input import DatasetInput
from penstock.training.keras.interface import set_first_epoch

_logger = logging.getLogger(__name__)

_REST = "the rest of an epoch is done"
"""What `model.stop_training` is set to at the end of an epoch that was entered in the middle: true, and not others'."""


class KeepPosition(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keeps the position in the data, next to `keras.callbacks.BackupAndRestore`, which keeps the weights.

    A `fit` that was killed and is called again resumes after the last batch that the restored weights were trained on,
    in the same epoch: no example is skipped, and none counts twice. Position and weights are not saved at the same
    moment, but `model.optimizer.iterations`, which is saved with the weights, is the number of the batch, and this
    callback records the positions of batches by their numbers.

    So it does with the states of the other callbacks in `fit`'s list at the end of each epoch, as `EarlyStopping` and
    `ReduceLROnPlateau` have one: their public attributes that are numbers, texts or arrays, or what a `state_dict()`
    of theirs gives to their `load_state_dict(state)`.

    Args:
        data: what `ps.keras.as_input` gave, and `fit` is given.
        directory: where the position is kept until `fit` has ended; each worker needs its own.
        every: the number of batches between two records of the position; one is also made at the beginning of each
            epoch. When `fit` resumes, at most this many batches are read again and discarded.

    Raises:
        InvalidTypeError: other data, or `every` is no integer.
        InvalidArgumentError: `every` is less than 1; when `fit` begins, it is given other data, fewer steps than a
            dataset that ends, or this callback before `BackupAndRestore`.
        StorageError: the directory cannot be written.

    Example:
        >>> import tempfile, keras, numpy as np, penstock as ps
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> data = ps.keras.as_input(ps.Dataset.from_tensor_slices((np.ones((5, 2)), np.ones((5, 1)))).batch(2))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     backup = keras.callbacks.BackupAndRestore(f"{directory}/backup", save_freq=2)
        ...     position = ps.keras.KeepPosition(data, f"{directory}/position")
        ...     history = model.fit(data, epochs=2, callbacks=[backup, position], verbose=0)
        >>> int(model.optimizer.iterations.value)
        6
    """

    def __init__(self, data: DatasetInput, directory: str | os.PathLike[str], every: int = 100) -> None:
        super().__init__()
        if not isinstance(data, DatasetInput):
            raise InvalidTypeError(
                f"KeepPosition(data) takes what ps.keras.as_input(dataset) gave, got {type(data).__name__}: give the "
                "same to fit"
            )
        check_integer("KeepPosition", "every", every, minimum=1)
        self._feed = data
        self._directory = Path(local_path(directory))
        self._every = every
        # The batches that an epoch that was entered in the middle has left.
        self._rest: int | None = None
        self._entered = False
        # The iterations of the weights, between the beginning of training and that of its first epoch.
        self._restored: int | None = None
        self._states: CallbackStates | None = None
        self._ended: dict[str, Any] | None = None

    def after_others(self, callbacks: Sequence[Any]) -> AfterOthers:
        """The callback that `fit` calls after all others, which are these."""
        others = [one for one in callbacks if one is not self]

        def begun() -> None:
            self._states = CallbackStates(others, self._directory)
            if self._ended is not None:
                missing = self._states.restore(self._ended["callbacks"])
                if missing:
                    _logger.warning("KeepPosition: no state for, or no more such callback: %s", ", ".join(missing))

        return AfterOthers(begun, self._epoch_ended)

    def _epoch_ended(self, epoch: int) -> None:
        assert self._states is not None
        batch = self._iterations()
        self._append(
            {
                "batch": batch,
                "ended": epoch,
                "callbacks": self._states.state(batch),
                "stopped": bool(self.model.stop_training),
            }
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Resume where the restored weights stopped; called by Keras."""
        self._check_data()
        self._rest, self._entered, self._restored, self._ended = None, False, self._iterations(), None
        seen = self._batches_seen()
        marks = [mark for mark in self._read() if mark["batch"] <= seen]
        self._write(marks)
        self._feed.taken = seen
        if marks:
            self._resume_after(marks, seen)
        self._feed.on_take = self._note

    def _check_data(self) -> None:
        if not self._feed.is_read_by(self.model):
            raise InvalidArgumentError(
                "KeepPosition(data) was given other data than fit: data = ps.keras.as_input(dataset), then "
                "model.fit(data, callbacks=[..., ps.keras.KeepPosition(data, directory)])"
            )
        steps, asked = self._feed.num_batches, self.params.get("steps")
        if steps is not None and asked != steps:
            raise InvalidArgumentError(
                f"KeepPosition got a dataset of {steps} batches and steps_per_epoch={asked}: leave that out, or use "
                "dataset.repeat()"
            )

    def _batches_seen(self) -> int:
        """The number of batches that the weights were trained on, on worker 0, whose weights all workers use."""
        own = self._iterations()
        strategy = self._feed.strategy
        control = None if strategy is None else control_channel(strategy)
        return own if control is None else control.gather("KeepPosition", own, int)[0]

    def _iterations(self) -> int:
        return int(self.model.optimizer.iterations.value)

    def _resume_after(self, marks: list[dict[str, Any]], seen: int) -> None:
        """Resume the data and Keras's epochs after the batches that were seen."""
        marks_of_epochs = [mark for mark in marks if "epoch" in mark]
        begun = marks_of_epochs[-1]
        state = next((mark for mark in reversed(marks) if "state" in mark), None)
        epoch, done, steps = begun["epoch"], seen - begun["batch"], self.params.get("steps")
        rest = state is not None and self._feed.resume(state["state"], seen - state["batch"])
        if done and (done == steps or not rest):
            epoch, done = epoch + 1, 0
        self._entered = bool(done)
        self._rest = steps - done if steps is not None and done else None
        self._ended = next((mark for mark in reversed(marks) if "ended" in mark), None)
        told = marks_of_epochs[0]["epoch"] if self._ended is None else self._ended["ended"] + 1
        if told < epoch:
            _logger.warning("KeepPosition: fit was killed before callbacks were told the end of epoch %d", epoch)
        if self._ended is not None and self._ended["stopped"]:
            epoch = self.params["epochs"]
        # As BackupAndRestore does, whose own number is wrong after a second kill.
        set_first_epoch(self.model, epoch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record where an epoch begins; called by Keras."""
        if self._restored is not None and self._iterations() != self._restored:
            raise InvalidArgumentError(
                "weights were restored after KeepPosition had begun: give fit callbacks=[BackupAndRestore(...), "
                "KeepPosition(...)], in this order"
            )
        if not self._entered:
            # In the first epoch the weights of other workers may not have those of worker 0 yet.
            batch = self._iterations() if self._restored is None else self._feed.taken
            self._append({"batch": batch, "epoch": epoch})
        self._entered, self._restored = False, None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End an epoch that was entered in the middle; called by Keras."""
        if self._rest is not None and batch + 1 >= self._rest and not self.model.stop_training:
            self.model.stop_training = _REST

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Let training continue after such an epoch; called by Keras."""
        self._rest = None
        if self.model.stop_training == _REST:
            self.model.stop_training = False

    def on_train_end(self, logs: Any = None) -> None:
        """Forget the position; called by Keras at the end of all epochs."""
        self._feed.on_take = lambda taken, begins, state: None
        self._file.unlink(missing_ok=True)
        for path in self._directory.glob("callbacks-*.npy"):
            path.unlink()

    def _note(self, taken: int, begins: bool, state: Callable[[], Any]) -> None:
        if begins or taken % self._every == 0:
            self._append({"batch": taken, "state": state()})

    @property
    def _file(self) -> Path:
        return self._directory / "position.jsonl"

    def _read(self) -> list[dict[str, Any]]:
        """The records; without a last line that was cut off when the process was killed."""
        if not self._file.exists():
            return []
        lines = self._file.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _write(self, marks: list[dict[str, Any]]) -> None:
        unfinished = self._file.with_suffix(".tmp")
        with self._writing():
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_text("".join(json.dumps(mark) + "\n" for mark in marks))
            unfinished.replace(self._file)

    def _append(self, mark: dict[str, Any]) -> None:
        with self._writing(), self._file.open("a") as file:
            file.write(json.dumps(mark) + "\n")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"KeepPosition cannot write to {self._directory}: {error}") from error
