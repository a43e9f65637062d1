"""The base of all strategies on JAX devices: one replica per device, run as one compiled SPMD program."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.calls import RowsVaryError, StepLoop, checked_pair
from penstock.distribute.contexts import ReduceOp
from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import ArrayShape, Payload
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.jax.arguments import (
    ARRAYS,
    Signature,
    as_array,
    check_not_donated,
    shape_of,
    specified,
    struct,
)
from penstock.distribute.jax.assumptions import Assumptions
from penstock.distribute.jax.device_dtypes import check_width, fits_device, is_key
from penstock.distribute.jax.devices import moving_explicitly
from penstock.distribute.jax.host_arrays import from_all_workers
from penstock.distribute.jax.host_placeholder import HostPlaceholder, with_host_placeholder
from penstock.distribute.jax.launcher import Launcher
from penstock.distribute.jax.loops_over_rows import check_loops
from penstock.distribute.jax.many_steps import compiled_steps, layout_of
from penstock.distribute.jax.placement import Placement
from penstock.distribute.jax.program import Call, is_per_replica
from penstock.distribute.jax.ragged import RaggedSteps, Shapes
from penstock.distribute.jax.step_results import StepResults, StepResultsJoiner
from penstock.distribute.jax.strategy_programs import StrategyPrograms
from penstock.distribute.reduction import check_axes, check_equal_shapes, count_of, joined, reduced
from penstock.distribute.strategy import Strategy
from penstock.distribute.tensorflow import STRATEGY
from penstock.distribute.values import PerReplica, StackedPerReplica, check_agreement
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.spec import LeafSpec, as_leaf

_Shapes = list[ArrayShape | None]


@STRATEGY
class MeshStrategy(Strategy):
    """One replica on each device of a mesh, which may span several processes.

    Args:
        devices: those of all workers, worker by worker.
        workers: which worker this is, of how many.
        control: where they talk to each other, if there are several.
        check_weights: whether to compare the variables that must be equal on all replicas, after every step.
    """

    def __init__(
        self, devices: Sequence[jax.Device], workers: StrategyWorkers, control: Control | None, check_weights: bool
    ) -> None:
        self._workers = workers
        self._control = control
        self._placement = Placement(devices, workers.local)
        self._signatures: dict[Any, Signature] = {}
        self._launcher = Launcher(devices, control)
        self._programs = StrategyPrograms(self._placement, workers, self._launcher, check_weights)
        self._ragged = RaggedSteps(self._placement, workers, control, self._launcher, self._programs)
        self._donates = False  # whether some call has donated arrays
        self._reducers: dict[tuple[ReduceOp, tuple[int, ...]], Callable[[Any], Any]] = {}
        self._join = StepResultsJoiner(workers.replicas_in_sync, self._placement.by_row)

    @moving_explicitly
    def _run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, donated: tuple[int, ...]
    ) -> Any:
        if self._control is not None:
            self._control.check_collective(f"strategy.run({_name_of(fn)})")
        given = (args if type(args) is tuple else tuple(args), dict(kwargs) if kwargs else {})
        leaves, tree = jax.tree.flatten(given)
        if donated or self._donates:
            self._donates = True
            check_not_donated(*given)
        signature, marked = self._signatures.get(tree), given
        if signature is None:
            given = _with_places(given)
            given, shapes = self._stacked("strategy.run", given)
            if shapes:
                return self._ragged.run(fn, given, shapes)
            leaves, tree = jax.tree.flatten(given)
            signature = self._signatures[tree] = Signature.of(given)

        def check(call: Call, program: Any, arguments: list[Any]) -> None:
            tops = jax.tree.leaves(marked, is_leaf=is_per_replica)
            ragged_row_counts = [top._ragged_row_counts if is_per_replica(top) else None for top in tops]
            check_loops(call, program, arguments, ragged_row_counts)

        program, arguments = self._programs.of_step(fn, signature, leaves, donated, check)
        return self._launcher.launch(program, arguments)

    @moving_explicitly
    def _run_steps(self, loop: StepLoop, batches: list[Any], state: Any) -> tuple[Any, Any]:
        self._check_others(f"strategy.run_steps({_name_of(loop.fn)})")
        state = self._map(lambda leaf: as_leaf(leaf) if isinstance(leaf, (int, float, complex)) else leaf, state)
        state = self._stacked_state(state)  # also where no group has two batches: that must not depend on the data
        pieces: list[StepResults] = []
        for group in self._grouped_by_layout(batches):
            if len(group) > 1:
                try:
                    state, results = self._run_group(loop, group, state)
                except RowsVaryError as error:
                    error.begun = sum(piece.count or 1 for piece in pieces)
                    raise
            elif state is None:
                results = self.run(loop.fn, (group[0],))
            else:
                given = self.run(loop.fn, (state, group[0]), donate_argnums=0 if loop.donate_state else ())
                state, results = checked_pair(given)
            pieces.append(StepResults(results, len(group) if len(group) > 1 else None))
        # A program that ran all steps has given the result as it is wanted.
        return state, results if pieces[0].count == loop.steps else self._join(pieces)

    def _grouped_by_layout(self, batches: list[Any]) -> list[list[Any]]:
        """The batches, in order, in groups of neighbours that one program can take."""
        groups: list[list[Any]] = []
        last = None
        for batch in batches:
            whole, shapes = self._stacked("strategy.run_steps", _with_places(batch))
            layout = None if shapes else layout_of(whole, self.num_replicas_in_sync)
            if layout is None or layout != last:
                groups.append([])
            groups[-1].append(whole)
            last = layout
        return groups

    def _run_group(self, loop: StepLoop, batches: list[Any], state: Any) -> tuple[Any, Any]:
        """Run a group of batches of one layout in one program."""
        count = len(batches)
        taken = compiled_steps(count, loop.steps)
        state = self._stacked_state(state)
        args = (batches[0],) if state is None else (state, batches[0])
        signature = Signature.of((args, {}))
        leaves = jax.tree.leaves((args, {}))
        own = None if state is None else len(leaves) - len(jax.tree.leaves(batches[0]))
        self._donates |= loop.donate_state
        check_not_donated(args)
        for leaf in jax.tree.leaves(batches[1:]):  # those of the first are checked on their way into the program
            check_width("a batch", leaf)
        program, entering = self._programs.of_many_steps(replace(loop, steps=taken), signature, leaves, own)
        own = own or 0
        columns = [entering[own:], *map(jax.tree.leaves, batches[1:])]
        columns += [columns[-1]] * (taken - count)
        result: tuple[Any, Any] = self._launcher.launch(program, (np.int32(count), entering[:own], columns))
        return result

    def _stacked_state(self, state: Any) -> Any:
        state, differing = self._stacked("strategy.run_steps", state)
        if differing:
            raise InvalidArgumentError(
                "strategy.run_steps(state=...) got a state whose shapes differ between replicas, and one program runs "
                "all steps: pad it to one shape, or use strategy.run for each step"
            )
        return state

    def _check_others(self, call: str) -> None:
        """Refuse a call that needs all workers if one of them has failed or left."""
        if self._control is not None:
            self._control.check_collective(call)

    @moving_explicitly
    def _compile(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, donated: tuple[int, ...]
    ) -> None:
        asked = (tuple(args), dict(kwargs or {}))
        specs = jax.tree.map(self._specified, asked, is_leaf=is_per_replica)
        given, _ = self._stacked("strategy.compile", specs)
        self._programs.rely_on(fn, Assumptions.of(asked))
        program, arguments = self._programs.of_step(fn, Signature.of(given), jax.tree.leaves(given), donated)
        program.lower(*arguments).compile()

    def _specified(self, leaf: Any) -> Any:
        """A specification as an abstract array to compile for; anything else unchanged."""
        placement, total = self._placement, self.num_replicas_in_sync
        spec = leaf.values[0] if is_per_replica(leaf) else leaf
        if isinstance(spec, LeafSpec) and not fits_device(spec):
            return HostPlaceholder(spec.dtype)
        if isinstance(leaf, LeafSpec):
            return specified(leaf, leaf.shape, placement.same)
        if is_per_replica(leaf) and isinstance(spec, LeafSpec):
            return StackedPerReplica(specified(spec, (total, *spec.shape), placement.by_row), leaf.count)
        return leaf

    @moving_explicitly
    def _place(self, leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
        """The leaves of a step on the devices; strings and other objects stay in host memory."""
        numbers = [leaf for leaf in leaves if fits_device(leaf.slices[0])]
        for leaf in numbers:
            for rows in leaf.slices if leaf.whole is None else [leaf.whole]:
                check_width("a batch", rows)
        placed = iter(self._placed(numbers, even))
        return [next(placed) if fits_device(leaf.slices[0]) else PerReplica(leaf.slices) for leaf in leaves]

    def _placed(self, leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
        replicas = self._workers.replicas
        if self.num_replicas_in_sync == 1:
            arrays = jax.device_put([leaf.slices[0] for leaf in leaves], self._placement.local_devices[0])
            return [PerReplica([array]) for array in arrays]
        if not even:
            return [PerReplica(jax.device_put(leaf.slices, self._placement.local_devices)) for leaf in leaves]
        rows = [
            np.stack(leaf.slices)
            if leaf.whole is None
            else leaf.whole.reshape(replicas, len(leaf.slices[0]), *leaf.whole.shape[1:])
            for leaf in leaves
        ]
        return [StackedPerReplica(self._placement.rows(array), replicas) for array in rows]

    @moving_explicitly
    def _regrouped(self, call: str, results: list[Any]) -> Any:
        check_agreement(call, [jax.tree.structure(result) for result in results])
        values = jax.tree.map(lambda *values: PerReplica(values), *results)
        return self._stacked(call, values)[0]

    def _stacked(self, call: str, value: Any) -> tuple[Any, list[Shapes]]:
        """A nested value with each `PerReplica` in the stacked form, and the shapes of each one that cannot be stacked.

        Several workers exchange the shapes, because all must do the same.
        """
        unstacked = [leaf for leaf in jax.tree.leaves(value, is_leaf=is_per_replica) if self._is_unstacked(leaf)]
        if not unstacked:
            return jax.tree.map(self._bare_if_single, value, is_leaf=is_per_replica), []
        own = [[shape_of(value) for value in leaf.values] for leaf in unstacked]
        answers = self._gather(call, own, list[_Shapes])
        ragged: list[Shapes] = []
        stackable: dict[int, bool] = {}
        for number, leaf in enumerate(unstacked):
            shapes = [worker[number] for worker in answers]
            distinct = {shape for worker in shapes for shape in worker}
            stackable[id(leaf)] = len(distinct) == 1 and shapes[0][0] is not None
            if not stackable[id(leaf)]:
                ragged.append([[shape.shape if shape else None for shape in worker] for worker in shapes])

        def stack(leaf: Any) -> Any:
            return self._stack_of(leaf) if stackable.get(id(leaf)) else self._bare_if_single(leaf)

        return jax.tree.map(stack, value, is_leaf=is_per_replica), ragged

    def _is_unstacked(self, leaf: Any) -> bool:
        if not is_per_replica(leaf):
            return False
        self._checked(leaf)
        return leaf.stacked is None and self.num_replicas_in_sync > 1

    def _bare_if_single(self, leaf: Any) -> Any:
        return leaf.values[0] if self.num_replicas_in_sync == 1 and is_per_replica(leaf) else leaf

    def _stack_of(self, value: PerReplica) -> PerReplica:
        values = [as_array(value) for value in value.values]
        for value in values:
            check_width("a PerReplica", value)
        return StackedPerReplica(self._placement.stacked(values), len(values))

    def _map(self, function: Callable[[Any], Any], value: Any) -> Any:
        return function(value) if is_per_replica(value) else jax.tree.map(function, value, is_leaf=is_per_replica)

    @moving_explicitly
    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axes: tuple[int, ...]) -> Any:
        self._check_others("strategy.reduce")
        stacked = leaf.stacked if isinstance(leaf, PerReplica) else None
        for value in self._values_of(leaf) if stacked is None else [stacked]:
            if is_key(value):
                raise InvalidTypeError(f"strategy.reduce takes numbers, got keys of random numbers: {leaf!r}")
        if stacked is None or stacked.size == 0:
            return self._reduce_values(op, self._on_first("strategy.reduce", leaf), axes)
        rank = stacked.ndim - 1
        if axes:
            check_axes("strategy.reduce", leaf.values[:1], axes)
        axes = tuple(axis % rank for axis in axes)
        # One array on one device, as every plain array of this strategy is.
        total = self._launcher.launch_on_output(self._reducer(op, axes), stacked)
        return total.addressable_data(0)

    def _reducer(self, op: ReduceOp, axes: tuple[int, ...]) -> Callable[[Any], Any]:
        """The program that reduces a stacked array: one for each way, because JAX looks at static arguments slowly."""
        found = self._reducers.get((op, axes))
        if found is None:
            reduce_rows = partial(_reduced_rows, op=op, over=(0, *(axis + 1 for axis in axes)))
            found = self._reducers[op, axes] = jax.jit(reduce_rows, out_shardings=self._placement.same)
        return found

    def _reduce_values(self, op: ReduceOp, values: tuple[Any, ...], axes: tuple[int, ...]) -> Any:
        if self._control is None:
            return reduced(op, values, axes)
        answers = self._gather("strategy.reduce", [shape_of(value) for value in values], _Shapes)
        everyone = _structs(itertools.chain(*answers))
        check_axes("strategy.reduce", everyone, axes)
        check_equal_shapes("strategy.reduce", everyone, apart_from=axes)
        count = count_of(everyone, axes)
        if op is ReduceOp.MEAN and count == 0:
            return reduced(op, values, axes)  # which raises the error
        # The sum of this worker's values as one row, among rows of zeros.
        own = reduced(ReduceOp.SUM, values, axes)
        rows = jnp.zeros((len(values), *own.shape), own.dtype).at[0].set(own)
        total = self._launcher.launch_on_output(self._reducer(ReduceOp.SUM, ()), self._placement.rows(rows))
        return total.addressable_data(0) if op is ReduceOp.SUM else total.addressable_data(0) / count

    @moving_explicitly
    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        self._check_others("strategy.gather")
        own = [as_array(value) for value in self._values_of(leaf)]
        shapes = [shape_of(value) for value in own]
        answers = self._gather("strategy.gather", shapes, _Shapes)
        everyone = list(itertools.chain(*answers))
        known = [shape for shape in everyone if shape is not None]
        if len(known) < len(everyone):
            arrays = [np.asarray(value) for value in own]
            if self._control is not None:
                arrays = from_all_workers(self._control, "strategy.gather", arrays)
            return joined(tuple(arrays), axis)
        structs = _structs(known)
        check_axes("strategy.gather", structs, (axis,))
        check_equal_shapes("strategy.gather", structs, apart_from=(axis,))
        values = self._on_first("strategy.gather", leaf)
        if self._control is not None:
            self._launcher.wait()
            values = tuple(self._placement.all_values(values, [shape.shape for shape in structs]))
        return jnp.concatenate(values, axis=axis)

    def _gather(self, call: str, own: Payload, kind: type[Payload]) -> list[Payload]:
        """The message of each worker in a call that all make."""
        return [own] if self._control is None else self._control.gather(call, own, kind)

    def _on_first(self, call: str, leaf: Any) -> tuple[Any, ...]:
        """Every replica's part of a leaf, on the first device."""
        values = [as_array(value) for value in self._values_of(leaf)]
        for value in values:
            if not isinstance(value, ARRAYS) or not fits_device(value):
                raise InvalidTypeError(f"{call} takes numbers, got {value!r}")
            check_width(f"the value given to {call}", value)
        return tuple(jax.device_put(values, self._placement.local_devices[0]))


def _name_of(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def _with_places(given: Any) -> Any:
    """A step's arguments, with placeholders for what devices cannot hold."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: with_host_placeholder(leaf, jax.tree_util.keystr(path)), given, is_leaf=is_per_replica
    )


def _structs(shapes: Iterable[ArrayShape | None]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of arrays, to be checked; of any dtype, since that of keys has no name to make it of."""
    return tuple(struct(shape.shape, np.bool_) for shape in shapes if shape is not None)


def _reduced_rows(stacked: Any, op: ReduceOp, over: tuple[int, ...]) -> Any:
    return jnp.sum(stacked, axis=over) if op is ReduceOp.SUM else jnp.mean(stacked, axis=over)
