"""The order in which a reader delivers what has arrived: by position, as it arrives, or one pass after the other."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from penstock.service.reader.fetch_task import Arrival, Arrived, FetchTask
from penstock.service.reader.progress import PassProgress
from penstock.service.wire.worker_messages import Chunk

Passes = Mapping[int, PassProgress]


class DeliveryOrder(ABC):
    """Chooses the task whose oldest item is delivered next."""

    turn = 0
    """The pass that is next, where that matters; part of a reader's state."""

    @abstractmethod
    def next_task(self, passes: Passes) -> FetchTask | None:
        """The task to deliver from next; None if its next item has not arrived."""

    @abstractmethod
    def awaited(self, passes: Passes) -> Sequence[FetchTask]:
        """The tasks that hold up delivery: something must arrive for one of them."""

    def arrived(self, task: FetchTask) -> None:  # noqa: B027  # most look at the tasks themselves
        """Note that an item of a task has arrived."""

    def gave_up(self, task: FetchTask) -> None:  # noqa: B027  # most look at the tasks themselves
        """Note that the items of a task were given up."""

    def put_back(self, task: FetchTask) -> None:  # noqa: B027  # most look at the tasks themselves
        """Have `next_task` return the task again that it has just returned."""

    def take(self, task: FetchTask) -> Arrival:
        """Remove and return the item to deliver."""
        return task.items.popleft()


class InOrder(DeliveryOrder):
    """The elements of each pass in the order of their positions; several passes are interleaved."""

    def __init__(self) -> None:
        self._last = -1

    def next_task(self, passes: Passes) -> FetchTask | None:
        return next((task for task in self._heads(passes) if task.items), None)

    def awaited(self, passes: Passes) -> Sequence[FetchTask]:
        heads = list(self._heads(passes))
        return [] if any(head.items for head in heads) else heads

    def take(self, task: FetchTask) -> Arrival:
        self._last = task.pass_number
        return task.items.popleft()

    def _heads(self, passes: Passes) -> Iterator[FetchTask]:
        """The first task of each pass, beginning with the pass after the one that delivered last."""
        numbers = sorted(passes)
        start = bisect_right(numbers, self._last)
        return (passes[number].open[0] for number in (*numbers[start:], *numbers[:start]) if passes[number].open)


class AsArrived(DeliveryOrder):
    """Blocks as they arrive; within a task they keep their order."""

    def __init__(self) -> None:
        self._ready: deque[FetchTask] = deque()  # each task as often as it has items

    def next_task(self, passes: Passes) -> FetchTask | None:
        return self._ready.popleft() if self._ready else None

    def awaited(self, passes: Passes) -> Sequence[FetchTask]:
        return [] if self._ready else [task for progress in passes.values() for task in progress.open]

    def arrived(self, task: FetchTask) -> None:
        self._ready.append(task)

    def put_back(self, task: FetchTask) -> None:
        self._ready.appendleft(task)

    def gave_up(self, task: FetchTask) -> None:
        self._ready = deque(ready for ready in self._ready if ready is not task)


class RoundRobin(DeliveryOrder):
    """One element of each pass in turn, until a pass has ended. All consumers of coordinated reads keep this order."""

    def __init__(self, stride: int) -> None:
        self._stride = stride

    def next_task(self, passes: Passes) -> FetchTask | None:
        progress = self._in_turn(passes)
        if progress is None or not progress.open or not progress.open[0].items:
            return None
        return progress.open[0]

    def awaited(self, passes: Passes) -> Sequence[FetchTask]:
        progress = self._in_turn(passes)
        return [] if progress is None else progress.open[:1]

    def take(self, task: FetchTask) -> Arrival:
        self.turn = task.pass_number + 1
        item = task.items.popleft()
        if not isinstance(item, Arrived) or item.chunk.rows == 1:
            return item
        chunk, rest = item.chunk, item.chunk.rows - 1
        left = Chunk(position=chunk.position + self._stride, skip=0, rows=rest)
        task.items.appendleft(Arrived(left, item.block.slice(1, rest + 1)))
        first = Chunk(position=chunk.position, skip=0, rows=1, left_out=chunk.left_out)
        return Arrived(first, item.block.slice(0, 1))

    def _in_turn(self, passes: Passes) -> PassProgress | None:
        numbers = sorted(passes)
        start = bisect_left(numbers, self.turn)
        return next(
            (passes[number] for number in (*numbers[start:], *numbers[:start]) if not passes[number].ended), None
        )


class RedeliveryFirst(DeliveryOrder):
    """First what had been delivered when a state was taken, in the same order; then in another order.

    Args:
        tasks: what is to be delivered again; a task is removed when it is done.
    """

    def __init__(self, tasks: deque[FetchTask], later: DeliveryOrder) -> None:
        self._tasks = tasks
        self._later = later
        self.turn = later.turn

    def next_task(self, passes: Passes) -> FetchTask | None:
        while self._tasks and self._tasks[0].done:
            self._tasks.popleft()
        if self._tasks:
            return self._tasks[0] if self._tasks[0].items else None
        return self._later.next_task(passes)

    def awaited(self, passes: Passes) -> Sequence[FetchTask]:
        return [self._tasks[0]] if self._tasks else self._later.awaited(passes)

    def arrived(self, task: FetchTask) -> None:
        if not task.again:
            self._later.arrived(task)

    def put_back(self, task: FetchTask) -> None:
        if not task.again:
            self._later.put_back(task)

    def gave_up(self, task: FetchTask) -> None:
        self._later.gave_up(task)

    def take(self, task: FetchTask) -> Arrival:
        if task.again:
            return task.items.popleft()
        item = self._later.take(task)
        self.turn = self._later.turn
        return item
