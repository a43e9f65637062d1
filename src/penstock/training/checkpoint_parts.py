"""The leaves of what a checkpoint is made of: how each is taken into host memory, and how it comes back.

Keras objects and iterators are restored in place; arrays and numbers are values, which come back as new ones.
"""

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.input import DistributedDataset
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.training.checkpoint_index import Entry
from penstock.training.checkpoint_store import Array


class Part(ABC):
    """One leaf, without its value where it is an array: a checkpoint must not keep that alive."""

    kind: ClassVar[str]
    in_place: ClassVar[bool]

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The arrays that a checkpoint must hold for it."""

    @abstractmethod
    def taken(self, value: Any) -> list[Array]:
        """Copies of these arrays in host memory; `value` is the leaf."""

    @abstractmethod
    def restored(self, arrays: Sequence[Array]) -> Any:
        """The leaf with the values that were stored. Nothing can fail any more: all was checked before."""


class Variables(Part):
    """A Keras object, as its variables in their order.

    Names are compared without the numbers that Keras adds to tell layers apart: they differ from one process, or one
    copy of a model, to the next.
    """

    kind = "Keras object"
    in_place = True

    def __init__(self, path: str, target: Any) -> None:
        self._path = path
        self._target = target

    def entries(self) -> list[Entry]:
        own = f"{getattr(self._target, 'name', '')}/"
        return [
            Entry(
                f"{self._path}/{_NUMBERS.sub('', str(variable.path).removeprefix(own))}",
                tuple(variable.shape),
                str(variable.dtype),
            )
            for variable in self._variables()
        ]

    def taken(self, value: Any) -> list[Array]:
        current = [variable.value if _on_jax(variable.value) else variable.numpy() for variable in self._variables()]
        return [host_copy(self._path, array) for array in current]

    def restored(self, arrays: Sequence[Array]) -> Any:
        for variable, array in zip(self._variables(), arrays, strict=True):
            current = variable.value
            variable.assign(_placed(array, current.sharding, current.committed) if _on_jax(current) else array)
        return self._target

    def _variables(self) -> list[Any]:
        target = self._target
        if isinstance(target, _keras().Variable):
            return [target]
        if isinstance(target, _keras().random.SeedGenerator):
            return [target.state]
        if not getattr(target, "built", True):
            how = "optimizer.build(model.trainable_variables)"
            if isinstance(target, _keras().Layer):
                how = "it once on a batch, or model.build(input_shape),"
            raise InvalidArgumentError(
                f"{self._path} is a {type(target).__name__} that is not built yet, so it has no variables to save or "
                f"to restore: call {how} before"
            )
        return list(target.variables)


_NUMBERS = re.compile(r"_[0-9]+(?=/|_|$)")


class Stateful(Part):
    """An object with `state_dict()` and `load_state_dict()`: its state is in the index."""

    kind = "iterator"
    in_place = True

    def __init__(self, path: str, target: Any) -> None:
        self.path = path
        self.target = target

    def entries(self) -> list[Entry]:
        return []

    def taken(self, value: Any) -> list[Array]:
        return []

    def restored(self, arrays: Sequence[Array]) -> Any:
        return self.target


class Value(Part):
    """An array or a number. It comes back as what the template is, and where the template lies."""

    kind = "value"
    in_place = False

    def __init__(self, path: str, leaf: Any) -> None:
        self._path = path
        self._key = str(jax.random.key_impl(leaf)) if _is_key(leaf) else None
        self._scalar = isinstance(leaf, np.generic)
        self._number = isinstance(leaf, (int, float, complex)) and not self._scalar
        if not (self._number or self._key or isinstance(leaf, _ARRAYS) and _is_numeric(leaf.dtype)):
            dataset = isinstance(leaf, (Dataset, DistributedDataset))
            advice = ": make an iterator of it, read from that, and give that one here" if dataset else ""
            raise InvalidTypeError(
                f"a checkpoint holds Keras objects, iterators with state_dict(), arrays and numbers, got "
                f"{type(leaf).__name__} at {path}{advice}"
            )
        self._shape = tuple(np.shape(leaf))
        self._dtype = "number" if self._number else str(leaf.dtype)
        self._sharding = getattr(leaf, "sharding", None)
        self._committed = getattr(leaf, "committed", True)

    def entries(self) -> list[Entry]:
        return [Entry(self._path, self._shape, self._dtype)]

    def taken(self, value: Any) -> list[Array]:
        return [host_copy(self._path, jax.random.key_data(value) if self._key else value)]

    def restored(self, arrays: Sequence[Array]) -> Any:
        array = arrays[0]
        if self._key:
            keys = jax.random.wrap_key_data(jnp.asarray(array), impl=self._key)
            return jax.device_put(keys, self._sharding) if self._committed else keys
        if self._sharding is not None:
            return _placed(array, self._sharding, self._committed)
        if self._number:
            return array.item()
        return array[()] if self._scalar else array


_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)


class Rows(Part):
    """A `PerReplica`, as the value of each replica."""

    kind = "PerReplica"
    in_place = False

    def __init__(self, path: str, leaf: PerReplica) -> None:
        self._values = [Value(f"{path} of replica {replica}", value) for replica, value in enumerate(leaf.values)]
        self._sharding = None if leaf.stacked is None else leaf.stacked.sharding

    def entries(self) -> list[Entry]:
        return [entry for value in self._values for entry in value.entries()]

    def taken(self, value: Any) -> list[Array]:
        return [array for part, one in zip(self._values, value.values, strict=True) for array in part.taken(one)]

    def restored(self, arrays: Sequence[Array]) -> Any:
        if self._sharding is not None:
            return PerReplica.of_stacked(jax.device_put(np.stack(arrays), self._sharding), len(arrays))
        return PerReplica([part.restored([array]) for part, array in zip(self._values, arrays, strict=True)])


def parts_of(name: str, value: Any) -> tuple[list[tuple[Part, Any]], Any]:
    """The parts of a named object, each with its leaf, and the tree that they are the leaves of.

    Raises:
        InvalidTypeError: something that a checkpoint cannot hold.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_whole)
    return [(_part(name + jax.tree_util.keystr(path), leaf), leaf) for path, leaf in leaves], tree


