"""The order in which a reader delivers elements: by position, as they arrive, or one pass after the other.

Where several passes take turns, `turn` is the pass after the one that delivered last.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set

from penstock.service.reader.fetch_task import Arrival, Arrived, FetchTask
from penstock.service.reader.progress import PassProgress
from penstock.service.wire.worker_messages import Chunk

Passes = Mapping[int, PassProgress]


def _from_turn(passes: Passes, turn: int) -> Iterator[PassProgress]:
    """Yield all passes, beginning with the one that is next."""
    numbers = sorted(passes)
    start = bisect_left(numbers, turn)
    return (passes[number] for number in (*numbers[start:], *numbers[:start]))


class DeliveryOrder(ABC):
    """Chooses the task whose oldest item is delivered next."""

    @abstractmethod
    def next_task(self, passes: Passes, turn: int) -> FetchTask | None:
        """The task to deliver from next; None if its next item has not arrived."""

    @abstractmethod
    def awaited(self, passes: Passes, turn: int) -> Sequence[FetchTask]:
        """The tasks that hold up delivery: something must arrive for one of them."""

    def arrived(self, task: FetchTask) -> None:  # noqa: B027  # most look at the tasks themselves
        """Note that an item of a task has arrived."""

    def gave_up(self, tasks: Set[FetchTask]) -> None:  # noqa: B027  # most look at the tasks themselves
        """Note that the items of these tasks were given up."""

    def item_of(self, task: FetchTask) -> Arrival:
        """The item to deliver: the oldest one of the task, of which the rest was put behind it if it is too long."""
        return task.items[0]


class InOrder(DeliveryOrder):
    """The elements of each pass in the order of their positions; several passes are interleaved."""

    def next_task(self, passes: Passes, turn: int) -> FetchTask | None:
        return next((task for task in self._heads(passes, turn) if task.items), None)

    def awaited(self, passes: Passes, turn: int) -> Sequence[FetchTask]:
        heads = list(self._heads(passes, turn))
        return [] if any(head.items for head in heads) else heads

    @staticmethod
    def _heads(passes: Passes, turn: int) -> Iterator[FetchTask]:
        """The first task of each pass, beginning with the pass that is next."""
        return (progress.open[0] for progress in _from_turn(passes, turn) if progress.open)


class AsArrived(DeliveryOrder):
    """Blocks as they arrive; within a task they keep their order."""

    def __init__(self) -> None:
        self._ready: deque[FetchTask] = deque()  # each task as often as it has items

    def next_task(self, passes: Passes, turn: int) -> FetchTask | None:
        return self._ready.popleft() if self._ready else None

    def awaited(self, passes: Passes, turn: int) -> Sequence[FetchTask]:
        return [] if self._ready else [task for progress in passes.values() for task in progress.open]

    def arrived(self, task: FetchTask) -> None:
        self._ready.append(task)

    def gave_up(self, tasks: Set[FetchTask]) -> None:
        self._ready = deque(ready for ready in self._ready if ready not in tasks)


class RoundRobin(DeliveryOrder):
    """One element of each pass in turn, until a pass has ended. All consumers of coordinated reads keep this order."""

    def __init__(self, stride: int) -> None:
        self._stride = stride

    def next_task(self, passes: Passes, turn: int) -> FetchTask | None:
        return next((task for task in self.awaited(passes, turn) if task.items), None)

    def awaited(self, passes: Passes, turn: int) -> Sequence[FetchTask]:
        return next((progress.open[:1] for progress in _from_turn(passes, turn) if not progress.ended), [])

    def item_of(self, task: FetchTask) -> Arrival:
        item = task.items[0]
        if not isinstance(item, Arrived) or item.chunk.rows == 1:
            return item
        chunk, rest = item.chunk, item.chunk.rows - 1
        left = Chunk(position=chunk.position + self._stride, skip=0, rows=rest)
        first = Chunk(position=chunk.position, skip=0, rows=1, left_out=chunk.left_out)
        task.items.insert(1, Arrived(left, item.block.slice(1, rest + 1)))
        task.items[0] = Arrived(first, item.block.slice(0, 1))
        return task.items[0]


class RedeliveryFirst(DeliveryOrder):
    """First the elements that had been delivered when a state was taken, in the same order; then another order.

    Args:
        tasks: the tasks to deliver again; a task is removed when it is done.
        later: the order of all other elements.
    """

    def __init__(self, tasks: deque[FetchTask], later: DeliveryOrder) -> None:
        self._tasks = tasks
        self._later = later

    def next_task(self, passes: Passes, turn: int) -> FetchTask | None:
        while self._tasks and self._tasks[0].done:
            self._tasks.popleft()
        if self._tasks:
            return self._tasks[0] if self._tasks[0].items else None
        return self._later.next_task(passes, turn)

    def awaited(self, passes: Passes, turn: int) -> Sequence[FetchTask]:
        return [self._tasks[0]] if self._tasks else self._later.awaited(passes, turn)

    def arrived(self, task: FetchTask) -> None:
        if not task.again:
            self._later.arrived(task)

    def gave_up(self, tasks: Set[FetchTask]) -> None:
        self._later.gave_up(tasks)

    def item_of(self, task: FetchTask) -> Arrival:
        return task.items[0] if task.again else self._later.item_of(task)
