"""A thread that makes the next steps of a distributed iteration in advance, and what it reports for each."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.runtime.at_exit import after_interrupt, end_at_exit
from penstock.runtime.channel import Channel, Closed


@dataclass(frozen=True)
class Step:
    """A step that is ready, the position after it, and its number."""

    value: Any
    position: Any
    number: int = 0


@dataclass(frozen=True)
class StepFailure:
    """An exception in place of a step, the position after it, and its number; None where these are unknown."""

    error: BaseException
    position: Any | None
    number: int | None = None


@dataclass(frozen=True)
class StepsEnded:
    """The end of the data."""

    position: Any


Outcome = Step | StepFailure | StepsEnded

_EXIT_SECONDS = 5.0
_LEFT_SECONDS = 1.0
"""How long the interpreter's exit waits for a step that is being made, and after Ctrl-C: a source may never answer."""


class Prefetcher:
    """Calls `produce` on a thread of its own until it gives a `StepsEnded`, and holds up to `depth` outcomes.

    The thread runs from `start` on. It does not keep this object alive: it ends when this is closed or forgotten.
    """

    def __init__(self, produce: Callable[[], Outcome], depth: int) -> None:
        self._channel: Channel[Outcome] = Channel(depth)
        # A daemon: the interpreter waits for all other threads before it calls what ends them.
        self._thread = threading.Thread(
            target=_fill, args=(produce, self._channel), name="penstock-distribute", daemon=True
        )
        self._started = False
        # The garbage collector must not wait for the thread, which may wait for a lock of the collecting thread.
        weakref.finalize(self, self._channel.close).atexit = False
        # At exit it is waited for: device libraries crash if a thread uses them while they shut down.
        end_at_exit(self._thread, partial(_close_at_exit, self._channel))

    def start(self) -> None:
        """Start the thread, unless that was done.

        If Ctrl-C comes meanwhile, the thread may be making a step already, or not run at all: this is closed then.
        """
        if self._started:
            return
        try:
            self._thread.start()
        except BaseException:
            self._channel.close()
            raise
        finally:
            self._started = True

    def get(self) -> Outcome:
        """The next outcome; waits for it. Must not be called again after a `StepsEnded`."""
        return self._channel.get()

    def close(self, *, interrupted: bool = False) -> bool:
        """End the thread, and wait for the step it is at, after Ctrl-C not for long. Returns whether it has ended."""
        _close(self._channel, self._thread, _LEFT_SECONDS if interrupted else None)
        return not self._thread.is_alive()


def _fill(produce: Callable[[], Outcome], channel: Channel[Outcome]) -> None:
    ended = False
    while not ended:
        outcome: Outcome
        try:
            channel.room()  # a step made before there is room would be one too many
        except Closed:  # no more steps are wanted
            return
        try:
            outcome = produce()
        except BaseException as error:  # raised again in the caller's thread, which would wait for ever otherwise
            outcome = StepFailure(error, None)
        ended = isinstance(outcome, StepsEnded)
        try:
            channel.put(outcome)
        except Closed:
            return
        # While the next step is made, this one belongs to the channel or to its receiver alone.
        del outcome


def _close_at_exit(channel: Channel[Outcome], thread: threading.Thread) -> None:
    _close(channel, thread, _LEFT_SECONDS if after_interrupt() else _EXIT_SECONDS)


def _close(channel: Channel[Outcome], thread: threading.Thread, seconds: float | None = None) -> None:
    channel.close()
    if thread.is_alive():  # one that has not started cannot be joined, and finds the channel closed
        thread.join(seconds)
