"""`model.fit(dataset, class_weight=...)`: weights rows by the classes of their labels, as Keras does for arrays."""

from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import keras

from penstock.errors import InvalidArgumentError, InvalidTypeError


class ClassWeight:
    """Adds sample weights to batches of (x, y).

    Args:
        weights: the weight of each class; classes that are not named have weight 1.

    Raises:
        InvalidTypeError: no dictionary of numbers.
    """

    def __init__(self, weights: Any) -> None:
        numbers = isinstance(weights, Mapping) and all(
            isinstance(label, Integral) and isinstance(weight, Real) for label, weight in weights.items()
        )
        if not numbers:
            raise InvalidTypeError(
                f"model.fit(class_weight=...) takes a dictionary of classes and weights, such as {{0: 1.0, 1: 5.0}}, "
                f"got {weights!r}"
            )
        self._weights = jax.jit(partial(_weights, {int(label): float(one) for label, one in weights.items()}))

    def __call__(self, batch: Any) -> Any:
        """(x, y) with the weights of its rows.

        Raises:
            InvalidArgumentError: something else, or labels that are no single array with one class for a row.
        """
        if not isinstance(batch, tuple) or len(batch) != 2:
            instead = "its own weights" if isinstance(batch, tuple) and len(batch) == 3 else "no labels"
            raise InvalidArgumentError(
                f"model.fit(class_weight=...) needs elements of (x, y), and this dataset's have {instead}: leave "
                "class_weight out, or take the weights out of the dataset"
            )
        labels = batch[1]
        if isinstance(labels, (tuple, list, dict)) or not 1 <= labels.ndim <= 2:
            shape = "a structure" if isinstance(labels, (tuple, list, dict)) else f"shape {labels.shape}"
            raise InvalidArgumentError(
                f"model.fit(class_weight=...) needs one class for each row, as a number or one-hot, got labels of "
                f"{shape}: make elements of (x, y, sample_weight)"
            )
        return (*batch, self._weights(labels))


def _weights(of_class: dict[int, float], labels: Any) -> Any:
    if labels.ndim == 2:
        labels = labels[:, 0] if labels.shape[1] == 1 else jnp.argmax(labels, axis=1)
    if jnp.issubdtype(labels.dtype, jnp.inexact):
        labels = jnp.round(labels)
    labels = labels.astype(jnp.int32)
    weights = jnp.ones(labels.shape, keras.config.floatx())
    for label, weight in of_class.items():
        weights = jnp.where(labels == label, weight, weights)
    return weights
