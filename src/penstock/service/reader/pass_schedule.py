"""Chooses the pass that is fetched next, if a reader fetches each pass from beginning to end.

If there are few passes, each has a lane, which fetches it to its end. If there are more than `MOST_STREAMS`, a lane
requests a piece of one pass and then a piece of another, so that no more lanes are needed and none waits long for a
worker.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.service.reader.fetch_task import FetchTask

MOST_LANES: Final = 128
"""The most threads of one reader."""
MOST_STREAMS: Final = 96
"""Up to this many passes have a lane each; some lanes are left for passes that come later."""
TURN_SECONDS: Final = 1.0
"""How long to wait for a worker that has nothing yet."""
LOOK_SECONDS: Final = 10.0
"""How often a reader that others wait for tells workers that it is alive, while it has no room for elements."""
_LISTENING = 4
"""One lane in this many waits for workers that had nothing in their last turn."""


class PassSchedule:
    """The tasks that are not complete: those that wait for a lane, and those that are being fetched.

    Tasks that gave something in their last turn come first, except on a few lanes, because a lane is blocked while it
    waits for a worker that has nothing.

    Args:
        holds_back: whether other readers wait for this one, so that workers must know that it is alive.
    """

    def __init__(self, holds_back: bool) -> None:
        self._holds_back = holds_back
        self._giving: deque[FetchTask] = deque()
        self._silent: deque[FetchTask] = deque()
        self._fetched: dict[FetchTask, int] = {}  # how much each gave in its last turn
        self._listening = 0  # how many of these gave nothing

    @property
    def count(self) -> int:
        """How many tasks are not complete."""
        return len(self._giving) + len(self._silent) + len(self._fetched)

    @property
    def crowded(self) -> bool:
        """Whether they are too many to have a lane each."""
        return self.count > MOST_STREAMS

    def add(self, task: FetchTask) -> None:
        """Let a new task wait for its turn."""
        self._giving.append(task)

    def next(
        self, lanes: int, has_room: Callable[[int], bool], awaited: Callable[[], Sequence[FetchTask]]
    ) -> FetchTask | None:
        """The task whose turn it is; None if there is none, or no room for what it may give.

        Args:
            lanes: how many there are.
            has_room: whether there is room for this many more elements.
            awaited: the tasks that hold up delivery, for which there is always room.
        """
        queue = self._queue(lanes)
        if not queue:
            return None
        task = queue[0]
        task.looks_in = False
        if self.crowded and not has_room(sum(self._fetched.values()) + max(1, task.came)):
            needed = next((task for task in awaited() if self._needs_elements(task)), None)
            if needed is None and not self._may_wait_for_worker(task):
                return None
            task = needed or task
            task.looks_in = needed is None
        self._begin(task)
        return task

    def _needs_elements(self, task: FetchTask) -> bool:
        """Whether a task has nothing buffered and is not being fetched."""
        return not (task.items or task.complete or task in self._fetched)

    def _queue(self, lanes: int) -> deque[FetchTask]:
        if self._silent and (not self._giving or self._listening < lanes // _LISTENING):
            return self._silent
        return self._giving

    def _may_wait_for_worker(self, task: FetchTask) -> bool:
        return self._holds_back and task.fetched_at + LOOK_SECONDS < time.monotonic()

    def _begin(self, task: FetchTask) -> None:
        (self._giving if task.came else self._silent).remove(task)
        self._fetched[task] = task.came
        self._listening += task.came == 0
        if not task.looks_in:
            task.came = 0

    def over(self, task: FetchTask) -> None:
        """End the turn of a task; if it is not complete it waits for another turn."""
        self._listening -= self._fetched.pop(task) == 0
        task.fetched_at = time.monotonic()
        if not task.complete:
            (self._giving if task.came else self._silent).append(task)
