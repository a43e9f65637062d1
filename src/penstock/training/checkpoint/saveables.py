"""The leaves of the objects of a checkpoint: how each is copied to host memory, and how it is restored.

Keras objects, Flax modules and objects with a state are restored in place; arrays, numbers and strings are
values, of which `restore` returns new ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.feed.dataset import DistributedDataset
from penstock.distribute.jax.device_dtypes import is_key
from penstock.distribute.values import PerReplica, StackedPerReplica
from penstock.errors import InvalidTypeError
from penstock.training.checkpoint.arrays import Array, host_copy, is_spread, placed
from penstock.training.checkpoint.index import Entry, Item
from penstock.training.checkpoint.states import SplitState


class Saveable(ABC):
    """One leaf; without its value if it is an array, which a checkpoint must not keep alive."""

    in_place: ClassVar[bool] = True

    @abstractmethod
    def items(self) -> list[Item]:
        """The items that a checkpoint must have for it."""

    @abstractmethod
    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        """The items that are saved, and the arrays in host memory, by their names; `value` is the leaf."""

    @abstractmethod
    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        """The leaf with the stored values. It cannot fail: everything was checked before."""

    def prepare(self, stored: Mapping[str, Item]) -> None:  # noqa: B027  # most parts have nothing to build
        """Build the leaf if it is not built yet; `stored` are the items by their paths."""

    def shardings(self) -> dict[str, Any]:
        """The shardings of arrays of which several workers read different parts, by their names."""
        return {}


class SaveableState(Saveable):
    """An object with `state_dict()` and `load_state_dict()`."""

    def __init__(self, path: str, target: Any) -> None:
        self.path = path
        self.target = target

    def items(self) -> list[Item]:
        return [Item(self.path, "state")]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        state = SplitState(self.path, self.target.state_dict())
        return [Item(self.path, "state", state.entries, [state.plain])], state.arrays

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        return self.target


class SaveableArray(Saveable):
    """An array or a number. It is restored with the type and the devices of the template."""

    in_place = False

    def __init__(self, path: str, leaf: Any) -> None:
        self.path = path
        self.key = str(jax.random.key_impl(leaf)) if is_key(leaf) else None
        self._scalar = isinstance(leaf, np.generic)
        self._number = isinstance(leaf, (int, float, complex)) and not self._scalar
        if not (self._number or self.key or isinstance(leaf, _ARRAYS) and _is_numeric(leaf.dtype)):
            raise InvalidTypeError(
                f"a checkpoint holds Keras objects, Flax modules, objects with a state_dict() such as iterators, "
                f"arrays, numbers and strings, got {type(leaf).__name__} at {path}{_advice(leaf)}"
            )
        shape = np.shape(jax.random.key_data(leaf)) if self.key else np.shape(leaf)
        dtype = "number" if self._number else str(leaf.dtype)
        self._entry = Entry(path, tuple(shape), dtype)
        self._sharding = getattr(leaf, "sharding", None)
        self._committed = getattr(leaf, "committed", True)

    def items(self) -> list[Item]:
        return [Item(self.path, "value", [self._entry])]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        return self.items(), {self.path: host_copy(self.path, jax.random.key_data(value) if self.key else value)}

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        array = arrays[self.path]
        if self.key:
            keys = jax.random.wrap_key_data(jnp.asarray(array), impl=self.key)
            return jax.device_put(keys, self._sharding) if self._committed else keys
        if self._sharding is not None:
            return placed(array, self._sharding, self._committed)
        if self._number:
            return array.item()
        return array[()] if self._scalar else array

    def shardings(self) -> dict[str, Any]:
        return {self.path: self._sharding} if is_spread(self._sharding) else {}


_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)


def _is_numeric(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_))


def _advice(leaf: Any) -> str:
    if isinstance(leaf, (Dataset, DistributedDataset)):
        return ": make an iterator of it, read from that, and give that one here"
    if callable(leaf):
        return (
            ": a function cannot be saved. Give the arrays beside it alone; of an Equinox model, the first of "
            "eqx.partition(model, eqx.is_array), which eqx.combine puts together again"
        )
    return ""


class SaveableText(Saveable):
    """A string, which is stored in the index."""

    in_place = False

    def __init__(self, path: str) -> None:
        self.path = path

    def items(self) -> list[Item]:
        return [Item(self.path, "string")]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        return [Item(self.path, "string", text=value)], {}

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        return stored[self.path].text


class SaveablePerReplica(Saveable):
    """A `PerReplica`, as the value of each replica."""

    in_place = False

    def __init__(self, path: str, leaf: PerReplica) -> None:
        self.path = path
        self._values = [
            SaveableArray(f"{path} of replica {replica}", value) for replica, value in enumerate(leaf.values)
        ]
        self._sharding = None if leaf.stacked is None else leaf.stacked.sharding

    def items(self) -> list[Item]:
        entries = [entry for value in self._values for item in value.items() for entry in item.entries]
        return [Item(self.path, "PerReplica", entries)]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        parts = [part.snapshot(one)[1] for part, one in zip(self._values, value.values, strict=True)]
        return self.items(), {name: array for arrays in parts for name, array in arrays.items()}

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        if self._sharding is not None:
            rows: list[Array] = [arrays[value.path] for value in self._values]
            stacked, key = np.stack(rows), self._values[0].key
            whole = stacked if key is None else jax.random.wrap_key_data(jnp.asarray(stacked), impl=key)
            return StackedPerReplica(jax.device_put(whole, self._sharding), len(rows))
        return PerReplica([value.restored(stored, arrays) for value in self._values])
