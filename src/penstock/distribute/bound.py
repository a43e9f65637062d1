"""Programs with the variables that they read and write: values in before each step, new values out after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from penstock.distribute.framework import Framework, Touched


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
