"""The numeric part of a transform as a layer that compiles into a model, and is saved with it as plain data."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

_OTHERWISE = frozenset({"digitize", "full_like", "isin", "median"})
"""NumPy's functions that Keras has with other arguments. All others that it has by the same name it computes alike."""

_OTHER_NAMES = {"amax": "max", "amin": "min", "remainder": "mod"}


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    return ops.where(ops.cast(condition, "bool"), then, otherwise)


def _z_score(x: Any, mean: Any, variance: Any) -> Any:
    rest = ops.cast(x, "float32") - mean
    deviation = ops.sqrt(variance)
    return ops.where(deviation != 0, rest / ops.where(deviation != 0, deviation, 1.0), rest)


def _min_max(x: Any, least: Any, most: Any, *, output_min: float, output_max: float) -> Any:
    x = ops.cast(x, "float32")
    width = most - least
    share = ops.where(width > 0, (x - least) / ops.where(width > 0, width, 1.0), ops.sigmoid(x))
    return share * (output_max - output_min) + output_min


def _apply_buckets(x: Any, boundaries: Any) -> Any:
    x = ops.cast(x, "float32")
    if len(boundaries.shape) > 1 and boundaries.shape[0] > 1:
        rows = ops.reshape(boundaries, (*x.shape[1:], boundaries.shape[-1]))
    else:
        rows = ops.reshape(boundaries, (-1,))
    not_below = ops.logical_not(ops.expand_dims(x, -1) < rows)  # true of NaN, as its bucket is the last one
    return ops.sum(ops.cast(not_below, "int32"), axis=-1)


def _fill_missing(x: Any, *, value: Any) -> Any:
    return ops.where(ops.isnan(x), value, x) if "float" in keras.backend.standardize_dtype(x.dtype) else x


def _index(x: Any, *, index: list[Any]) -> Any:
    entries = (
        slice(*entry["slice"]) if isinstance(entry, dict) else Ellipsis if entry == "..." else entry for entry in index
    )
    return x[tuple(entries)]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "apply_buckets": _apply_buckets,
    "cast": lambda x, *, dtype: ops.cast(x, np.dtype(dtype).name),
    "fill_missing": _fill_missing,
    "index": _index,
    "min_max": _min_max,
    "numpy.clip": lambda x, low, high: ops.minimum(ops.maximum(x, low), high),
    "numpy.concatenate": lambda *parts, axis: ops.concatenate(parts, axis=axis),
    "numpy.stack": lambda *parts, axis: ops.stack(parts, axis=axis),
    "numpy.column_stack": lambda *parts: ops.stack(parts, axis=-1),
    "numpy.where": _where,
    "z_score": _z_score,
}


def computable(operation: str) -> bool:
    """Return whether a layer can compute this operation on numbers."""
    name = operation.removeprefix("numpy.")
    alike = name != operation and name not in _OTHERWISE and hasattr(ops, _OTHER_NAMES.get(name, name))
    return operation in _OPERATIONS or alike


def _computing(operation: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    if operation in _OPERATIONS:
        function = _OPERATIONS[operation]
        return lambda *values: function(*values, **arguments)
    name = operation.removeprefix("numpy.")
    chosen = getattr(ops, _OTHER_NAMES.get(name, name))
    if name == "nan_to_num":
        arguments = {key: value for key, value in arguments.items() if key != "copy"}
    return lambda *values: chosen(*values, **arguments)


@keras.saving.register_keras_serializable("penstock")
class TransformLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Computes results of a transform from columns that are numbers.

    Args:
        steps: the operations in order: number, name, numbers of the inputs, arguments.
        fixed: the learned values, by number: dtype, shape and data.
        columns: the numbers of the columns, by name.
        outputs: the numbers of the results, by name.
    """

    def __init__(
        self, *, steps: Any, fixed: Any, columns: Mapping[str, int], outputs: Mapping[str, int], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._config = {"steps": steps, "fixed": fixed, "columns": dict(columns), "outputs": dict(outputs)}
        self._steps = [(number, _computing(name, arguments), inputs) for number, name, inputs, arguments in steps]

    def build(self, input_shape: Any = None) -> None:
        """Make nothing: the learned values are constants."""
        self.built = True

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The results by name, of columns by name."""
        values: dict[int, Any] = {int(number): _constant(entry) for number, entry in self._config["fixed"].items()}
        values |= {number: ops.convert_to_tensor(inputs[name]) for name, number in self._config["columns"].items()}
        for number, compute, given in self._steps:
            values[number] = compute(*(values[entry] for entry in given))
        return {name: values[number] for name, number in self._config["outputs"].items()}

    def get_config(self) -> dict[str, Any]:
        """The arguments as plain data."""
        return {**super().get_config(), **self._config}


def _constant(entry: Mapping[str, Any]) -> Any:
    if "data" not in entry:
        return float(entry["float"]) if "float" in entry else entry["value"]
    array = np.array(entry["data"], object).astype(entry["dtype"]).reshape(entry["shape"])
    return array.astype(np.float32) if array.dtype == np.float64 else array
