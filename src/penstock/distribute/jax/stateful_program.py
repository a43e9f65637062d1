"""Programs that read and write variables: values go in before each step, and new values come out after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from penstock.distribute.framework import NOTHING_TOUCHED, Framework, active_framework
from penstock.distribute.jax.placement import Placement, without_aliases
from penstock.distribute.jax.program import Call
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True)
class StatefulProgram:
    """A program as a function of a step's arguments alone.

    Attributes:
        program: takes the values of the variables that are written, of those that are read, and the arguments.
        call: the function and its arguments' layout.
        framework: whose variables they are.
        placed: places a value for the program; returns it unchanged if it is there already.
        kept: places a new value for the variable.
    """

    program: Any
    call: Call
    framework: Framework
    placed: Callable[[Any], jax.Array]
    kept: Callable[[Any], jax.Array]

    def __call__(self, *arguments: Any) -> Any:
        result, values, differences = self.program(*self.values(), *arguments)
        self.framework.assign(self.call.touched.written, [self.kept(value) for value in values])
        if differences is not None:
            self._check_equal(np.asarray(differences))
        return result

    def _check_equal(self, differences: Any) -> None:
        """Refuse weights that differ between the replicas."""
        for index, difference in zip(self.call.replicated, differences, strict=True):
            if difference:
                name = self.framework.name(self.call.touched.written[index])
                raise InvalidArgumentError(
                    f"check_weights: {name} differs by up to {difference:.3g} between the replicas after this step, "
                    "and must be equal on all: sum the gradients over the replicas before they are applied, by "
                    "ps.keras.value_and_grad(...) or get_replica_context().all_reduce(...)"
                )

    def a_written_value(self) -> Any:
        """The value of one variable that the program writes; None if it writes none."""
        return next(iter(self.framework.values(self.call.touched.written[:1])), None)

    def lower(self, *arguments: Any) -> Any:
        """Same as of a function compiled by `jax.jit`."""
        return self.program.lower(*self.values(), *arguments)

    def trace(self, *arguments: Any) -> Any:
        """Same as of a function compiled by `jax.jit`."""
        return self.program.trace(*self.values(), *arguments)

    def values(self) -> tuple[list[Any], list[Any]]:
        """The current values of the variables that are written, and of those that are only read."""
        read = self.framework.values(self.call.touched.read)
        written = without_aliases(self.framework.values(self.call.touched.written), read)
        return [self.placed(value) for value in written], [self.placed(value) for value in read]


def with_variables(
    call: Call,
    program_of: Callable[[Call], Any],
    arguments: Sequence[Any],
    placement: Placement,
    wait: Callable[[], None],
) -> tuple[Call, Any]:
    """Find the variables that a call uses, and give them the values of worker 0; the call with them, and its program.

    Args:
        call: so far without variables.
        program_of: gives the program of one step.
        arguments: what that takes.
        placement: puts values on the devices.
        wait: called before the workers exchange values.
    """
    framework, program = active_framework(), program_of(call)
    touched = framework.touched(lambda: jax.eval_shape(program, *arguments)) if framework else NOTHING_TOUCHED
    if framework is None or not touched:
        return call, program
    found = replace(call, framework=framework, touched=touched)
    values = framework.values(touched.written), framework.values(touched.read)
    program = program_of(found)
    if call.replicas > 1:
        framework.check(touched.written, lambda: jax.make_jaxpr(program)(*values, *arguments))
    wait()
    variables = [*touched.written, *touched.read]
    framework.assign(
        variables, [placement.from_worker_0(value) for value in without_aliases(framework.values(variables))]
    )
    return found, program
