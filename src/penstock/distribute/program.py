"""What `MeshStrategy.run` compiles for a full step: one SPMD program per function and layout of its arguments.

Also makes `PerReplica` a JAX pytree, so that compiled programs take it and give it.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from penstock.distribute.contexts import ReduceOp, ReplicaContext, as_reduce_op, replica_scope
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidTypeError

AXIS = "replica"
"""The mesh axis with one device per replica."""


def _flatten(value: PerReplica) -> tuple[tuple[Any, ...], int | None]:
    stacked = value.stacked
    return ((stacked,), value.count) if stacked is not None else (value.values, None)


def _unflatten(count: int | None, children: Any) -> PerReplica:
    return PerReplica(children) if count is None else PerReplica.of_stacked(children[0], count)


# The count is part of the tree's identity: a program compiled for 4 replicas is never looked up for a value of 2.
jax.tree_util.register_pytree_node(PerReplica, _flatten, _unflatten)


def is_per_replica(value: Any) -> bool:
    """Whether `jax.tree` functions must stop here."""
    return isinstance(value, PerReplica)


@dataclass(frozen=True)
class Static:
    """An argument that a program is compiled for: a string, a flag, a function. Its type counts too: True is not 1."""

    kind: type
    value: Any


Mode = Literal["array", "number"] | Static
"""How an argument enters a program: as an array with a row per replica, as one Python number for all, or not at all."""


def mode_of(leaf: Any) -> Mode:
    """How an argument enters a program.

    Raises:
        InvalidTypeError: it cannot enter one.
    """
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)):
        if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "OSUMm":
            raise InvalidTypeError(
                f"strategy.run got an array of dtype {leaf.dtype}, which devices cannot hold: turn strings into "
                "numbers in the dataset"
            )
        return "array"
    if isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
        return "number"
    try:
        hash(leaf)
    except TypeError:
        raise InvalidTypeError(
            f"strategy.run got an argument of type {type(leaf).__name__}, which is neither an array, nor a structure "
            "that JAX knows (register a class of yours by jax.tree_util.register_dataclass), nor hashable"
        ) from None
    return Static(type(leaf), leaf)


class MeshReplica(ReplicaContext):
    """The replica that a program is traced for: all of them, told apart by their place on the mesh axis."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._replicas

    @property
    def replica_id_in_sync_group(self) -> Any:
        return lax.axis_index(AXIS)

    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        operation = as_reduce_op("all_reduce(op)", op)
        collective: Any = lax.psum if operation is ReduceOp.SUM else lax.pmean
        return jax.tree.map(lambda leaf: collective(_widened(leaf), AXIS), value)


def _widened(leaf: Any) -> Any:
    """Booleans and small integers as `sum` widens them, so that a sum over replicas does not wrap around."""
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
        raise InvalidTypeError(f"all_reduce takes numbers and arrays, got {leaf!r}")
    array = jnp.asarray(leaf)
    floating = jnp.issubdtype(array.dtype, jnp.inexact)
    return array if floating else array.astype(jnp.sum(jnp.zeros((), array.dtype)).dtype)


def call_replica(fn: Callable[..., Any], tree: Any, modes: tuple[Mode, ...], replicas: int, leaves: Any) -> Any:
    """Call the user's function, while tracing, with the arguments of one replica; its outputs become arrays.

    Args:
        fn: the function.
        tree: the structure of its (args, kwargs).
        modes: how each leaf entered the program.
        replicas: the number of replicas in sync.
        leaves: the leaves that are not static, as this replica has them.
    """
    remaining = iter(leaves)
    args, kwargs = tree.unflatten([mode.value if isinstance(mode, Static) else next(remaining) for mode in modes])
    with replica_scope(MeshReplica(replicas)):
        return jax.tree.map(_output, fn(*args, **kwargs))


def _output(leaf: Any) -> Any:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
        raise InvalidTypeError(
            f"a function given to strategy.run must return numbers, arrays or structures of them, got {leaf!r} in its "
            "result"
        )
    return jnp.asarray(leaf)


def spmd_program(
    fn: Callable[[], Callable[..., Any]], tree: Any, modes: tuple[Mode, ...], mesh: Mesh, local: int
) -> Callable[..., Any]:
    """The compiled program of one full step on all devices of the mesh.

    Args:
        fn: gives the user's function; a reference, so that the cached program does not keep the function alive.
        tree: the structure of (args, kwargs) with a leaf in place of each `PerReplica`.
        modes: how each leaf enters.
        mesh: the devices, one per replica, on one axis.
        local: how many of them are this process's.

    Returns:
        A function of the leaves that are not static, arrays in the stacked form. It gives a `PerReplica` at each leaf
        of the result; with one device everything is bare.
    """
    replicas = mesh.size
    single, split = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
    entering = [mode for mode in modes if not isinstance(mode, Static)]
    own_row = [replicas > 1 and mode != "number" for mode in entering]

    def step(*leaves: Any) -> Any:
        shares = [leaf[0] if own else leaf for leaf, own in zip(leaves, own_row, strict=True)]
        result = call_replica(fn(), tree, modes, replicas, shares)
        if replicas == 1:
            return result
        return jax.tree.map(lambda leaf: PerReplica.of_stacked(leaf[None], local), result)

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=tuple(split if own else single for own in own_row),
        out_specs=single if replicas == 1 else split,
        check_vma=False,
    )
    return jax.jit(mapped)


class ProgramCache:
    """Programs by the function they were made of, for as long as that function lives."""

    def __init__(self) -> None:
        self._entries: dict[int | tuple[int, int], tuple[Callable[[], Any], dict[Any, Any]]] = {}

    def of(self, fn: Callable[..., Any]) -> tuple[Callable[[], Any], dict[Any, Any]]:
        """A reference to `fn`, and its programs by whatever key the caller chooses.

        A bound method is a new object at every access: it is known by its object and its function.
        """
        entry = self._entries.get(id(fn))
        if entry is not None:
            return entry
        method = isinstance(fn, MethodType)
        key = (id(fn.__self__), id(fn.__func__)) if isinstance(fn, MethodType) else id(fn)
        entry = self._entries.get(key)
        if entry is None:
            entries = self._entries

            def forget(_: Any) -> None:
                entries.pop(key, None)

            try:
                reference: Callable[[], Any] = weakref.WeakMethod(fn, forget) if method else weakref.ref(fn, forget)
            except TypeError:  # it cannot be referred to weakly: it stays
                reference = lambda: fn  # noqa: E731
            entry = entries[key] = (reference, {})
        return entry
