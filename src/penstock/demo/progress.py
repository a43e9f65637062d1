"""The progress of an epoch: a bar over its steps, and where the time went."""

import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm


class Progress:
    """The steps of one epoch, with a bar if the output is a terminal.

    Args:
        epoch: its number, as it is shown.
        steps: how many steps the epoch has.
        done: how many of them were taken before.
    """

    def __init__(self, epoch: int, steps: int, done: int) -> None:
        self._steps, self._done = steps, done
        self._bar = tqdm(
            desc=f"Epoch {epoch}", total=steps, initial=done, leave=False, unit="step", disable=not sys.stderr.isatty()
        )
        self._started = time.perf_counter()
        self._waiting = 0.0

    def over(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The remaining steps of the epoch, from an iterator over many epochs."""
        with self._bar:
            for _ in range(self._done, self._steps):
                started = time.perf_counter()
                element = next(iterator)
                self._waiting += time.perf_counter() - started
                yield element
                self._bar.update()

    def pace(self) -> str:
        """The speed until now, and the share of the time in which the loop waited for its input.

        The devices may still be busy with the steps before, so this is the most that a faster input could save.
        """
        seconds = time.perf_counter() - self._started
        rate = (self._steps - self._done) / seconds
        return f"input: {100 * self._waiting / seconds:.1f} % of the time, {rate:.1f} steps/s"
