"""Programs with the variables that they read and write: values in before each step, new values out after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from penstock.distribute.framework import NOTHING_TOUCHED, Framework, Touched, active_framework
from penstock.distribute.placement import Placement


@dataclass(frozen=True)
class BoundProgram:
    """A program as a function of a step's arguments alone.

    Attributes:
        program: takes the values of the variables that are written, of those that are read, and the arguments.
        framework: whose variables they are.
        touched: the variables.
        placed: brings a value to where the program wants it; gives it back where it is there already.
        kept: brings a new value to where the variable keeps it.
    """

    program: Any
    framework: Framework
    touched: Touched
    placed: Callable[[Any], jax.Array]
    kept: Callable[[Any], jax.Array]

    def __call__(self, *arguments: Any) -> Any:
        result, values = self.program(*self.values(), *arguments)
        self.framework.assign(self.touched.written, [self.kept(value) for value in values])
        return result

    def a_written_value(self) -> Any:
        """What one of the variables holds that are written, if there are any."""
        return next(iter(self.framework.values(self.touched.written[:1])), None)

    def lower(self, *arguments: Any) -> Any:
        """As of a function compiled by `jax.jit`."""
        return self.program.lower(*self.values(), *arguments)

    def values(self) -> tuple[list[Any], list[Any]]:
        """What the variables hold now: those that are written, and those that are read."""
        return (
            [self.placed(value) for value in self.framework.values(self.touched.written)],
            [self.placed(value) for value in self.framework.values(self.touched.read)],
        )


def touched_variables(
    program: Any, arguments: Sequence[Any], placement: Placement, wait: Callable[[], None]
) -> tuple[Framework | None, Touched]:
    """The variables that a program is found to touch, now with the values that worker 0 has, and whose they are.

    `wait` is called before the workers meet for that.
    """
    framework = active_framework()
    touched = framework.touched(lambda: jax.eval_shape(program, *arguments)) if framework else NOTHING_TOUCHED
    if framework is None or not touched:
        return None, touched
    wait()
    variables = [*touched.written, *touched.read]
    framework.assign(variables, [placement.agreed(value) for value in framework.values(variables)])
    return framework, touched
