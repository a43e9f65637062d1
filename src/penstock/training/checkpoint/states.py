"""States as plain data: what `state_dict()` gives, with its arrays apart.

A state is made of dictionaries, lists, strings, numbers and arrays; in JSON what JSON does not know is a dictionary
with one of the keys below.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.jax.device_dtypes import is_key
from penstock.errors import InvalidTypeError
from penstock.training.checkpoint.arrays import Array, host_copy
from penstock.training.checkpoint.index import Entry
from penstock.training.checkpoint.names import of_keys

_ARRAY, _PAIRS = "__array__", "__pairs__"


class SplitState:
    """A state, split into plain data and arrays.

    Attributes:
        plain: the state, with names instead of its arrays, and lists instead of tuples.
        arrays: copies of its arrays in host memory, by their names.
        entries: their entries in the index.

    Args:
        path: the path of the object.
        state: the result of its `state_dict()`.

    Raises:
        InvalidTypeError: it contains values of other types.
    """

    def __init__(self, path: str, state: Any) -> None:
        self.arrays: dict[str, Array] = {}
        self.entries: list[Entry] = []
        self.plain = self._plain(path, (), state)

    def _plain(self, path: str, keys: tuple[Any, ...], state: Any) -> Any:
        if isinstance(state, Mapping):
            inner = {key: self._plain(path, (*keys, jax.tree_util.DictKey(key)), value) for key, value in state.items()}
            if all(isinstance(key, str) and key not in (_ARRAY, _PAIRS) for key in inner):
                return inner
            if all(type(key) in (str, int) for key in inner):
                return {_PAIRS: [list(pair) for pair in inner.items()]}
        if isinstance(state, (list, tuple)):
            keys_below = (jax.tree_util.SequenceKey(number) for number in range(len(state)))
            return [self._plain(path, (*keys, key), value) for key, value in zip(keys_below, state, strict=False)]
        if state is None or type(state) in (str, int, float, bool):
            return state
        kind = _kind(state)
        name = of_keys(path, keys)
        if kind is None:
            raise InvalidTypeError(
                f"a state in a checkpoint is made of dictionaries, lists, strings, numbers and arrays, got "
                f"{state!r:.80} at {name}"
            )
        if kind == "torch":
            self.arrays[name] = _from_torch(state)
        else:
            self.arrays[name] = host_copy(name, jax.random.key_data(state) if is_key(state) else state)
        array = self.arrays[name]
        self.entries.append(Entry(name, tuple(array.shape), str(array.dtype)))
        return {_ARRAY: name, "kind": kind}


def join_state(plain: Any, arrays: Mapping[str, Array]) -> Any:
    """The state that was split, each array of the type that it had."""
    if isinstance(plain, list):
        return [join_state(value, arrays) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if _ARRAY in plain:
        array = arrays[plain[_ARRAY]]
        if plain["kind"] == "torch":
            return _to_torch(array)
        if plain["kind"] == "scalar":
            return array[()]
        if plain["kind"] in ("jax", "numpy"):
            return jnp.asarray(array) if plain["kind"] == "jax" else np.array(array)
        return jax.random.wrap_key_data(jnp.asarray(array), impl=plain["kind"])
    if _PAIRS in plain:
        return {key: join_state(value, arrays) for key, value in plain[_PAIRS]}
    return {key: join_state(value, arrays) for key, value in plain.items()}


def _torch() -> Any:
    """PyTorch, if it is imported; otherwise no array can be a tensor."""
    return sys.modules.get("torch")


def _kind(value: Any) -> str | None:
    """The kind of array that comes back; of JAX's keys, their implementation."""
    if isinstance(value, jax.Array):
        return str(jax.random.key_impl(value)) if is_key(value) else "jax"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "OUSV":
        return "numpy" if isinstance(value, np.ndarray) else "scalar"
    torch = _torch()
    return "torch" if torch is not None and isinstance(value, torch.Tensor) else None


def _from_torch(tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == _torch().bfloat16:  # NumPy has it through ml_dtypes alone, of which PyTorch does not know
        return np.array(tensor.view(_torch().int16).numpy()).view(jnp.bfloat16)
    return np.array(tensor.numpy())


def _to_torch(array: Array) -> Any:
    if array.dtype == jnp.bfloat16:
        return _torch().from_numpy(np.array(array).view(np.int16)).view(_torch().bfloat16)
    return _torch().from_numpy(np.array(array))
