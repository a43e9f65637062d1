"""Checks of dtypes that devices cannot hold, and of integers that they would truncate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.reduction import holds_numbers
from penstock.errors import InvalidArgumentError


def fits_device(array: Any) -> bool:
    """Return whether devices can hold this dtype: no objects, strings, times, records and `np.longdouble`."""
    if isinstance(array, (jax.Array, jax.ShapeDtypeStruct)):
        return True
    return holds_numbers(array) and array.dtype.char not in "gG"


def is_key(value: Any) -> bool:
    """Return whether an array holds keys of random numbers, `jax.random.key(...)`, which NumPy cannot hold."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def check_byte_order(holder: str, dtype: np.dtype[Any]) -> None:
    """Refuse numbers in the byte order of other machines, which JAX would take for others or refuse without saying why.

    Raises:
        InvalidArgumentError: `holder` has such a dtype.
    """
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise InvalidArgumentError(
            f"{holder} has the dtype {dtype.str!r}, whose bytes are in another order than this machine's, "
            f"which JAX arrays cannot hold: map it to {native} by astype(np.{native})"
        )


def check_width(holder: str, leaf: Any) -> None:
    """Refuse integers that do not fit into the dtype that JAX would use, and numbers in another byte order.

    To be called before every conversion from NumPy to JAX, which truncates silently.

    Raises:
        InvalidArgumentError: `holder` has such numbers.
    """
    if isinstance(leaf, jax.Array):
        return
    check_byte_order(holder, leaf.dtype)
    if leaf.dtype.kind not in "iu" or leaf.size == 0:
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
