"""A lock for what one thread does a million times a second, and several hardly ever at a time."""

from threading import Condition


class Turn:
    """Whoever has it may go on; the others wait.

    An `RLock` costs as much as giving a number does. Here one attribute is there while the turn is free: who deletes it
    has the turn, and ends it by assigning None. Both are atomic, and cost a third of that if they are written out where
    they are needed. Neither is a call, so no signal is handled between them and what comes before or after. A thread
    that has the turn must not wait for it.

    Attributes:
        free: is there while nobody has the turn.
        awaited: how many threads wait. Whoever ends the turn calls `wake` if there are some.
    """

    __slots__ = ("_ended", "awaited", "free")

    def __init__(self) -> None:
        self.free = None
        self.awaited = 0
        self._ended = Condition()

    def wait(self) -> None:
        """Take the turn as soon as it is free. Ctrl-C may come at any time: the turn is not taken then."""
        taken = False
        try:
            with self._ended:
                self.awaited += 1  # before looking again: who ends the turn from now on wakes this thread
                try:
                    while not taken:
                        try:
                            del self.free
                            taken = True
                        except AttributeError:
                            self._ended.wait()
                finally:
                    self.awaited -= 1
        except BaseException:
            if taken:
                self.free = None
            raise

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._ended:
            self._ended.notify_all()
