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

    def wait(self) -> None:
        """Take the turn as soon as it is free. Ctrl-C may come at any time: the turn is not taken then."""
        taken = False
        try:
            with self._ended:
                self.awaited += 1  # before looking again: who puts the entry back from now on wakes this thread
                try:
                    while not taken:
                        taken = True  # noted before it is so: Ctrl-C may come as soon as `pop` has returned
                        try:
                            self.free.pop()
                        except IndexError:
                            taken = False
                            self._ended.wait()
                finally:
                    self.awaited -= 1
        except BaseException:
            if taken:
                self.free.append(None)
            raise

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._ended:
            self._ended.notify_all()
