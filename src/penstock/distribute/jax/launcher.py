"""The beginning of programs on devices that may have to wait for each other."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from penstock.distribute.control.channel import Control
from penstock.distribute.jax.arguments import first_output
from penstock.distribute.jax.stateful_program import StatefulProgram

_STATUS = re.compile("[A-Z_]+: ")


class Launcher:
    """Begins programs with collectives, on CPU devices one at a time.

    XLA's CPU devices share one pool of threads, in which programs with collectives that overlap wait for each other's
    threads for ever. On a CPU, therefore, one such program ends before the next begins.

    Args:
        devices: those of all workers.
        control: tells which worker a program has failed for, if there are several.
    """

    def __init__(self, devices: Sequence[jax.Device], control: Control | None) -> None:
        self._control = control
        self.one_at_a_time = len(devices) > 1 and devices[0].platform == "cpu"
        self._running: Any = None

    def launch(self, program: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The result of a program with collectives, which may still be under way."""
        if not self.one_at_a_time:
            return program(*arguments)
        try:
            if self._running is not None:
                self._running.block_until_ready()
            result = program(*arguments)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if self._control is not None and _is_of_a_device(error):
                self._control.raise_cause_of(error)
            raise
        self._running = first_output(result)  # one output tells for all: they are there together
        if self._running is None and isinstance(program, StatefulProgram):
            self._running = program.a_written_value()
        return result

    def wait(self) -> None:
        """Wait for the program that is under way, before another one with collectives begins."""
        if self.one_at_a_time and self._running is not None:
            self._running.block_until_ready()


def _is_of_a_device(error: Exception) -> bool:
    """Whether a program failed while it ran; JAX raises such an error, by its status, as a ValueError too."""
    return isinstance(error, jax.errors.JaxRuntimeError) or _STATUS.match(str(error)) is not None
