"""The configurations of layers as plain data for JSON, also read from what Keras writes."""

from collections.abc import Collection
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError

# Entries of Keras's configurations that do not matter here: names, dtypes that are the same here, and the seeds of
# layers that draw by the seed of `map`.
_IGNORED = {"name", "trainable", "vocabulary_dtype", "vocabulary_size", "seed"}
_DTYPES = (None, "float32", "int32", "int64", "string")
# Arguments of Keras that do not exist here, with the value that they must have.
_LEFT_OUT = {"sparse": False, "ragged": False, "oov_method": "floormod", "salt": None}


def plain(value: Any) -> Any:
    """A value that JSON can hold: NumPy's numbers and arrays as Python's, tuples as lists, bytes as text."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    return value


def arguments_of(call: str, config: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The arguments in a configuration of this layer, by penstock or by Keras.

    Args:
        config: the result of `get_config`, here or in Keras, or of `keras.layers.serialize`.
        known: the names of the layer's arguments.

    Raises:
        InvalidArgumentError: the configuration of another layer, or an unknown argument.
    """
    if "class_name" in config:
        if config["class_name"] != call:
            raise InvalidArgumentError(f"{call}.from_config got the configuration of {config['class_name']!r}")
        config = config["config"]
    arguments = {}
    for name, value in config.items():
        if name in known:
            arguments[name] = _of_keras(value)
        elif name == "dtype":
            _check_dtype(call, value)
        elif name not in _IGNORED and (name not in _LEFT_OUT or value != _LEFT_OUT[name]):
            raise InvalidArgumentError(f"{call}.from_config: the layer has no argument {name}={value!r:.100}")
    return arguments


def _of_keras(value: Any) -> Any:
    """Arrays and tuples, which Keras wraps in dictionaries with their class names."""
    if isinstance(value, dict) and value.get("class_name") in ("__numpy__", "__tensor__", "__tuple__"):
        inner = value["config"]
        return inner["value"] if isinstance(inner, dict) else inner
    return value


def _check_dtype(call: str, dtype: Any) -> None:
    name = dtype["config"].get("name") if isinstance(dtype, dict) else dtype
    if name not in _DTYPES:
        raise InvalidArgumentError(f"{call}.from_config: the layer has no dtype={name!r}; use map to cast its results")
