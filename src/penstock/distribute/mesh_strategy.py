"""What all strategies on JAX devices share: one replica per device, run as one compiled SPMD program."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.arguments import (
    ARRAYS,
    Signature,
    check_width,
    fits_device,
    shape_of,
    specified,
    struct,
)
from penstock.distribute.bound import BoundProgram, touched_variables
from penstock.distribute.contexts import ReduceOp
from penstock.distribute.control import Control
from penstock.distribute.launcher import Launcher
from penstock.distribute.placement import Placement
from penstock.distribute.program import Call, Mode, ProgramCache, Static, is_per_replica, spmd_program
from penstock.distribute.ragged import RaggedSteps, Shapes
from penstock.distribute.shards import Workers
from penstock.distribute.steps import Shares
from penstock.distribute.strategy import Strategy, check_axis, check_equal_shapes, reduced
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidTypeError
from penstock.spec import TensorSpec, as_leaf

_flatten = jax.tree_util.default_registry.flatten
"""`jax.tree.flatten` without its wrapper: a step of a small model takes little more time than some calls in Python."""


class MeshStrategy(Strategy):
    """One replica on each device of a mesh, which may span several processes.

    Args:
        devices: those of all workers, worker by worker.
        workers: which worker this is, of how many.
        control: where they talk to each other, if there are several.
    """

    def __init__(self, devices: Sequence[jax.Device], workers: Workers, control: Control | None) -> None:
        self.__workers = workers
        self._control = control
        self._placement = Placement(devices, workers.local)
        self._programs = ProgramCache()
        self._signatures: dict[Any, Signature] = {}
        count = len(devices)
        self._launcher = Launcher(devices, control)
        self._ragged = RaggedSteps(self._placement, workers, control, self._launcher, self._programs)
        by_row, same = self._placement.by_row, self._placement.same
        self._spread = jax.jit(lambda array: jnp.broadcast_to(array, (count, *array.shape)), out_shardings=by_row)
        self._reduce_rows = jax.jit(_reduced_rows, static_argnums=(0, 2), out_shardings=same)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices on all workers."""
        return self.__workers.replicas_in_sync

    @property
    def _workers(self) -> Workers:
        return self.__workers

    @property
    def _devices(self) -> list[jax.Device]:
        """This worker's devices."""
        return self._placement.local_devices

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
        self._check_others()
        given = (args if type(args) is tuple else tuple(args), dict(kwargs) if kwargs else {})
        leaves, tree = _flatten(given)
        programs = self._programs.of(fn)[1]
        program = programs.get(tree)  # kept so as well where all leaves are stacked: then the tree tells all
        if program is not None:
            return self._launcher.begun(program, leaves)
        signature = self._signatures.get(tree)
        if signature is None:
            given, shapes = self._stacked("strategy.run", given)
            if shapes:
                return self._ragged.run(fn, given, shapes)
            leaves, tree = jax.tree.flatten(given)
            signature = self._signatures[tree] = Signature.of(given)
        program, arguments = self._program(fn, signature, leaves)
        if signature.ready:
            programs[tree] = program
        return self._launcher.begun(program, arguments)

    def _check_others(self) -> None:
        """Refuse what all workers must take part in, where one cannot any more."""
        if self._control is not None:
            self._control.check_collective()

    def compile(
        self, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._check_call(fn, args, kwargs)
        specs = jax.tree.map(self._specified, (tuple(args), dict(kwargs or {})), is_leaf=is_per_replica)
        given, _ = self._stacked("strategy.compile", specs)
        program, arguments = self._program(fn, Signature.of(given), jax.tree.leaves(given))
        program.lower(*arguments).compile()

    def _specified(self, leaf: Any) -> Any:
        """A specification as something to compile for; all else as it is."""
        placement, total = self._placement, self.num_replicas_in_sync
        if isinstance(leaf, TensorSpec):
            return specified(leaf, leaf.shape, placement.same)
        if is_per_replica(leaf) and isinstance(leaf.values[0], TensorSpec):
            spec = leaf.values[0]
            return PerReplica.of_stacked(specified(spec, (total, *spec.shape), placement.by_row), leaf.count)
        return leaf

    def _program(
        self, fn: Callable[..., Any], signature: Signature, leaves: list[Any]
    ) -> tuple[BoundProgram, list[Any]]:
        """The program of a step, and the arguments in the form in which it takes them."""
        modes = signature.modes(leaves)
        arguments = leaves if signature.ready else self._entering(leaves, modes, signature.stacked)
        reference, programs = self._programs.of(fn)
        key = (signature.tree, modes)
        program = programs.get(key)
        if program is None:
            call = Call(reference, signature.tree, modes, self.num_replicas_in_sync)
            program = programs[key] = self._bound(call, arguments)
        return program, arguments

    def _bound(self, call: Call, arguments: list[Any]) -> Any:
        """The program of a full step, with the variables that the function is found to touch."""
        placement, local = self._placement, self._workers.replicas
        program = spmd_program(call, placement.mesh, local)
        framework, touched = touched_variables(program, arguments, placement, self._launcher.wait)
        if framework is None:
            return program
        call = replace(call, framework=framework, touched=touched)
        return BoundProgram(spmd_program(call, placement.mesh, local), framework, touched, placement.on_all, _unchanged)

    def _entering(self, leaves: list[Any], modes: tuple[Mode, ...], stacked: tuple[bool, ...]) -> list[Any]:
        """The leaves that a program takes, in the form and the place in which it takes them."""
        return [
            self._for_all(leaf) if mode == "array" and not own else leaf
            for leaf, mode, own in zip(leaves, modes, stacked, strict=True)
            if not isinstance(mode, Static)
        ]

    def _for_all(self, array: Any) -> Any:
        """An array that every replica gets, in the stacked form."""
        if isinstance(array, jax.ShapeDtypeStruct):
            shape = array.shape if self.num_replicas_in_sync == 1 else (self.num_replicas_in_sync, *array.shape)
            return struct(shape, array.dtype, sharding=self._placement.by_row)
        if not isinstance(array, jax.Array):
            check_width("an argument of strategy.run", as_leaf(array))
        array = self._placement.for_all(array)
        # Stacked, because what becomes of it in a step comes back stacked and must fit the same program.
        return array if self.num_replicas_in_sync == 1 else self._spread(array)

    def _place(self, leaves: list[Shares], even: bool) -> list[PerReplica]:
        """The leaves of a step on the devices; strings and other objects stay in host memory."""
        numbers = [shares for shares in leaves if fits_device(shares.parts[0])]
        for shares in numbers:
            for part in shares.parts if shares.whole is None else [shares.whole]:
                check_width("a batch", part)
        placed = iter(self._placed(numbers, even))
        return [next(placed) if fits_device(shares.parts[0]) else PerReplica(shares.parts) for shares in leaves]

    def _placed(self, leaves: list[Shares], even: bool) -> list[PerReplica]:
        replicas = self._workers.replicas
        if self.num_replicas_in_sync == 1:
            arrays = jax.device_put([shares.parts[0] for shares in leaves], self._devices[0])
            return [PerReplica([array]) for array in arrays]
        if not even:
            return [PerReplica(jax.device_put(shares.parts, self._devices)) for shares in leaves]
        rows = [
            np.stack(shares.parts)
            if shares.whole is None
            else shares.whole.reshape(replicas, len(shares.parts[0]), *shares.whole.shape[1:])
            for shares in leaves
        ]
        return [PerReplica.of_stacked(self._placement.rows(array), replicas) for array in rows]

    def _regrouped(self, call: str, results: list[Any]) -> Any:
        structures: list[Any] = [jax.tree.structure(result) for result in results]
        for replica, structure in enumerate(structures):
            if structure != structures[0]:
                raise InvalidTypeError(
                    f"{call} must give one structure on every replica, got {structures[0]} on replica 0 and "
                    f"{structure} on replica {replica}"
                )
        values = jax.tree.map(lambda *parts: PerReplica(parts), *results)
        return self._stacked(call, values)[0]

    def _stacked(self, call: str, value: Any) -> tuple[Any, list[Shapes]]:
        """A nested value with what can be in the stacked form in it, and the shapes of each `PerReplica` that cannot.

        Where there are several workers they tell each other the shapes, because all must do the same.
        """
        loose = [leaf for leaf in jax.tree.leaves(value, is_leaf=is_per_replica) if self._is_loose(leaf)]
        if not loose:
            return jax.tree.map(self._bare_if_single, value, is_leaf=is_per_replica), []
        own = [[shape_of(part) for part in leaf.values] for leaf in loose]
        told = [own] if self._control is None else self._control.gather(call, own)
        ragged: list[Shapes] = []
        fates: dict[int, bool] = {}
        for number, leaf in enumerate(loose):
            shapes = [worker[number] for worker in told]
            distinct = {str(shape) for worker in shapes for shape in worker}
            fates[id(leaf)] = len(distinct) == 1 and shapes[0][0] is not None
            if not fates[id(leaf)]:
                ragged.append([[tuple(shape[0]) if shape else None for shape in worker] for worker in shapes])

        def stack(leaf: Any) -> Any:
            return self._of_parts(leaf) if fates.get(id(leaf)) else self._bare_if_single(leaf)

        return jax.tree.map(stack, value, is_leaf=is_per_replica), ragged

    def _is_loose(self, leaf: Any) -> bool:
        if not is_per_replica(leaf):
            return False
        self._checked(leaf)
        return leaf.stacked is None and self.num_replicas_in_sync > 1

    def _bare_if_single(self, leaf: Any) -> Any:
        return leaf.values[0] if self.num_replicas_in_sync == 1 and is_per_replica(leaf) else leaf

    def _of_parts(self, value: PerReplica) -> PerReplica:
        parts = [as_leaf(part) for part in value.values]
        for part in parts:
            check_width("a PerReplica", part)
        return PerReplica.of_stacked(self._placement.of_parts(parts), len(parts))

    def _map(self, function: Callable[[Any], Any], value: Any) -> Any:
        return jax.tree.map(function, value, is_leaf=is_per_replica)

    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axis: int | None) -> Any:
        self._check_others()
        if not isinstance(leaf, PerReplica) or leaf.stacked is None or leaf.stacked.size == 0:
            return self._reduce_parts(op, self._on_first("strategy.reduce", leaf), axis)
        rank = leaf.stacked.ndim - 1
        if axis is not None and not -rank <= axis < rank:
            check_axis("reduce", leaf.values, axis)
        # One array on one device, as every plain array of this strategy is.
        total = self._launcher.begun(self._reduce_rows, (op, leaf.stacked, None if axis is None else axis % rank))
        return total.addressable_data(0)

    def _reduce_parts(self, op: ReduceOp, parts: tuple[Any, ...], axis: int | None) -> Any:
        if self._control is None:
            return reduced(op, parts, axis)
        everyone = self._shapes_of_all("strategy.reduce", parts)
        if axis is not None:
            check_axis("reduce", everyone, axis)
        check_equal_shapes("reduce", everyone, apart_from=axis)
        count = len(everyone) if axis is None else sum(shape.shape[axis] for shape in everyone)
        if op is ReduceOp.MEAN and count == 0:
            return reduced(op, parts, axis)  # which says so
        # The sum of this worker's parts as one row, among rows of zeros.
        own = reduced(ReduceOp.SUM, parts, axis)
        rows = jnp.zeros((len(parts), *own.shape), own.dtype).at[0].set(own)
        total = self._launcher.begun(self._reduce_rows, (ReduceOp.SUM, self._placement.rows(rows), None))
        return total.addressable_data(0) if op is ReduceOp.SUM else total.addressable_data(0) / count

    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        self._check_others()
        parts = self._on_first("strategy.gather", leaf)
        if self._control is not None:
            everyone = self._shapes_of_all("strategy.gather", parts)
            check_axis("gather", everyone, axis)
            self._launcher.wait()
            parts = tuple(self._placement.parts_everywhere(parts, [shape.shape for shape in everyone]))
        check_axis("gather", parts, axis)
        check_equal_shapes("gather", parts, apart_from=axis)
        return jnp.concatenate(parts, axis=axis)

    def _shapes_of_all(self, call: str, parts: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The shapes of all replicas' parts, when other workers exist."""
        assert self._control is not None
        told = self._control.gather(call, [shape_of(part) for part in parts])
        return tuple(struct(tuple(shape), dtype) for shape, dtype in itertools.chain(*told))

    def _on_first(self, call: str, leaf: Any) -> tuple[Any, ...]:
        """Every replica's part of a leaf, on the first device."""
        parts = [as_leaf(part) for part in self._parts(leaf)]
        for part in parts:
            if not isinstance(part, ARRAYS) or not fits_device(part):
                raise InvalidTypeError(f"{call} takes numbers, got {part!r}")
        return tuple(jax.device_put(parts, self._devices[0]))


def _unchanged(value: Any) -> Any:
    return value


def _reduced_rows(op: ReduceOp, stacked: Any, axis: int | None) -> Any:
    axes = (0,) if axis is None else (0, axis + 1)
    return jnp.sum(stacked, axis=axes) if op is ReduceOp.SUM else jnp.mean(stacked, axis=axes)
