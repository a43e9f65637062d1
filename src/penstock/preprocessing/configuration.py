"""The configurations of layers as plain data: written so that JSON keeps them, and read also where Keras wrote them."""

from collections.abc import Collection
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError

# What Keras writes down that decides no result here: names, the dtypes that are the same here, and the seeds of layers
# that draw by the seed of `map`.
_IGNORED = {"name", "trainable", "vocabulary_dtype", "vocabulary_size", "seed"}
_DTYPES = (None, "float32", "int32", "int64", "string")
# Arguments of Keras that are left out here, with the value they must have.
_LEFT_OUT = {"sparse": False, "ragged": False, "oov_method": "floormod", "salt": None}


def plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as Python's, tuples as lists, bytes as text: what JSON gives back unchanged."""
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
    """The arguments that a configuration of ours, or Keras's of the layer of this name, stands for.

    Args:
        config: what `get_config` gave, here or in Keras, or what `keras.layers.serialize` gave.
        known: the names of the layer's arguments.

    Raises:
        InvalidArgumentError: the configuration of another layer, or an argument that is not there.
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
    """What Keras wraps up by name: arrays and tuples."""
    if isinstance(value, dict) and value.get("class_name") in ("__numpy__", "__tensor__", "__tuple__"):
        inner = value["config"]
        return inner["value"] if isinstance(inner, dict) else inner
    return value


def _check_dtype(call: str, dtype: Any) -> None:
    name = dtype["config"].get("name") if isinstance(dtype, dict) else dtype
    if name not in _DTYPES:
        raise InvalidArgumentError(f"{call}.from_config: the layer has no dtype={name!r}; use map to cast its results")
