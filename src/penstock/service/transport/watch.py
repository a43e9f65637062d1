"""One thread of this process that checks all connections over which nothing has come for a while."""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet


class WatchedLine(Protocol):
    """A connection that knows whether its peer should be asked if it is alive, and can ask."""

    def is_quiet(self) -> bool:
        """Whether a thread waits, nothing has come for a while, and the peer is not being asked yet."""

    def begin_asking(self) -> None:
        """Ask the peer, in a thread that ends with the answer."""


class Watch:
    """Checks connections from `add` until they are removed or collected; without any there is no thread.

    Args:
        every: returns the seconds between two checks.
    """

    def __init__(self, every: Callable[[], float]) -> None:
        self._every = every
        self._changed = Condition()
        self._lines: WeakSet[WatchedLine] = WeakSet()
        self._runs = False

    def add(self, line: WatchedLine) -> None:
        """Begin to check a connection."""
        with self._changed:
            self._lines.add(line)
            if not self._runs:
                self._runs = True
                Thread(target=self._run, name="penstock-watch", daemon=True).start()

    def remove(self, line: WatchedLine) -> None:
        """Stop checking a connection."""
        with self._changed:
            self._lines.discard(line)
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            self._check_lines()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, self._every())
            self._runs = bool(self._lines)
            return self._runs

    def _check_lines(self) -> None:
        with self._changed:
            lines = list(self._lines)
        for line in lines:
            if line.is_quiet():
                line.begin_asking()
