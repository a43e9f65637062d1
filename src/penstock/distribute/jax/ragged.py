"""Steps of strategies on devices whose slices differ in shape."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from penstock.distribute.control.channel import Control
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.jax.device_dtypes import check_width
from penstock.distribute.jax.launcher import Launcher
from penstock.distribute.jax.lockstep import lockstep_program
from penstock.distribute.jax.placement import Placement
from penstock.distribute.jax.program import Call, Static, is_per_replica, mode_of
from penstock.distribute.jax.stateful_program import StatefulProgram, with_variables
from penstock.distribute.jax.strategy_programs import StrategyPrograms
from penstock.distribute.values import PerReplica, StackedPerReplica, local_leaf
from penstock.errors import InvalidTypeError

Shapes = list[list[tuple[int, ...] | None]]
"""The shapes of all replicas' values of one value, worker by worker; None for a value that devices cannot hold."""


@dataclass(frozen=True)
class RaggedSteps:
    """Runs ragged steps: every worker computes the step for all replicas on its first device, and keeps its own values.

    Attributes:
        placement: puts arrays on the devices.
        workers: which worker this is, of how many.
        control: where they talk to each other, if there are several.
        launcher: begins the programs that must not overlap with others.
        programs: those of full steps.
    """

    placement: Placement
    workers: StrategyWorkers
    control: Control | None
    launcher: Launcher
    programs: StrategyPrograms

    def run(self, fn: Callable[..., Any], given: Any, shapes: list[Shapes]) -> Any:
        """The result of one step.

        Args:
            fn: the user's function.
            given: its (args, kwargs).
            shapes: those of each `PerReplica` in them that is not in the stacked form.
        """
        remaining = iter(shapes)
        given = jax.tree.map(
            lambda leaf: self._of_all_replicas(leaf, remaining) if is_per_replica(leaf) else leaf,
            given,
            is_leaf=is_per_replica,
        )
        slices, calls = [], []
        for replica in range(self.workers.replicas_in_sync):
            leaves, tree = jax.tree.flatten(_local(given, replica))
            entering = tuple(map(mode_of, leaves))
            calls.append(self.programs.stateless_call(fn, tree, entering))
            slices.append(
                [
                    self._on_first(leaf) if mode == "array" else leaf
                    for leaf, mode in zip(leaves, entering, strict=True)
                    if not isinstance(mode, Static)
                ]
            )
        key = tuple((call.tree, call.modes, tuple(map(jax.typeof, rows))) for call, rows in zip(calls, slices))
        programs = self.programs.cache.of(fn)[1]
        with jax.default_device(self.placement.local_devices[0]):
            program = programs.get(key)
            if program is None:
                program = programs[key] = self._bind_variables(calls, slices)
            result = program(*slices)
        return jax.tree.map(self._spread_out, result, is_leaf=is_per_replica)

    def _on_first(self, array: Any) -> jax.Array:
        check_width("an argument of strategy.run", array)
        return self.placement.on_first(array)

    def _bind_variables(self, calls: list[Call], slices: list[list[Any]]) -> Any:
        """The program of such a step, with the variables that the function uses."""
        placement = self.placement

        def program_of(found: Call) -> Any:
            return lockstep_program([replace(call, framework=found.framework, touched=found.touched) for call in calls])

        found, program = with_variables(calls[0], program_of, slices, placement, self.launcher.wait)
        if found.framework is None:
            return program
        return StatefulProgram(program, found, found.framework, placement.on_first, placement.for_all)

    def _of_all_replicas(self, value: PerReplica, shapes: Iterator[Shapes]) -> PerReplica:
        """The values of all replicas of all workers; `shapes` gives those of the next value that is not stacked."""
        stacked = value.stacked is not None
        every = [] if stacked else [shape for worker in next(shapes) for shape in worker]
        if self.control is None:
            return value
        self.launcher.wait()
        if stacked:
            return PerReplica(list(self.placement.all_rows(value.stacked)))
        known = [shape for shape in every if shape is not None]
        if len(known) < len(every):
            raise InvalidTypeError(
                f"strategy.run got {value.values[0]!r} for a replica, which devices cannot hold: with several workers "
                "only numbers and arrays of numbers can differ from replica to replica"
            )
        return PerReplica(self.placement.all_values(value.values, known))

    def _spread_out(self, value: PerReplica) -> PerReplica:
        """The local replicas' values of a value that was computed on one device, each moved to its replica's device."""
        local = self.workers.local
        if value.stacked is not None:
            rows = value.stacked[local.start : local.stop]
            return StackedPerReplica(self.placement.rows(rows), len(local))
        return PerReplica(jax.device_put(list(value.values[local.start : local.stop]), self.placement.local_devices))


def _local(given: Any, replica: int) -> Any:
    return jax.tree.map(lambda leaf: local_leaf(leaf, replica), given, is_leaf=is_per_replica)
