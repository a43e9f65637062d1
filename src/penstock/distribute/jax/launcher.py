"""Launches programs on devices, one at a time where programs with collectives could block each other."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from penstock.distribute.control.channel import Control
from penstock.distribute.jax.stateful_program import StatefulProgram

_STATUS = re.compile("[A-Z_]+: ")


class Launcher:
    """Launches programs with collectives; on CPU devices one at a time.

    XLA's CPU devices share one pool of threads, in which overlapping programs with collectives can wait for each
    other's threads for ever. So on CPUs one such program must end before the next begins.

    Args:
        devices: those of all workers.
        control: says which worker made a collective fail, if there are several.
    """

    def __init__(self, devices: Sequence[jax.Device], control: Control | None) -> None:
        self._control = control
        self.one_at_a_time = len(devices) > 1 and devices[0].platform == "cpu"
        self._running: Any = None

    def launch(self, program: Callable[..., Any], arguments: Sequence[Any], after: Any = None) -> Any:
        """The result of a program with collectives, which may still be running.

        The program that `after` comes out of need not have ended.
        """
        if not self.one_at_a_time:
            return program(*arguments)
        try:
            if self._running is not None and self._running is not after:
                self._running.block_until_ready()
            result = program(*arguments)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if self._control is not None and _is_of_a_device(error):
                self._control.raise_cause_of(error)
            raise
        # All outputs become ready together. The last one often is the loss, and likely to be reduced next.
        self._running = next(reversed(jax.tree.leaves(result)), None)
        if self._running is None and isinstance(program, StatefulProgram):
            self._running = program.a_written_value()
        return result

    def launch_on_output(self, program: Callable[[Any], Any], array: jax.Array) -> Any:
        """Variant of `launch`, for a program of one array that has a part on every device.

        If the array is a result of the running program, no device can begin before that has ended there, so this does
        not wait.
        """
        return self.launch(program, (array,), after=array)

    def wait(self) -> None:
        """Wait for the running program, before another one with collectives begins."""
        if self.one_at_a_time and self._running is not None:
            self._running.block_until_ready()


def _is_of_a_device(error: Exception) -> bool:
    """Return whether a program failed while it ran; JAX raises such ValueErrors too, with a status in the message."""
    return isinstance(error, jax.errors.JaxRuntimeError) or _STATUS.match(str(error)) is not None
