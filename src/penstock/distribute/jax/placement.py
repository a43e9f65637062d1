"""Puts arrays on the devices of a strategy: one row on each, or the same array on all, in one process or in many."""

from collections.abc import Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.distribute.jax.program import AXIS
from penstock.errors import InvalidArgumentError


class Placement:
    """Puts arrays on devices. Only `from_worker_0`, `all_rows` and `all_values` exchange data with other processes.

    Args:
        devices: those of all workers, worker by worker.
        local: the indices of this worker's among them.
    """

    def __init__(self, devices: Sequence[jax.Device], local: range) -> None:
        self.local_devices = list(devices[local.start : local.stop])
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self._local = local
        self._alone = len(local) == len(devices)
        self.by_row = NamedSharding(self.mesh, PartitionSpec(AXIS))  # type: ignore[no-untyped-call]
        self.same = NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self._replicate = jax.jit(lambda array: array, out_shardings=self.same)

    def rows(self, rows: Any) -> jax.Array:
        """An array of the rows of all workers, split evenly over the devices; `rows` are this worker's rows.

        One row for each device makes a stacked array.
        """
        each = len(rows) // len(self._local)
        first = self._local.start * each

        def of_device(index: Any) -> Any:
            start, stop, _ = index[0].indices(each * self.mesh.size)
            return rows[start - first : stop - first]

        # Faster than `device_put`, which slices the array in Python.
        return jax.make_array_from_callback((each * self.mesh.size, *rows.shape[1:]), self.by_row, of_device)

    def stacked(self, values: Sequence[Any]) -> jax.Array:
        """A stacked array whose local rows are `values`, each on its replica's device."""
        rows = [jax.device_put(value[None], device) for value, device in zip(values, self.local_devices, strict=True)]
        shape = (self.mesh.size, *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.by_row, rows)

    def for_all(self, array: Any) -> jax.Array:
        """An array replicated on every device of every worker; each worker must give the same one."""
        if self._is_on_all(array):  # asked here because `device_put` takes long to see it
            return array
        if self._alone or (isinstance(array, jax.Array) and not array.is_fully_addressable):
            whole: jax.Array = jax.device_put(array, self.same)
            return whole
        copies = [jax.device_put(array, device) for device in self.local_devices]
        return jax.make_array_from_single_device_arrays(np.shape(array), self.same, copies)

    def on_first(self, value: Any) -> jax.Array:
        """A value, the same on every worker, on this worker's first device."""
        value = value.addressable_data(0) if self._is_on_all(value) else value
        on_first: jax.Array = jax.device_put(value, self.local_devices[0])
        return on_first

    def from_worker_0(self, value: Any) -> jax.Array:
        """The value of worker 0, on all devices; every worker must call this."""
        own = self._alone or self._is_on_all(value)
        return self.for_all(value if own else multihost_utils.broadcast_one_to_all(np.asarray(value)))

    def _is_on_all(self, value: Any) -> TypeGuard[jax.Array]:
        return isinstance(value, jax.Array) and value.sharding == self.same

    def all_rows(self, stacked: jax.Array) -> jax.Array:
        """All rows of a stacked array, on one device of this worker; every worker must call this."""
        rows: jax.Array = self._replicate(stacked)
        rows.block_until_ready()  # no other program with collectives may begin before
        return rows.addressable_data(0)

    def all_values(self, values: Sequence[Any], shapes: list[tuple[int, ...]]) -> list[Any]:
        """Every replica's value, on every worker; the values are exchanged padded to one shape.

        Args:
            values: those of this worker.
            shapes: those of all.
        """
        if len({len(shape) for shape in shapes}) > 1:
            raise InvalidArgumentError(f"the replicas' values must have one number of axes, got shapes {shapes}")
        largest = tuple(max(lengths) for lengths in zip(*shapes, strict=True))
        rows = np.zeros((len(values), *largest), values[0].dtype)
        for row, value in zip(rows, values, strict=True):
            row[tuple(map(slice, value.shape))] = np.asarray(value)
        gathered = self.all_rows(self.rows(rows))
        return [gathered[(number, *map(slice, shape))] for number, shape in enumerate(shapes)]


def without_aliases(values: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
    """The values, copied where one array is used twice, in `values` or in `others`.

    Two variables share an array if one was assigned the other's value. The arrays of variables that a step writes are
    donated to the program, so a shared array would take the other variable's value with it.
    """
    seen = set(map(id, others))
    result = []
    for value in values:
        result.append(jnp.copy(value) if id(value) in seen else value)
        seen.add(id(value))
    return result
