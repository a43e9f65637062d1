"""Position of a reader in a pass: the positions that are not begun, being fetched, or done.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.errors import StateMismatchError
from penstock.service.reader.fetch_task import ENDLESS, FetchTask
from penstock.service.wire.spans import clipped, insert, merged, without
from penstock.service.wire.subjects import PassOffset, Span

State = list[object]

NOTHING_UNDONE: Final[Mapping[FetchTask, PassOffset]] = {}


class PassProgress:
    """The progress of one reader in one pass.

    Args:
        length: the number of positions; -1 infinite, -2 unknown.
        start: the first position.
    """

    def __init__(self, number: int, length: int, start: int = 0) -> None:
        self.number = number
        self.frontier = start
        self.length = length
        self.open: list[FetchTask] = []
        """The tasks that were begun and not delivered in full, in the order of their positions."""
        self.waiting: deque[FetchTask] = deque()
        """Those of them that no lane fetches."""
        self._first: PassOffset = start, 0
        self._finished: list[Span] = []
        self._ends: dict[PassOffset, PassOffset] = {}
        """Of a state: where spans end of which it has some elements, by where their rest begins."""

    @property
    def remaining(self) -> int | None:
        """Return the number of positions that are not begun; None if that is not known."""
        return None if self.length < 0 else max(0, self.length - self.frontier)

    @property
    def all_begun(self) -> bool:
        """Return whether no new task can be begun."""
        return self.remaining == 0

    @property
    def ended(self) -> bool:
        """Return whether everything was delivered."""
        return self.all_begun and not self.open

    def finish(self, task: FetchTask) -> None:
        """Note that a task was delivered completely."""
        if task.span.first < task.span.end:
            insert(self._finished, task.span)
        self.open.remove(task)  # last: for a state that a signal handler takes in between, the task is open

    def begin(self, size: int) -> FetchTask:
        """A new task of at most `size` positions from the frontier on."""
        stop = self.frontier + size if self.remaining is None else self.frontier + min(size, self.remaining)
        start, self.frontier = self.frontier, stop
        return self.adopt(Span(pass_number=self.number, start=start, stop=stop))

    def adopt(self, span: Span) -> FetchTask:
        """Begin a task for a span that was chosen elsewhere."""
        task = FetchTask(span)
        self.open.append(task)
        return task

    def state(self, undone: Mapping[FetchTask, PassOffset] = NOTHING_UNDONE) -> State:
        """[frontier, [[start, stop, skip], …]]: all positions before the frontier are consumed, except in these spans.

        A span with `more` has that as its fourth number.

        Args:
            undone: tasks to be recorded as if these were their next elements; those of other passes are ignored.
        """
        offsets = {task: (task.position, task.skip) for task in self.open} | dict(self._own(undone))
        consumed = self._finished
        for task in offsets:
            consumed = without(consumed, task.span)
        consumed = [*consumed, *(task.until(offset) for task, offset in offsets.items())]
        ends = self._ends | {offset: task.span.end for task, offset in offsets.items() if offset < task.span.end}
        holes: list[Span] = []
        at = self._first
        for span in merged(clipped(consumed, self.number, self._bound)):
            if span.first < span.end:
                holes += self._missing(at, span.first, ends)
                at = span.end
        frontier = at
        while frontier[1]:
            frontier = self._end_of_rest(frontier, ends)
        holes += self._missing(at, frontier, ends)
        return [
            frontier[0],
            [[hole.start, hole.stop, hole.skip, *([hole.more] if hole.more else [])] for hole in holes],
        ]

    def _own(self, undone: Mapping[FetchTask, PassOffset]) -> list[tuple[FetchTask, PassOffset]]:
        return [(task, offset) for task, offset in undone.items() if task.pass_number == self.number]

    def _missing(self, first: PassOffset, end: PassOffset, ends: Mapping[PassOffset, PassOffset]) -> Iterator[Span]:
        """The spans between two offsets; the rest of a partly consumed span is a separate span."""
        while first < end:
            stop = min(end, self._end_of_rest(first, ends)) if first[1] else end
            yield Span.between(self.number, first, stop)
            first = stop

    def _end_of_rest(self, offset: PassOffset, ends: Mapping[PassOffset, PassOffset]) -> PassOffset:
        return min(ends.get(offset, (offset[0] + 1, 0)), (self._bound, 0))

    def restore(self, state: State, *, shared: bool = False) -> None:
        """Continue from a state.

        Args:
            shared: whether the pass is shared with other readers, and the dispatcher says who reads the rest.

        Raises:
            StateMismatchError: the state is no state of a pass.
        """
        frontier, holes = _checked(self.number, state)
        at = self._first
        for hole in [*holes, Span(pass_number=self.number, start=frontier, stop=frontier)]:
            if at < hole.first:
                self._finished.append(Span.between(self.number, at, hole.first))
            if hole.skip and hole.first < hole.end:
                self._ends[hole.first] = hole.end
            at = hole.end
        if not shared:
            self.frontier = frontier
            self.waiting.extend(self.adopt(hole) for hole in holes)

    @property
    def _bound(self) -> int:
        return ENDLESS if self.length < 0 else self.length


def past_of(passes: Mapping[str, State]) -> list[Span]:
    """The spans that a reader had consumed by the states of its passes, for `OpenEpoch.resumed`: at least one per pass.

    After a span that ends within a position comes another span, perhaps empty, which begins where the rest ends.

    Raises:
        StateMismatchError: they are no states of passes.
    """
    past = []
    for name, state in passes.items():
        number = int(name)
        frontier, holes = _checked(number, state)
        at: PassOffset = (0, 0)
        opened = False
        for hole in [*holes, Span(pass_number=number, start=frontier, stop=frontier)]:
            if at < hole.first or hole.start == 0 or opened:
                past.append(Span.between(number, at, hole.first))
            at, opened = hole.end, hole.skip > 0
    return past


def first_of(state: State) -> int:
    """The first position that is not consumed by a state of a pass."""
    frontier, holes = _checked(0, state)
    return holes[0].start if holes else frontier


def _checked(pass_number: int, state: State) -> tuple[int, list[Span]]:
    """The checked frontier and holes of a state."""
    try:
        frontier, holes = state
        checked = [
            Span.between(pass_number, (int(start), int(skip)), (int(stop), int(*more)))
            for start, stop, skip, *more in holes  # type: ignore[attr-defined]
        ]
        return int(frontier), checked  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise StateMismatchError(f"no state of a pass of the data service: {state!r:.200}") from error
