"""Arrays of checkpoints: copies in host memory, and arrays of which several workers hold parts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError

Array = npt.NDArray[Any]


def host_copy(path: str, value: Any) -> Any:
    """A copy of an array in host memory, which later changes of the value do not affect.

    An array of which several workers hold different parts is returned unchanged: each worker writes its own parts.

    Raises:
        InvalidArgumentError: the array was donated, or a number is too large.
    """
    if not isinstance(value, jax.Array):
        copy = np.array(value, order="C")
        if copy.dtype == object:
            raise InvalidArgumentError(f"{path} is {value}, which does not fit into 64 bits")
        return copy
    if value.is_deleted():
        raise InvalidArgumentError(
            f"{path} was donated to a step and is gone: save what the step has returned in its place"
        )
    if is_spread(value.sharding):
        return value
    # JAX arrays never change, so a view of their memory is as good as a copy: while it exists, JAX does not reuse the
    # memory. On other devices this copies into host memory.
    return np.asarray(value)


def is_spread(sharding: Any) -> bool:
    """Return whether several workers hold different parts of an array."""
    return sharding is not None and not (sharding.is_fully_addressable or sharding.is_fully_replicated)


def placed(array: Any, sharding: Any, committed: bool) -> Any:
    """An array on devices, with this sharding."""
    if isinstance(array, jax.Array):  # each worker has read its own parts already
        return array
    if is_spread(sharding):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    # An uncommitted array stays so: a committed one could not be combined with arrays on other devices.
    return jax.device_put(array, sharding) if committed else jnp.asarray(array)
