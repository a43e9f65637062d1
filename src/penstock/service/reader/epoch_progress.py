"""Position of a reader in each pass of an epoch, and which element it delivers next; without threads."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ServiceError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.service.reader.delivery_log import DeliveryLog, entries_of
from penstock.service.reader.fetch_task import ENDLESS, Arrival, Arrived, FetchTask, offset_after
from penstock.service.reader.progress import PassProgress, State, first_of
from penstock.service.reader.read_options import ReadOptions
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import Chunk, LeftOut

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


@dataclass
class GivenUp:
    """Spans that a reader has given up for other readers.

    Attributes:
        spans: these.
        rows: the number of their elements that had arrived.
        used: the tasks that are consumed completely, now that their rest is gone.
    """

    spans: list[Span] = field(default_factory=list)
    rows: int = 0
    used: list[FetchTask] = field(default_factory=list)


class EpochProgress:
    """Position of a reader in an epoch; the reader holds a lock around it.

    Args:
        shared: whether others read the same passes.
        replay: the state that the reader is restored from; None for a new reader.
        number: the number of the element to resume with.

    Attributes:
        passes: the progress of each pass, by its number.
        delivered: the elements that its caller may not have consumed yet.
        order: the order of delivery.
        claimed: elements before this number belong to the reader by its last replay.
    """

    def __init__(self, options: ReadOptions, *, shared: bool, replay: Any, number: int) -> None:
        self._options = options
        self._shared = shared
        self.infos: dict[int, PassInfo] = {}
        self.passes: dict[int, PassProgress] = {}
        self._restored: dict[int, State] = {}
        self.delivered = DeliveryLog(options.kind, options.stride)
        self.claimed = 0
        self._again: deque[FetchTask] = deque()
        self.order = _delivery_order(options)
        if replay is not None:
            self.delivered.turn = int(replay["turn"])
            self._restored = {int(number): state for number, state in replay["passes"].items()}
            self._again.extend(self.delivered.restore(int(replay["first"]), entries_of(replay), number))
        self._waiting = deque(self._again)
        if self._again:
            self.order = RedeliveryFirst(self._again, self.order)

    def update(self, passes: Sequence[PassInfo]) -> None:
        """Take over the passes that the dispatcher reports.

        Raises:
            ServiceError: a dispatcher that was restarted without a journal divides them otherwise.
        """
        for info in passes:
            known = self.infos.get(info.number, info)
            if (known.shard_index, known.num_shards) != (info.shard_index, info.num_shards):
                raise ServiceError(
                    f"the dispatcher was restarted and divides this epoch by {info.num_shards} instead of "
                    f"{known.num_shards}: resume from a checkpoint, and let the dispatcher keep a journal "
                    "(`penstock dispatcher --work-dir`)"
                )
            self.infos[info.number] = info
            if info.number not in self.passes:
                self.passes[info.number] = self._progress(info)

    def _progress(self, info: PassInfo) -> PassProgress:
        options = self._options
        length = info.length if options.length_known or info.length < 0 else UNKNOWN_CARDINALITY
        progress = PassProgress(info.number, length, options.settings.consumer_index or 0)
        state = self._restored.pop(info.number, None)
        if state is not None:
            progress.restore(state, shared=self._shared)
        return progress

    def waiting(self) -> FetchTask | None:
        """A task that was begun and that no lane fetches."""
        if self._waiting:
            return self._waiting.popleft()
        return next((progress.waiting.popleft() for progress in self.passes.values() if progress.waiting), None)

    @property
    def requested(self) -> int:
        """Return how many positions are being fetched."""
        return sum(
            max(0, task.span.stop - task.fetch_position)
            for progress in self.passes.values()
            for task in progress.open
            if not task.complete and task.span.stop < ENDLESS
        )

    @property
    def unread(self) -> int:
        """About how many begun positions were not delivered and could go to other readers."""
        return sum(task.unread for task in self._open())

    def _open(self) -> list[FetchTask]:
        return [task for progress in self.passes.values() for task in progress.open]

    def give_up(self, positions: int) -> GivenUp:
        """Give up about `positions` undelivered positions, first those of which nothing has arrived."""
        given, gone = GivenUp(), set()
        tasks = [task for task in reversed(self._open()) if task.unread]
        for task in sorted(tasks, key=lambda task: bool(task.items)):
            if positions <= 0:
                break
            positions -= task.unread
            given.rows += sum(item.chunk.rows for item in task.items if isinstance(item, Arrived))
            left = task.give_up()
            given.spans += [left] if left.first < left.end else []
            gone.add(task)
            given.used += [task] if self.finish(task) else []
        self.order.gave_up(gone)
        return given

    @property
    def all_delivered(self) -> bool:
        """Return whether everything that the reader is known to have was delivered."""
        if self._again or any(progress.open for progress in self.passes.values()):
            return False
        return self._shared or (bool(self.passes) and all(progress.all_begun for progress in self.passes.values()))

    @property
    def all_read(self) -> bool:
        """Return whether this reader alone has read all positions of all passes."""
        return bool(self.passes) and all(progress.state() == [progress.length, []] for progress in self.passes.values())

    def next_task(self) -> FetchTask | None:
        """The task to deliver from, or None while the next element has not arrived."""
        return self.order.next_task(self.passes, self.delivered.turn)

    def awaited(self) -> Sequence[FetchTask]:
        """The tasks of one of which something must arrive before anything can be delivered."""
        return self.order.awaited(self.passes, self.delivered.turn)

    def begin_all(self) -> list[list[FetchTask]]:
        """The tasks of each pass that was not begun, in order: those that wait, then one for the rest."""
        tasks: dict[int, list[FetchTask]] = defaultdict(list)
        while (task := self.waiting()) is not None:
            tasks[task.pass_number].append(task)
        for progress in self.passes.values():
            if progress.frontier < ENDLESS and not progress.all_begun:
                tasks[progress.number].append(progress.begin(ENDLESS - progress.frontier))
        return list(tasks.values())

    def count_left_out(self, task: FetchTask, counted: Callable[[int, LeftOut], None]) -> None:
        """Count the rows skipped before the next item of a task, under that item's number."""
        left_out = task.items[0].left_out
        if left_out is not None:
            counted(self.delivered.number, left_out)

    def deliver(self, task: FetchTask) -> Arrival:
        """Remove the next item of a task, and log its delivery."""
        item = self.order.item_of(task)
        options = self._options
        following = offset_after(item.chunk, options.kind, options.stride) if isinstance(item, Arrived) else item.next
        if options.skips(item):
            self.delivered.pass_over(task, following)
        else:
            self.delivered.add(task, item, following)
        task.items.popleft()
        return item

    def finish(self, task: FetchTask) -> bool:
        """Close a task if it is done; returns whether its caller has consumed all of it."""
        if not task.done or task.again:
            return False
        self.passes[task.pass_number].finish(task)
        return task.unused == 0

    def replay_from(self, number: int, *, bare: bool) -> dict[str, Any]:
        """Return the state from which a restored reader repeats the elements from `number` on.

        Delivered elements belong to this reader from then on. It gets the others back unless another reader has them.
        See `LiveStream.replay_from`.
        """
        delivered = self.delivered
        number = max(number, delivered.used_until)
        bare = bare and number >= delivered.claimed_until
        self.claimed = number if bare else delivered.number
        order = [] if bare else delivered.entries(number)
        return {**self.state(self.claimed), "first": number, "order": order}

    def state(self, number: int) -> dict[str, Any]:
        """The passes as they were before this element was delivered, and which pass was next."""
        passes: dict[str, State] = {str(number): state for number, state in self._restored.items()}
        undone = self.delivered.undone(number)
        for pass_number, progress in self.passes.items():
            passes[str(pass_number)] = progress.state(undone)
        return {"passes": passes, "turn": self.delivered.turn_at(number)}

    def rounds(self) -> tuple[list[int], int]:
        """Return the number of completed rounds of each pass, and the next pass, for coordinated reads."""
        first, stride = self._options.settings.consumer_index or 0, self._options.stride
        if stride == 1:
            return [], 0
        state = self.state(self.delivered.used_until)
        nexts = [first_of(state["passes"][name]) for name in sorted(state["passes"], key=int)]
        return [max(0, -(-(position - first) // stride)) for position in nexts], state["turn"]

    def begun(self, number: int) -> list[Span]:
        """The spans that were delivered before this element, of tasks that are not consumed completely."""
        undone = self.delivered.undone(number)
        spans = [
            task.until(undone.get(task, task.span.end if task.done else (task.position, task.skip)))
            for task in dict.fromkeys([*self.delivered.tasks(), *self._open()])
        ]
        return [span for span in spans if span.first < span.end]


def _delivery_order(options: ReadOptions) -> DeliveryOrder:
    """The order in which a reader delivers elements."""
    settings = options.settings
    if settings.coordinated:
        return RoundRobin(options.stride)
    # Trainers that share elements go through the passes in the same order, so that all meet the same ones.
    in_order = options.ordered or bool(settings.trainer) or settings.policy != ShardingPolicy.DYNAMIC
    return InOrder() if in_order else AsArrived()
