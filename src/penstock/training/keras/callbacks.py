"""States of Keras's callbacks, restored into those of a resumed `fit`."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

_ARRAY, _KEPT_EPOCHS = "__array__", 3


class CallbackStates:
    """The states of a `fit`'s callbacks: their public attributes that have changed since training began.

    Those are numbers, texts, arrays, and structures of them: `wait` and `best` of `EarlyStopping`, for example. A
    callback with `state_dict()` and `load_state_dict(state)` is asked for its state instead.

    Args:
        callbacks: in the order of `fit`'s list.
        directory: where arrays are kept, such as the best weights; those of the last three epochs.
    """

    def __init__(self, callbacks: Sequence[Any], directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, tuple[Any, str]] = {}
        self._recent: list[set[str]] = []
        seen: Counter[str] = Counter()
        self._named = {}
        for one in callbacks:
            kind = type(one).__qualname__
            self._named[f"{kind} {seen[kind]}"] = one
            seen[kind] += 1
        self._initial = {name: _attributes(one, id) for name, one in self._named.items() if not _has_own_state(one)}

    def state(self, batch: int) -> dict[str, Any]:
        """The states by the callbacks' names, as data for JSON; arrays are in files, named after the batch."""
        names: set[str] = set()

        def store(array: Any) -> str:
            if id(array) not in self._files:
                name = f"callbacks-{batch}-{len(names)}.npy"
                np.save(self._directory / name, np.asarray(array), allow_pickle=False)
                self._files[id(array)] = array, name
            names.add(self._files[id(array)][1])
            return self._files[id(array)][1]

        found = {}
        for name, one in self._named.items():
            if _has_own_state(one):
                found[name] = _data(one.state_dict(), store)
                continue
            changed = {key for key, value in _attributes(one, id).items() if value != self._initial[name].get(key)}
            found[name] = {key: value for key, value in _attributes(one, store, changed).items() if key in changed}
        self._forget_files(names)
        return {name: state for name, state in found.items() if state}

    def _forget_files(self, names: set[str]) -> None:
        self._recent = [*self._recent[1 - _KEPT_EPOCHS :], names]
        needed = set().union(*self._recent)
        self._files = {key: entry for key, entry in self._files.items() if entry[1] in needed}
        for path in self._directory.glob("callbacks-*.npy"):
            if path.name not in needed:
                path.unlink()

    def restore(self, states: Mapping[str, Any]) -> list[str]:
        """Give callbacks their states back; the names of those that are not there any more, or whose arrays are not."""
        missing = []
        for name, state in states.items():
            one = self._named.get(name)
            try:
                state = _with_arrays(state, self._directory)
            except FileNotFoundError:
                one = None
            if one is None:
                missing.append(name.partition(" ")[0])
            elif _has_own_state(one):
                one.load_state_dict(state)
            else:
                vars(one).update(state)
        return missing


def _has_own_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _attributes(callback: Any, of_array: Callable[[Any], Any], names: set[str] | None = None) -> dict[str, Any]:
    """A callback's public attributes that are data; of these names alone, where some are given.

    Those that are called like arguments of its class are not among them: they are as this program has given them, even
    where Keras changes them, as it does the sign of `min_delta`.
    """
    found = {}
    makers = [vars(kind).get("__init__", object) for kind in type(callback).__mro__]
    given = {name for maker in makers for name in inspect.signature(maker).parameters}
    for name, value in vars(callback).items():
        if not name.startswith("_") and name not in given | {"params"} and (names is None or name in names):
            try:
                found[name] = json.loads(json.dumps(_data(value, of_array)))
            except TypeError:  # a function, a file, a model
                continue
    return found


def _data(value: Any, of_array: Callable[[Any], Any]) -> Any:
    """A value as data for JSON.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        return {_ARRAY: of_array(value)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _data(one, of_array) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(one, of_array) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value))


def _with_arrays(state: Any, directory: Path) -> Any:
    if isinstance(state, dict):
        if state.keys() == {_ARRAY}:
            return np.load(directory / state[_ARRAY], allow_pickle=False)
        return {key: _with_arrays(one, directory) for key, one in state.items()}
    return [_with_arrays(one, directory) for one in state] if isinstance(state, list) else state


class AfterOthers(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """The last callback of a `fit`, called after all others.

    Args:
        begun: called at the beginning of training.
        ended: called at the end of each epoch, with its number.
    """

    def __init__(self, begun: Callable[[], None], ended: Callable[[int], None]) -> None:
        super().__init__()
        self._begun = begun
        self._ended = ended

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._begun()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._ended(epoch)
