"""The programs of a strategy on devices: compiled at first use, and kept as long as the user's function lives."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.calls import StepLoop
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.jax.arguments import Signature, struct
from penstock.distribute.jax.assumptions import Assumptions
from penstock.distribute.jax.device_dtypes import check_width
from penstock.distribute.jax.launcher import Launcher
from penstock.distribute.jax.many_steps import many_steps_program
from penstock.distribute.jax.placement import Placement
from penstock.distribute.jax.program import Call, Mode, ProgramCache, Static, spmd_program
from penstock.distribute.jax.stateful_program import StatefulProgram, with_variables
from penstock.spec import as_leaf

Function = Callable[..., Any]


class StrategyPrograms:
    """The SPMD programs of one strategy.

    Args:
        placement: puts arrays on the devices.
        workers: which worker this is, of how many.
        launcher: begins the programs that must not overlap with others.
        check_weights: whether to compare what must be equal on all replicas.
    """

    def __init__(self, placement: Placement, workers: StrategyWorkers, launcher: Launcher, check_weights: bool) -> None:
        self._check_weights = check_weights
        self.cache = ProgramCache()
        self._placement = placement
        self._workers = workers
        self._launcher = launcher
        count, by_row = workers.replicas_in_sync, placement.by_row
        self._spread = jax.jit(lambda array: jnp.broadcast_to(array, (count, *array.shape)), out_shardings=by_row)

    def of_step(
        self,
        fn: Function,
        signature: Signature,
        leaves: list[Any],
        donated: Sequence[int] = (),
        check: Callable[[Call, Any, list[Any]], None] | None = None,
    ) -> tuple[Any, list[Any]]:
        """The program of a full step, and its arguments in the form that it takes.

        Args:
            fn: the user's function.
            signature: of its (args, kwargs).
            leaves: their leaves.
            donated: the numbers in args of those whose arrays are given away.
            check: refuses a program before it is first used, given the call, the program and the arguments.
        """
        modes = signature.modes(leaves)
        arguments = leaves if signature.ready else self._entering(leaves, modes, signature.stacked)
        programs = self.cache.of(fn)[1]
        key = ("step", signature.tree, modes, donated)
        program = programs.get(key)
        if program is None:
            call, program = self._call(fn, signature, modes, arguments)
            if call.framework is not None or donated:
                given_away = _donated_leaves(call, donated)
                program = spmd_program(call, self._placement.mesh, self._workers.replicas, given_away)
            program = self._with_variables(program, call)
            if check is not None:
                check(call, program, arguments)
            programs[key] = program
        return program, arguments

    def of_many_steps(
        self, loop: StepLoop, signature: Signature, leaves: list[Any], state: int | None
    ) -> tuple[Any, list[Any]]:
        """The program of up to `loop.steps` steps, and the first step's arguments in the form that it takes.

        Args:
            loop: what the steps do.
            signature: of its (args, kwargs) in one step: the batch, or the state and the batch.
            leaves: their leaves, all of which are arrays.
            state: the number of leaves of the state that the function takes and gives back; None where it has none.
        """
        modes = signature.modes(leaves)
        arguments = self._entering(leaves, modes, signature.stacked)
        programs = self.cache.of(loop.fn)[1]
        key = ("steps", signature.tree, modes, loop.steps, state, loop.donate_state)
        program = programs.get(key)
        if program is None:
            call, _ = self._call(loop.fn, signature, modes, arguments)
            program = many_steps_program(call, self._placement.mesh, self._workers.replicas, loop, state)
            program = programs[key] = self._with_variables(program, call)
        return program, arguments

    def rely_on(self, fn: Function, assumptions: Assumptions) -> None:
        """Refuse later steps of `fn` whose arguments differ from the assumptions under which it was compiled."""
        if any(assumptions.specs):
            self._assumed_of(fn).append(assumptions)

    def stateless_call(self, fn: Function, tree: Any, modes: tuple[Mode, ...]) -> Call:
        """The user's function with this layout of its arguments, so far without variables."""
        replicas, assumed = self._workers.replicas_in_sync, self._assumed_of(fn)
        return Call(self.cache.of(fn)[0], tree, modes, replicas, check_weights=self._check_weights, assumed=assumed)

    def _assumed_of(self, fn: Function) -> list[Assumptions]:
        """The assumptions under which `fn` was compiled; the list grows with `rely_on`."""
        found: list[Assumptions] = self.cache.of(fn)[1].setdefault("assumed", [])
        return found

    def _call(
        self, fn: Function, signature: Signature, modes: tuple[Mode, ...], arguments: list[Any]
    ) -> tuple[Call, Any]:
        """The user's function with the variables that it uses, and its program if there are none."""
        programs = self.cache.of(fn)[1]
        key = ("call", signature.tree, modes)
        known: tuple[Call, Any] | None = programs.get(key)
        if known is None:
            call = self.stateless_call(fn, signature.tree, modes)
            known = with_variables(call, self._program_of, arguments, self._placement, self._launcher.wait)
            programs[key] = known
        return known

    def _program_of(self, call: Call) -> Any:
        return spmd_program(call, self._placement.mesh, self._workers.replicas)

    def _with_variables(self, program: Any, call: Call) -> Any:
        if call.framework is None:
            return program
        return StatefulProgram(program, call, call.framework, self._placement.for_all, lambda value: value)

    def _entering(self, leaves: list[Any], modes: tuple[Mode, ...], stacked: tuple[bool, ...]) -> list[Any]:
        """The leaves that a program takes, in the form that it takes, on the devices."""
        return [
            self._for_all(leaf) if mode == "array" and not own else leaf
            for leaf, mode, own in zip(leaves, modes, stacked, strict=True)
            if not isinstance(mode, Static)
        ]

    def _for_all(self, array: Any) -> Any:
        """An array that is the same for every replica, in the stacked form."""
        replicas = self._workers.replicas_in_sync
        if isinstance(array, jax.ShapeDtypeStruct):
            shape = array.shape if replicas == 1 else (replicas, *array.shape)
            return struct(shape, array.dtype, sharding=self._placement.by_row)
        if not isinstance(array, jax.Array):
            check_width("an argument of strategy.run", as_leaf(array))
        array = self._placement.for_all(array)
        # Stacked, because a state that a step returns is stacked, and must fit the same program.
        return array if replicas == 1 else self._spread(array)


def _donated_leaves(call: Call, numbers: Sequence[int]) -> list[int]:
    """The indices of those leaves a program takes that are arrays of the arguments of these numbers."""
    args = call.tree.children()[0].children()
    donated = np.repeat([number in numbers for number in range(len(args))], [arg.num_leaves for arg in args])
    entering = [
        own and mode == "array"
        for own, mode in zip([*donated, *[False] * (len(call.modes) - len(donated))], call.modes, strict=True)
        if not isinstance(mode, Static)
    ]
    return [number for number, own in enumerate(entering) if own]
