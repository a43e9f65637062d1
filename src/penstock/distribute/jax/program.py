"""The SPMD program that `MeshStrategy.run` compiles for a full step, one per function and layout of its arguments.

Also makes `PerReplica` a JAX pytree, so that compiled programs take it and give it.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MethodType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from penstock.data.dataset import Dataset
from penstock.data.iterator import DatasetIterator
from penstock.distribute.contexts import ReduceOp, ReplicaContext, checked_axis, replica_scope
from penstock.distribute.feed.dataset import DistributedDataset, DistributedIterator
from penstock.distribute.framework import NOTHING_TOUCHED, Framework, Touched
from penstock.distribute.jax.assumptions import Assumptions, check_assumptions
from penstock.distribute.jax.device_dtypes import check_width, fits_device, is_key
from penstock.distribute.jax.host_placeholder import HostPlaceholder
from penstock.distribute.reduction import check_axes
from penstock.distribute.tensorflow import REPLICA
from penstock.distribute.values import PerReplica, StackedPerReplica
from penstock.errors import InvalidTypeError
from penstock.options import as_member

AXIS = "replica"
"""The mesh axis with one device per replica."""
GATHERING = "penstock.all_gather"
"""The name of the sums of `all_gather` in traces and profiles."""


# The count is part of the tree, so a program that was compiled for 4 replicas is never used for a value of 2.
jax.tree_util.register_dataclass(StackedPerReplica, data_fields=["stacked"], meta_fields=["count"])
jax.tree_util.register_pytree_node(PerReplica, lambda value: (value.values, None), lambda _, values: PerReplica(values))


def is_per_replica(value: Any) -> bool:
    """Return whether `jax.tree` functions must stop here."""
    return isinstance(value, PerReplica)


@dataclass(frozen=True)
class Static:
    """An argument that a program is compiled for: a string, a flag, a function. Its type counts too: True is not 1."""

    kind: type
    value: Any


Mode = Literal["array", "number"] | Static
"""How a program takes an argument: as an array with a row per replica, as a Python number, or as a constant."""


def mode_of(leaf: Any) -> Mode:
    """Return how a program takes an argument.

    Raises:
        InvalidTypeError: it cannot enter one.
    """
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)):
        if not fits_device(leaf):
            return Static(HostPlaceholder, HostPlaceholder(leaf.dtype))
        return "array"
    if isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool):
        return "number"
    if isinstance(leaf, (Dataset, DatasetIterator, DistributedDataset, DistributedIterator)):
        raise InvalidTypeError(
            f"strategy.run got a {type(leaf).__name__}: give it a batch, such as next(iter(distributed_dataset)); "
            "strategy.run_steps takes an iterator"
        )
    try:
        hash(leaf)
    except TypeError:
        raise InvalidTypeError(
            f"strategy.run got an argument of type {type(leaf).__name__}, which is neither an array, nor a structure "
            "that JAX knows (register a class of yours by jax.tree_util.register_dataclass), nor hashable"
        ) from None
    return Static(type(leaf), leaf)


@REPLICA
class MeshReplica(ReplicaContext):
    """The replica context while a program is traced: one trace for all replicas, which differ in their mesh index."""

    def __init__(self, replicas: int, has_rows: bool) -> None:
        self._replicas = replicas
        self._has_rows = has_rows

    @property
    def num_replicas_in_sync(self) -> int:
        return self._replicas

    @property
    def has_rows(self) -> bool:
        return self._has_rows

    @property
    def replica_id_in_sync_group(self) -> Any:
        return lax.axis_index(AXIS)

    def all_reduce(self, op: ReduceOp | str, value: Any) -> Any:
        operation = as_member("all_reduce(op)", ReduceOp, op)
        collective: Any = lax.psum if operation is ReduceOp.SUM else lax.pmean
        return jax.tree.map(lambda leaf: collective(_widened("all_reduce", leaf), AXIS), value)

    def all_gather(self, value: Any, axis: int) -> Any:
        checked_axis("all_gather", axis)
        return jax.tree.map(lambda leaf: self._gather_as_sum(leaf, axis), value)

    def _gather_as_sum(self, leaf: Any, axis: int) -> Any:
        """All gather as a sum of zero-padded values, because ragged steps support sums and extremes only."""
        if is_key(leaf):
            check_axes("all_gather", (leaf,), (axis,))
            numbers = self._gather_as_sum(jax.random.key_data(leaf), axis % leaf.ndim)
            return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(leaf))
        wide = _widened("all_gather", leaf)
        check_axes("all_gather", (wide,), (axis,))
        gathered = jnp.zeros((self._replicas, *wide.shape), wide.dtype)
        total: Any = lax.psum
        with jax.named_scope(GATHERING):
            gathered = total(gathered.at[lax.axis_index(AXIS)].set(wide), AXIS)
        return jnp.concatenate(list(gathered), axis=axis).astype(jnp.asarray(leaf).dtype)


def _widened(call: str, leaf: Any) -> Any:
    """Booleans and small integers, widened as by `sum`, so that a sum over replicas does not overflow."""
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)) or is_key(leaf):
        raise InvalidTypeError(f"{call} takes numbers and arrays, got {leaf!r}")
    array = _as_array(f"the value given to {call}", leaf)
    floating = jnp.issubdtype(array.dtype, jnp.inexact)
    return array if floating else array.astype(jnp.sum(jnp.zeros((), array.dtype)).dtype)


@dataclass(frozen=True)
class Call:
    """A user's function and the layout of its arguments, without their values.

    Attributes:
        fn: gives the function; a reference, so that a cached program does not keep it alive.
        tree: the structure of its (args, kwargs), with a leaf for each `PerReplica`.
        modes: how each leaf enters.
        replicas: the number of replicas in sync.
        framework: whose variables it uses, if any.
        touched: these variables.
        check_weights: whether to compare the variables that must be equal on all replicas.
        assumed: the assumptions under which it was compiled ahead of time; the list may grow.
    """

    fn: Callable[[], Callable[..., Any]]
    tree: Any
    modes: tuple[Mode, ...]
    replicas: int
    framework: Framework | None = None
    touched: Touched = NOTHING_TOUCHED
    check_weights: bool = False
    assumed: Sequence[Assumptions] = field(default=(), compare=False)

    def on_replica(self, values: list[Any], leaves: list[Any]) -> tuple[Any, list[Any], Any]:
        """Call the function for one replica while it is traced.

        Args:
            values: those of the variables, written ones first.
            leaves: the leaves that are not static, as this replica has them.

        Returns:
            The result, its leaves as arrays; the new values of the variables that were written; and the largest
            differences between replicas of those that must be equal, or None if `check_weights` is off.
        """
        remaining = iter(leaves)
        entries = [mode.value if isinstance(mode, Static) else next(remaining) for mode in self.modes]
        check_assumptions(self.assumed, self.tree, entries)
        args, kwargs = self.tree.unflatten(entries)
        context = MeshReplica(self.replicas, has_rows=all(0 not in jnp.shape(leaf) for leaf in leaves))
        with replica_scope(context):
            if self.framework is None:
                return self._call_user_function(args, kwargs), [], None
            written = self.touched.written
            variables = [*written, *self.touched.read]
            with self.framework.with_values(variables, values, context.replica_id_in_sync_group) as lent:
                result = self._call_user_function(args, kwargs)
            merged = self.framework.merged(lent, written, values[: len(written)], context)
            equal = [merged[index] for index in self.replicated] if self.check_weights else []
            return result, merged, jnp.stack([_difference(value) for value in equal]) if equal else None

    def _call_user_function(self, args: Any, kwargs: Any) -> Any:
        try:
            return jax.tree.map(_output, self.fn()(*args, **kwargs))
        except jax.errors.JAXTypeError as error:
            error.add_note(
                "penstock: strategy.run compiles the function before there are values, so Python can neither branch on "
                "an array nor convert one there: use jax.numpy and jax.lax.cond, return the values to look at, or "
                "try the function under ps.HostStrategy"
            )
            raise

    @cached_property
    def replicated(self) -> list[int]:
        """The indices, among the variables that are written, of those that must be equal on all replicas."""
        return self.framework.replicated(self.touched.written) if self.framework and self.replicas > 1 else []


def _difference(value: Any) -> Any:
    """The largest difference between a value on any replica and on the first; infinite if one of the two is NaN."""
    value = jnp.asarray(value)
    largest: Any = lax.pmax
    total: Any = lax.psum
    first = total(jnp.where(lax.axis_index(AXIS) == 0, value, jnp.zeros_like(value)), AXIS)
    equal = (value == first) | ((value != value) & (first != first))
    gap = jnp.where(equal, 0, jnp.abs(value.astype(jnp.float32) - first.astype(jnp.float32)))
    return largest(jnp.max(jnp.where(jnp.isnan(gap), jnp.inf, gap), initial=0), AXIS)


def _output(leaf: Any) -> Any:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
        raise InvalidTypeError(
            f"a function given to strategy.run must return numbers, arrays or structures of them, got {leaf!r} in its "
            "result"
        )
    return _as_array("a result of the function given to strategy.run", leaf)


def _as_array(holder: str, leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        check_width(holder, leaf)
    return jnp.asarray(leaf)


def spmd_program(call: Call, mesh: Mesh, local: int, donated: Sequence[int] = ()) -> Callable[..., Any]:
    """The compiled program of one full step on all devices of the mesh.

    Args:
        call: the function and how its arguments enter.
        mesh: the devices, one per replica, on one axis.
        local: how many of them are this process's.
        donated: which of the leaves that are not static give their buffers to the program.

    Returns:
        A function of the leaves that are not static, arrays in the stacked form, which gives the result with a
        `PerReplica` at each leaf, with one device bare arrays. Of a call that touches variables, a function of the
        values of those that are written, of those that are read, and of the leaves, which gives the result, new
        values, and differences as `Call.on_replica` does.
    """
    replicas = mesh.size
    entering = [mode for mode in call.modes if not isinstance(mode, Static)]
    own_row = [replicas > 1 and mode != "number" for mode in entering]

    def step(written: list[Any], read: list[Any], *leaves: Any) -> Any:
        slices = [leaf[0] if own else leaf for leaf, own in zip(leaves, own_row, strict=True)]
        result, values, differences = call.on_replica([*written, *read], slices)
        if replicas > 1:
            result = jax.tree.map(lambda leaf: StackedPerReplica(leaf[None], local), result)
        return result, values, differences

    return compiled_on_mesh(step, call.framework is not None, mesh, own_row, donated)


def compiled_on_mesh(
    step: Callable[..., Any], stateful: bool, mesh: Mesh, by_replica: Sequence[bool], donated: Sequence[int]
) -> Callable[..., Any]:
    """Compile a step for all devices of the mesh.

    Args:
        step: a function of written variables, of read ones, and of further arguments; gives the result, the new values
            of the variables, and their differences.
        stateful: whether there are variables; otherwise the program takes the further arguments and gives the result.
        mesh: the devices, one per replica, on one axis.
        by_replica: for each further argument whether it has a row for each replica.
        donated: which of the further arguments give their buffers to the program.
    """
    single, split = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
    in_specs = tuple(split if own else single for own in by_replica)
    result_spec = single if mesh.size == 1 else split
    if not stateful:
        plain = jax.shard_map(
            lambda *given: step([], [], *given)[0],
            mesh=mesh,
            in_specs=in_specs,
            out_specs=result_spec,
            check_vma=False,
        )
        return jax.jit(plain, donate_argnums=donated)
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(single, single, *in_specs),
        out_specs=(result_spec, single, single),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=(0, *(2 + number for number in donated)))


class ProgramCache:
    """Compiled programs of each user function, kept as long as the function lives."""

    def __init__(self) -> None:
        self._entries: dict[int | tuple[int, int], tuple[Callable[[], Any], dict[Any, Any]]] = {}

    def of(self, fn: Callable[..., Any]) -> tuple[Callable[[], Any], dict[Any, Any]]:
        """A reference to `fn`, and its programs, by keys that the caller chooses.

        A bound method is a new object at every access, so it is identified by its object and its function.
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
            except TypeError:  # it has no weak references: it is kept for ever
                reference = lambda: fn  # noqa: E731
            entry = entries[key] = (reference, {})
        return entry
