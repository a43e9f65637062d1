"""`MirroredStrategy`: one replica on each of this process's JAX devices, run as one compiled SPMD program."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.distribute.contexts import ReduceOp
from penstock.distribute.devices import checked_devices
from penstock.distribute.lockstep import lockstep_program
from penstock.distribute.program import AXIS, Mode, ProgramCache, Static, is_per_replica, mode_of, spmd_program
from penstock.distribute.shards import Workers
from penstock.distribute.steps import Shares
from penstock.distribute.strategy import Strategy, check_axis, check_equal_shapes, reduced
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.spec import as_leaf

_ARRAYS = (jax.Array, np.ndarray, np.generic)


class MirroredStrategy(Strategy):
    """One replica on each local JAX device.

    A step whose shares are equal in size runs as one compiled program on all devices; it is compiled once for each
    function and each set of shapes. So give `run` the same function object at every step. As under `jax.jit`, the
    function runs only while it is compiled: what it reads from outside its arguments is fixed from then on. A ragged
    step gives the same numbers by a slower way, on one device.

    Args:
        devices: JAX devices, or names such as "cpu:0"; all local devices of JAX's default platform where None.

    Raises:
        InvalidTypeError: something that is no device.
        InvalidArgumentError: no devices, unknown ones, one of them twice, or several platforms.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.MirroredStrategy()
        >>> dataset = strategy.distribute_dataset(ps.Dataset.range(6).batch(6))
        >>> totals = [strategy.reduce("SUM", batch, axis=0) for batch in dataset]
        >>> int(totals[0])
        15
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self._devices = checked_devices(devices)
        self._mesh = Mesh(np.array(self._devices), (AXIS,))
        self._by_row = NamedSharding(self._mesh, PartitionSpec(AXIS))  # type: ignore[no-untyped-call]
        self._same = NamedSharding(self._mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self._programs = ProgramCache()
        self._signatures: dict[Any, _Signature] = {}
        count = len(self._devices)
        # XLA's CPU devices share one pool of threads, in which programs with collectives that overlap wait for each
        # other's threads for ever. On a CPU, therefore, one such program ends before the next begins.
        self._one_at_a_time = count > 1 and self._devices[0].platform == "cpu"
        self._under_way: Any = None
        self._spread = jax.jit(lambda array: jnp.broadcast_to(array, (count, *array.shape)), out_shardings=self._by_row)
        self._reduce_rows = jax.jit(_reduced_rows, static_argnums=(0, 2), out_shardings=self._same)

    def __repr__(self) -> str:
        return f"MirroredStrategy({', '.join(f'{device.platform}:{device.id}' for device in self._devices)})"

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices."""
        return len(self._devices)

    @property
    def _workers(self) -> Workers:
        return Workers(1, 0, len(self._devices))

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run `fn(*args, **kwargs)` once per replica, on JAX arrays.

        Args:
            fn: the function; inside it `ps.get_replica_context()` knows the replica.
            args: its arguments. Of every `PerReplica` in them each replica sees its own part; arrays and numbers are
                given to all; strings, True and False, functions and other hashable objects are constants that the
                program is compiled for.
            kwargs: its keyword arguments, likewise.

        Returns:
            The structure that `fn` gives, with a `PerReplica` at each leaf; bare arrays on a single device.

        Raises:
            InvalidTypeError: an argument or a result that devices cannot hold.
            InvalidArgumentError: a `PerReplica` of another number of replicas, or replicas that did not all call
                `all_reduce`.
        """
        self._check_call(fn, args, kwargs)
        given = (args if type(args) is tuple else tuple(args), dict(kwargs) if kwargs else {})
        leaves, tree = jax.tree.flatten(given)
        reference, programs = self._programs.of(fn)
        program = programs.get(tree)  # kept so as well where all leaves are stacked: then the tree tells all
        if program is not None:
            return self._begun(program, leaves)
        signature = self._signatures.get(tree)
        if signature is None:
            given = jax.tree.map(self._stacked_if_possible, given, is_leaf=is_per_replica)
            if any(
                is_per_replica(top) and top.stacked is None for top in jax.tree.leaves(given, is_leaf=is_per_replica)
            ):
                return self._run_ragged(fn, given)
            leaves, tree = jax.tree.flatten(given)
            signature = self._signatures[tree] = _Signature.of(given)
        modes = signature.modes(leaves)
        key = (signature.tree, modes)
        program = programs.get(key)
        if program is None:
            program = programs[key] = spmd_program(reference, signature.tree, modes, self._mesh)
        if signature.ready:
            programs[tree] = program
        return self._begun(program, leaves if signature.ready else self._entering(leaves, modes, signature.stacked))

    def _begun(self, program: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The result of a program with collectives, which may still be under way."""
        if not self._one_at_a_time:
            return program(*arguments)
        if self._under_way is not None:
            self._under_way.block_until_ready()
        result = program(*arguments)
        self._under_way = _first_output(result)  # one output tells for all: they are there together
        return result

    def _entering(self, leaves: list[Any], modes: tuple[Mode, ...], stacked: tuple[bool, ...]) -> list[Any]:
        """The leaves that a program takes, in the form and the place in which it takes them."""
        return [
            self._for_all(leaf) if mode == "array" and not own else leaf
            for leaf, mode, own in zip(leaves, modes, stacked, strict=True)
            if not isinstance(mode, Static)
        ]

    def _for_all(self, array: Any) -> Any:
        """An array that every replica gets, in the stacked form."""
        if not isinstance(array, jax.Array):
            _check_width("an argument of strategy.run", as_leaf(array))
        if len(self._devices) == 1:
            return jax.device_put(array, self._same)
        # Stacked, because what becomes of it in a step comes back stacked and must fit the same program.
        return self._spread(jax.device_put(array, self._same))

    def _run_ragged(self, fn: Callable[..., Any], given: Any) -> Any:
        shares, trees, modes = [], [], []
        for replica in range(len(self._devices)):
            leaves, tree = jax.tree.flatten(self._share(given, replica))
            entering = tuple(map(mode_of, leaves))
            trees.append(tree)
            modes.append(entering)
            shares.append(
                [
                    jax.device_put(leaf, self._devices[0]) if mode == "array" else leaf
                    for leaf, mode in zip(leaves, entering, strict=True)
                    if not isinstance(mode, Static)
                ]
            )
        reference, programs = self._programs.of(fn)
        key = (tuple(trees), tuple(modes))
        program = programs.get(key)
        if program is None:
            program = programs[key] = lockstep_program(reference, *key)
        with jax.default_device(self._devices[0]):
            result = program(*shares)
        return jax.tree.map(self._spread_out, result, is_leaf=is_per_replica)

    def _spread_out(self, value: PerReplica) -> PerReplica:
        """A value computed on one device, each replica's part brought to its own."""
        if value.stacked is not None:
            return PerReplica.of_stacked(jax.device_put(value.stacked, self._by_row), value.count)
        return PerReplica(jax.device_put(list(value.values), self._devices))

    def _place(self, leaves: list[Shares], even: bool) -> list[PerReplica]:
        """The leaves of a step on the devices; strings and other objects stay in host memory."""
        numbers = [shares for shares in leaves if _fits_device(shares.parts[0])]
        for shares in numbers:
            for part in shares.parts if shares.whole is None else [shares.whole]:
                _check_width("a batch", part)
        placed = iter(self._placed(numbers, even))
        return [next(placed) if _fits_device(shares.parts[0]) else PerReplica(shares.parts) for shares in leaves]

    def _placed(self, leaves: list[Shares], even: bool) -> list[PerReplica]:
        replicas = len(self._devices)
        if replicas == 1:
            return [
                PerReplica([array])
                for array in jax.device_put([shares.parts[0] for shares in leaves], self._devices[0])
            ]
        if not even:
            return [PerReplica(jax.device_put(shares.parts, self._devices)) for shares in leaves]
        # One transfer of all shares is faster than one for each.
        rows = [
            np.stack(shares.parts)
            if shares.whole is None
            else shares.whole.reshape(replicas, len(shares.parts[0]), *shares.whole.shape[1:])
            for shares in leaves
        ]
        return [PerReplica.of_stacked(array, replicas) for array in jax.device_put(rows, self._by_row)]

    def _regrouped(self, call: str, results: list[Any]) -> Any:
        structures: list[Any] = [jax.tree.structure(result) for result in results]
        for replica, structure in enumerate(structures):
            if structure != structures[0]:
                raise InvalidTypeError(
                    f"{call} must give one structure on every replica, got {structures[0]} on replica 0 and "
                    f"{structure} on replica {replica}"
                )
        return jax.tree.map(lambda *parts: self._stacked_if_possible(PerReplica(parts)), *results)

    def _stacked_if_possible(self, value: Any) -> Any:
        """A `PerReplica` of numbers or of arrays of one shape and dtype in the stacked form; all else as it is."""
        if not isinstance(value, PerReplica):
            return value
        self._checked(value)
        if value.count == 1:
            return value.values[0]
        if value.stacked is not None or not all(isinstance(part, (*_ARRAYS, int, float)) for part in value.values):
            return value
        parts = [as_leaf(part) for part in value.values]
        if len({(part.shape, part.dtype) for part in parts}) > 1 or not _fits_device(parts[0]):
            return value
        for part in parts:
            _check_width("a PerReplica", part)
        rows = [jax.device_put(part[None], device) for part, device in zip(parts, self._devices, strict=True)]
        shape = (len(parts), *parts[0].shape)
        return PerReplica.of_stacked(jax.make_array_from_single_device_arrays(shape, self._by_row, rows), len(parts))

    def _map(self, function: Callable[[Any], Any], value: Any) -> Any:
        return jax.tree.map(function, value, is_leaf=is_per_replica)

    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axis: int | None) -> Any:
        if not isinstance(leaf, PerReplica) or leaf.stacked is None or leaf.stacked.size == 0:
            return reduced(op, self._on_first("strategy.reduce", leaf), axis)
        rank = leaf.stacked.ndim - 1
        if axis is not None and not -rank <= axis < rank:
            check_axis("reduce", leaf.values, axis)
        # One array on one device, as every plain array of this strategy is.
        total = self._begun(self._reduce_rows, (op, leaf.stacked, None if axis is None else axis % rank))
        return total.addressable_data(0)

    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        parts = self._on_first("strategy.gather", leaf)
        check_axis("gather", parts, axis)
        check_equal_shapes("gather", parts, apart_from=axis)
        return jnp.concatenate(parts, axis=axis)

    def _on_first(self, call: str, leaf: Any) -> tuple[Any, ...]:
        """Every replica's part of a leaf, on the first device."""
        parts = [as_leaf(part) for part in self._parts(leaf)]
        for part in parts:
            if not isinstance(part, _ARRAYS) or not _fits_device(part):
                raise InvalidTypeError(f"{call} takes numbers, got {part!r}")
        return tuple(jax.device_put(parts, self._devices[0]))


@dataclass(frozen=True)
class _Signature:
    """The arguments of `run` without their values.

    Attributes:
        tree: their structure, with a leaf in place of each `PerReplica`.
        stacked: for each leaf whether it is a `PerReplica`, which then is in the stacked form.
        ready: whether all are, so that a program takes them as they come.
        all_arrays: the modes where all are.
    """

    tree: Any
    stacked: tuple[bool, ...]
    ready: bool
    all_arrays: tuple[Mode, ...]

    @staticmethod
    def of(given: Any) -> "_Signature":
        tops, tree = jax.tree.flatten(given, is_leaf=is_per_replica)
        stacked = tuple(map(is_per_replica, tops))
        array: Mode = "array"
        return _Signature(tree, stacked, all(stacked), (array,) * len(tops))

    def modes(self, leaves: list[Any]) -> tuple[Mode, ...]:
        """How each leaf enters a program."""
        if self.ready:
            return self.all_arrays
        return tuple(["array" if own else mode_of(leaf) for own, leaf in zip(self.stacked, leaves, strict=True)])


def _first_output(result: Any) -> Any:
    """Some array of a result, or None; flattening all of it would cost more than the rest of a step's bookkeeping."""
    while isinstance(result, (tuple, dict)) and result:
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    if isinstance(result, PerReplica):
        return result.stacked
    return next(iter(jax.tree.leaves(result)), None)


def _reduced_rows(op: ReduceOp, stacked: Any, axis: int | None) -> Any:
    axes = (0,) if axis is None else (0, axis + 1)
    return jnp.sum(stacked, axis=axes) if op is ReduceOp.SUM else jnp.mean(stacked, axis=axes)


def _fits_device(array: Any) -> bool:
    """Whether devices can hold values of this kind: not objects, strings and times."""
    return isinstance(array, jax.Array) or array.dtype.kind not in "OSUMm"


def _check_width(holder: str, leaf: Any) -> None:
    """Refuse integers that the devices would cut down to other numbers."""
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
