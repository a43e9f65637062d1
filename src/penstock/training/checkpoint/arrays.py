"""Arrays on their way to a checkpoint and back: copies in host memory, and arrays that workers hold parts of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError

Array = npt.NDArray[Any]


def host_copy(path: str, value: Any) -> Any:
    """An array in host memory, which nothing that is done to the value later can change.

    An array of which several workers hold different parts is given back as it is: each worker writes its own parts.

    Raises:
        InvalidArgumentError: the array is gone; or a number is too large.
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
    # An array of JAX's never changes, so a view of its memory is as good as a copy: while there is one, JAX gives the
    # memory to nobody else. On other devices this is the copy into host memory.
    return np.asarray(value)


def is_spread(sharding: Any) -> bool:
    """Whether several workers hold different parts of an array."""
    return sharding is not None and not (sharding.is_fully_addressable or sharding.is_fully_replicated)


def placed(array: Any, sharding: Any, committed: bool) -> Any:
    """An array on devices, where an array with this sharding lies."""
    if isinstance(array, jax.Array):  # read by parts, to where they belong
        return array
    if is_spread(sharding):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    # What was not bound to a device must not be: it could not meet arrays on others any more.
    return jax.device_put(array, sharding) if committed else jnp.asarray(array)


def is_key(value: Any) -> bool:
    """Whether an array holds keys of random numbers."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))