def _part(path: str, leaf: Any) -> Part:
    if _is_keras(leaf):
        return Variables(path, leaf)
    if isinstance(leaf, PerReplica):
        return Rows(path, leaf)
    return Stateful(path, leaf) if _is_stateful(leaf) else Value(path, leaf)


def _is_whole(value: Any) -> bool:
    return isinstance(value, PerReplica) or _is_stateful(value) or _is_keras(value)


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _keras() -> Any:
    """Keras, where somebody has imported it: otherwise no object can be one of its."""
    return sys.modules.get("keras")


def _is_keras(value: Any) -> bool:
    keras = _keras()
    return keras is not None and isinstance(
        value, (keras.Variable, keras.Layer, keras.Optimizer, keras.Metric, keras.random.SeedGenerator)
    )


def host_copy(path: str, value: Any) -> Array:
    """A copy of an array in host memory, which nothing that is done to the array later can change.

    Raises:
        InvalidArgumentError: the array is gone, or spread over several processes; or a number is too large.
    """
    if not _on_jax(value):
        copy = np.array(value, order="C")
        if copy.dtype == object:
            raise InvalidArgumentError(f"{path} is {value}, which does not fit into 64 bits")
        return copy
    if value.is_deleted():
        raise InvalidArgumentError(
            f"{path} was donated to a step and is gone: save what the step has returned in its place"
        )
    if not (value.is_fully_addressable or value.is_fully_replicated):
        raise InvalidArgumentError(
            f"{path} has different parts on several workers ({value.sharding}): a checkpoint holds what all have alike"
        )
    return np.array(value, order="C")


def _placed(array: Array, sharding: Any, committed: bool) -> Any:
    # What was not bound to a device must not be: it could not meet arrays on others any more.
    return jax.device_put(array, sharding) if committed else jnp.asarray(array)


def _on_jax(value: Any) -> bool:
    return isinstance(value, jax.Array)


def _is_key(leaf: Any) -> bool:
    return _on_jax(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_numeric(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_))
