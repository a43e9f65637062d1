"""Waiting for what the garbage collector may bring about in the very thread that waits."""

from threading import Condition
from typing import Final

_LONGEST_WAIT_SECONDS: Final = 1.0


class BoundedCondition(Condition):
    """A condition of which no wait lasts longer than a second: wait in a loop that looks again.

    Python may collect a forgotten iterator, which ends its threads, in one of these threads: after that one has looked
    whether to end, and before it waits. Nothing would wake it then.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified, for at most `timeout` seconds and at most one; returns whether it was."""
        return super().wait(_LONGEST_WAIT_SECONDS if timeout is None else min(timeout, _LONGEST_WAIT_SECONDS))
