"""A lock for what one thread does a million times a second, and several hardly ever at a time."""

from threading import Condition


class Turn:
    """Whoever has it may go on; the others wait.

    An `RLock` costs as much as giving a number does. Here a list has one entry: who pops it has the turn, and ends it
    by putting the entry back. Both are atomic, and cost a third of that if they are written out where they are needed.
    A thread that has the turn must not wait for it.

    Attributes:
        free: holds the entry while nobody has the turn.
        awaited: how many threads wait. Whoever puts the entry back calls `wake` if there are some.
    """

    def __init__(self) -> None:
        self.free: list[None] = [None]
        self.awaited = 0
        self._ended = Condition()

    def begun(self) -> bool:
        """Take the turn if nobody has it; gives whether that was so."""
        try:
            self.free.pop()
        except IndexError:
            return False
        return True

    def wait(self) -> None:
        """Take the turn as soon as it is free."""
        with self._ended:
            self.awaited += 1  # before looking again: who puts the entry back from now on wakes this thread
            try:
                while not self.begun():
                    self._ended.wait()
            finally:
                self.awaited -= 1

    def end(self) -> None:
        """Let others have the turn."""
        self.free.append(None)
        if self.awaited:
            self.wake()

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._ended:
            self._ended.notify_all()
