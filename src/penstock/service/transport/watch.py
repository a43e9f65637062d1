"""One thread of this process that looks after all lines over which nothing has come for a while."""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol
from weakref import WeakSet


class WatchedLine(Protocol):
    """A line that can tell whether its other end should be asked if it is there, and then ask it."""

    def is_quiet(self) -> bool:
        """Whether somebody waits, nothing has come for a while, and the other end is not being asked."""

    def begin_asking(self) -> None:
        """Ask, in a thread that ends with the answer."""


class Watch:
    """Looks after the lines that were added, until each was removed or forgotten; without lines there is no thread.

    Args:
        every: gives how many seconds lie between two looks.
    """

    def __init__(self, every: Callable[[], float]) -> None:
        self._every = every
        self._changed = Condition()
        self._lines: WeakSet[WatchedLine] = WeakSet()
        self._runs = False

    def add(self, line: WatchedLine) -> None:
        """Look after a line."""
        with self._changed:
            self._lines.add(line)
            if not self._runs:
                self._runs = True
                Thread(target=self._run, name="penstock-watch", daemon=True).start()

    def remove(self, line: WatchedLine) -> None:
        """Look after it no more."""
        with self._changed:
            self._lines.discard(line)
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            self._look()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, self._every())
            self._runs = bool(self._lines)
            return self._runs

    def _look(self) -> None:
        with self._changed:
            lines = list(self._lines)
        for line in lines:
            if line.is_quiet():
                line.begin_asking()
