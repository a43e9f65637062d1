"""Whether calls are too short to gain by several threads: decided by how long they took.

This file has no clock and no threads: `fixed.py` measures, and tells it.

How long a call takes while others run says little: on some machines that is ten times as long as alone. So it decides
no more than when to try another way, and how long calls take then decides whether to go on.
"""

from penstock.runtime.gains import HANDING_SECONDS, WORTH_SECONDS

ROW_SECONDS = 1e-4
"""A row that takes less gains nothing in a thread, if it is a task of its own."""

_BESIDE_OTHERS_SECONDS = 1e-3
"""So long a row that takes less may take beside other threads."""
_ROWS = 16
"""For each call that may run, so many rows may pass one that is slow."""

_BESIDE_OTHERS = 2.5
"""A short call takes up to so many times as long for each thread that makes calls."""
_BESIDE_READER = 1.5
"""A short call takes up to so many times as long beside the thread that reads."""
_KEPT = 0.875
"""What tasks before it weigh after each task: a single one may have been interrupted."""

_BACKOFF = 4
"""So many times as much must be short before what was tried in vain is tried again."""
_ENOUGH = 4
"""What went on for so many times as long was not in vain."""


def _backoff_after(backoff: int, went_on: float) -> int:
    """By how much the next try is put off, after one that was put off so far and went on for so long."""
    return _BACKOFF * backoff if went_on < _ENOUGH * backoff else 1


class ReadingThread:
    """Whether the thread that reads makes the calls for rows that come one by one.

    Args:
        count: how many other threads there are.

    Attributes:
        calls: whether it does.
    """

    def __init__(self, count: int) -> None:
        self.calls = False
        self._count = count
        # By how many seconds calls of late took longer than they may.
        self._excess = _ROWS * _BESIDE_OTHERS_SECONDS
        self._backoff = 1
        # For how many rows it has made the calls.
        self._rows = 0

    @property
    def patience(self) -> float:
        """How many seconds the next call may take."""
        return self._count * _ROWS * ROW_SECONDS - self._excess + ROW_SECONDS

    def called(self, seconds: float, rows: int) -> None:
        """Note that it made the calls for some rows, all but the last of which may be left out of the time as short."""
        self._rows += rows
        self._excess = max(0.0, self._excess - (rows - 1) * ROW_SECONDS)
        if seconds <= self.patience:
            self._excess = max(0.0, self._excess + seconds - ROW_SECONDS)
        else:
            self._backoff = _backoff_after(self._backoff, self._rows / (self._count * _ROWS))
            self.leave_to_threads()

    def thread_called(self, seconds: float, rows: int, *, more: bool) -> None:
        """Note how long a thread took for some rows, and whether more of them may have waited for it."""
        longer = seconds - rows * _BESIDE_OTHERS_SECONDS
        if rows > self._count:
            self.leave_to_threads()
        elif longer > 0 or not more:
            self._excess = max(0.0, min(self._excess + longer, self._most))
            if self._excess == 0.0 and not self.calls:
                self.calls, self._rows = True, 0

    def leave_to_threads(self) -> None:
        """Have threads make the calls for a while."""
        self.calls, self._excess = False, self._most

    @property
    def _most(self) -> float:
        return self._backoff * self._count * _ROWS * _BESIDE_OTHERS_SECONDS


class ThreadTurns:
    """Whether threads take turns, because one alone makes the calls as fast.

    Args:
        count: how many threads there are.

    Attributes:
        taken: whether they do.
        tasks: how many tasks were done in turn since they do.
    """

    def __init__(self, count: int) -> None:
        self.taken = False
        self.tasks = 0
        self._count = count
        self._backoff = 1
        # So many tasks must be short before they do.
        self._left = 1
        # How many seconds tasks of late took, and how many they would take if more threads gained anything.
        self._seconds = self._worth = 0.0

    def task_done(self, seconds: float, rows: int) -> None:
        """Note a task that was done beside others."""
        if seconds < rows * self._count * _BESIDE_OTHERS * WORTH_SECONDS:
            self._left -= 1
            self.taken = self._left <= 0

    def task_done_in_turn(self, seconds: float, rows: int, *, alone: bool) -> None:
        """Note a task that was done in turn, and whether no other thread was busy as it began."""
        self.tasks += 1
        if not alone:
            return
        self._seconds = _KEPT * self._seconds + seconds
        worth = rows * WORTH_SECONDS + HANDING_SECONDS
        self._worth = _KEPT * self._worth + worth
        # The thread that reads needs the lock too, at times.
        if self._seconds > self._worth * (_BESIDE_READER if self._worth > worth else 1):
            self.end()

    def end(self) -> None:
        """Have all threads make calls again, for longer each time that there were few turns before."""
        if self.taken:
            self.taken = False
            self._left = self._backoff = _backoff_after(self._backoff, self.tasks)
            self.tasks, self._seconds, self._worth = 0, 0.0, 0.0
