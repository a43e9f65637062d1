"""Which values devices can hold, and which integers they would cut."""

from typing import Any

import jax
import numpy as np

from penstock.distribute.reduction import holds_numbers
from penstock.errors import InvalidArgumentError


def fits_device(array: Any) -> bool:
    """Whether devices can hold values of this kind: not objects, strings and times."""
    return isinstance(array, (jax.Array, jax.ShapeDtypeStruct)) or holds_numbers(array)


def check_width(holder: str, leaf: Any) -> None:
    """Refuse integers that the devices would cut down to other numbers.

    To be called wherever an array of NumPy's is about to become one of JAX's, which says nothing.

    Raises:
        InvalidArgumentError: `holder` has such integers.
    """
    if isinstance(leaf, jax.Array) or leaf.dtype.kind not in "iu" or leaf.size == 0:
        return
    kept = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if kept == leaf.dtype:
        return
    limits = np.iinfo(kept)
    if leaf.min() < limits.min or leaf.max() > limits.max:
        raise InvalidArgumentError(
            f"{holder} holds {leaf.dtype} values from {leaf.min()} to {leaf.max()}, but JAX keeps only {kept}: "
            'use jax.config.update("jax_enable_x64", True), or map the values into a smaller range'
        )
