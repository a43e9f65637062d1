"""How far a consumer is in its passes: which positions nobody has begun, which are being fetched, which are done.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.errors import StateMismatchError
from penstock.service.fetching import Chunk, LeftOut
from penstock.service.machine.spans import clipped, insert, merged, without
from penstock.service.noted import together
from penstock.service.subjects import PassKind, Place, Span
from penstock.service.suspicion import Suspicion

ENDLESS = 1 << 62
"""The end of a span that goes on to the end of its pass."""

State = list[object]


@dataclass(frozen=True)
class Arrived:
    """A block that was fetched, and where it stands."""

    chunk: Chunk
    block: Block

    @property
    def left_out(self) -> LeftOut | None:
        """What was left out before it."""
        return self.chunk.left_out


@dataclass(frozen=True)
class Raised:
    """A failure of a user's function in place of an element, the place of what follows it, and what was left out."""

    error: Exception
    next: Place
    left_out: LeftOut | None = None


@dataclass(frozen=True)
class Behind:
    """What was left out behind the last element that was fetched, and the place of what follows it."""

    left_out: LeftOut
    next: Place


Item = Arrived | Raised | Behind
"""What is handed on: it comes in the place of elements, and has a number. The caller hears of no `Behind`."""


@dataclass(eq=False)
class Part:
    """A span that is fetched in one piece, with what has arrived of it and was not handed on yet.

    The elements of `span.more` are fetched last, from position `span.stop` on, and counted: they are named from there.

    Attributes:
        limit: how many more may arrive, elements and failures, where not all of what is fetched is wanted.
        again: whether it was handed on before the reader's state was taken.
        position: with `skip`, the element that is handed on next.
        fetch_position: with `fetch_skip`, the element that arrives next.
        fetch_stop: up to where is fetched.
        complete: whether everything has arrived.
        unused: how many were handed on that the caller may not have used yet.
        wrong_answers: how many workers in a row have answered something else.
        came: how many elements and failures came the last time that it was fetched; 1 before that.
        fetched_at: when that was, by `time.monotonic`.
        looks_in: nothing is fetched this time: its worker is told that its reader is there.
        before: what was left out before what arrives next, where another answer told of it.
    """

    span: Span
    limit: int | None = None
    again: bool = False
    position: int = 0
    skip: int = 0
    fetch_position: int = 0
    fetch_skip: int = 0
    fetch_stop: int = 0
    complete: bool = False
    unused: int = 0
    wrong_answers: int = 0
    came: int = 1
    fetched_at: float = 0.0
    looks_in: bool = False
    suspicion: Suspicion = field(default_factory=Suspicion)
    items: deque[Item] = field(default_factory=deque)
    before: LeftOut | None = None

    def __post_init__(self) -> None:
        self.position, self.skip = self.fetch_position, self.fetch_skip = self.span.first
        self.fetch_stop = self.span.stop
        if self.span.more:
            self._look_for_end()

    @property
    def pass_number(self) -> int:
        """Of which pass it is."""
        return self.span.pass_number

    @property
    def done(self) -> bool:
        """Whether everything was handed on."""
        return self.complete and not self.items

    def until(self, place: Place) -> Span:
        """What of it comes before a place."""
        return Span.between(self.pass_number, self.span.first, place)

    @property
    def unread(self) -> int:
        """About how many positions were not handed on, where others may have them."""
        return 0 if self.again or self.done else max(1, self.span.stop - self.position)

    def give_up(self) -> Span:
        """Let go of what was not handed on, which is to be others'; gives it. It is complete then."""
        place = (self.position, self.skip)
        left = Span.between(self.pass_number, place, self.span.end)
        self.span, self.complete = self.until(place), True
        self.items.clear()
        return left

    def missing(self) -> Span:
        """What is to be fetched yet."""
        return Span(pass_number=self.pass_number, start=self.fetch_position, stop=self.fetch_stop, skip=self.fetch_skip)

    def ends_at(self, stop: int, skip: int) -> None:
        """What was asked for up to `stop` has arrived, except for `skip` elements behind it that are to be left out."""
        self.fetch_position, self.fetch_skip = max(self.fetch_position, stop), skip
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self.fetch_position < self.fetch_stop:
            return
        if self.span.more > self.fetch_skip and not self._counts:
            self.fetch_stop, self.limit = ENDLESS, self.span.more - self.fetch_skip
        else:
            self.complete = True

    @property
    def _counts(self) -> bool:
        """Whether what arrives now comes from `span.stop` on."""
        return self.span.more > 0 and self.fetch_stop == ENDLESS

    @property
    def _counted(self) -> Place:
        return self.span.stop, self.span.more - (self.limit or 0)

    def arrive(self, item: Arrived, kind: PassKind, stride: int) -> int:
        """Note what has come; gives how many of the elements are wanted."""
        if self.limit is not None:
            rows = min(item.chunk.rows, self.limit)
            item = Arrived(replace(item.chunk, rows=rows), item.block.slice(0, rows))
        if self.before is not None:
            item = Arrived(replace(item.chunk, left_out=self._with_before(item.left_out)), item.block)
        self.fetch_position, self.fetch_skip = after(item.chunk, item.chunk.rows, kind, stride)
        if self._counts:
            position, skip = self._counted
            item = Arrived(replace(item.chunk, position=position, skip=skip), item.block)
        self.items.append(item)
        self._came(item.chunk.rows)
        return item.chunk.rows

    def _with_before(self, left_out: LeftOut | None) -> LeftOut | None:
        before, self.before = self.before, None
        return together([before, left_out])

    def _came(self, count: int) -> None:
        self.came += count
        if self.limit is not None:
            self.limit -= count
            self.complete = self.complete or self.limit == 0

    def arrive_failure(self, error: Exception, position: int, skip: int, left_out: LeftOut | None = None) -> None:
        """Note what was raised in place of an element, the place of what follows, and what was left out before."""
        self.fetch_position, self.fetch_skip = position, skip
        self._came(1)
        following = self._counted if self._counts else (position, skip)
        self.items.append(Raised(error, following, self._with_before(left_out)))
        self._look_for_end()

    def arrive_behind(self, left_out: LeftOut, following: Place) -> None:
        """Note what was left out behind the last element that was asked for, and the place of what follows."""
        if self._counts:  # there were fewer elements than are wanted
            return
        if self.span.more:  # more elements are fetched after it
            self.before = together([self.before, left_out])
            return
        self._came(1)
        self.items.append(Behind(left_out, following))


def after(chunk: Chunk, rows: int, kind: PassKind, stride: int) -> Place:
    """What follows the first `rows` elements of a block."""
    return beyond((chunk.position, chunk.skip), rows, kind, stride)


def beyond(place: Place, rows: int, kind: PassKind, stride: int) -> Place:
    """What follows the first `rows` elements from a place on."""
    position, skip = place
    if kind == "groups":  # a position may stand for any number of elements
        return position, skip + rows
    return (position + rows * stride, 0) if rows else place


NOTHING_UNDONE: Final[Mapping[Part, Place]] = {}


class PassProgress:
    """One pass, as far as its consumer has come.

    Args:
        length: how many there are: -1 infinite, -2 unknown.
        start: the first one.
    """

    def __init__(self, number: int, length: int, start: int = 0) -> None:
        self.number = number
        self.frontier = start
        self._length = length
        self.open: list[Part] = []
        """The parts that were begun and not handed on in full, in the order of their positions."""
        self.waiting: deque[Part] = deque()
        """Those of them that nobody fetches."""

    @property
    def length(self) -> int:
        """How many positions there are: -1 infinite, -2 unknown."""
        return self._length

    @property
    def remaining(self) -> int | None:
        """How many positions nobody has begun; None where that is not known."""
        return None if self._length < 0 else max(0, self._length - self.frontier)

    @property
    def all_begun(self) -> bool:
        """Whether no new part can be begun."""
        return self.remaining == 0

    @property
    def ended(self) -> bool:
        """Whether everything was handed on."""
        return self.all_begun and not self.open

    def end_at(self, length: int) -> None:
        """The pass has ended after `length` positions."""
        self._length = length

    def finish(self, part: Part) -> None:
        """A part was handed on in full."""
        self.open.remove(part)

    def begin(self, size: int) -> Part:
        """A new part of at most `size` positions from the frontier on."""
        stop = self.frontier + size if self.remaining is None else self.frontier + min(size, self.remaining)
        start, self.frontier = self.frontier, stop
        return self.adopt(Span(pass_number=self.number, start=start, stop=stop))

    def adopt(self, span: Span) -> Part:
        """Begin a part for a span that was chosen elsewhere."""
        part = Part(span)
        self.open.append(part)
        return part

    def state(self, undone: Mapping[Part, Place] = NOTHING_UNDONE) -> State:
        """[frontier, [[start, stop, skip], …]]: all positions before the frontier are consumed, except in these spans.

        A span of which there is `more` has that as its fourth number.

        Args:
            undone: parts that are to be taken as if these were their next elements; of any pass.
        """
        holes = [[part.position, part.span.stop, part.skip] for part in self.open if part not in undone]
        holes += [[start, part.span.stop, skip] for part, (start, skip) in self._own(undone)]
        holes = sorted(hole for hole in holes if hole[0] < hole[1])
        frontier = self.frontier if self._length < 0 else min(self.frontier, self._length)
        while holes and holes[-1][1] == frontier and holes[-1][2] == 0:
            frontier = holes.pop()[0]
        return [frontier, holes]

    def _own(self, undone: Mapping[Part, Place]) -> list[tuple[Part, Place]]:
        return [(part, place) for part, place in undone.items() if part.pass_number == self.number]

    def restore(self, state: State) -> None:
        """Continue from a state.

        Raises:
            StateMismatchError: it is none.
        """
        self.frontier, holes = _checked(self.number, state)
        self.waiting.extend(self.adopt(hole) for hole in holes)


class SharedProgress(PassProgress):
    """A pass of which others read a part too: what is theirs counts as not consumed."""

    def __init__(self, number: int, length: int) -> None:
        super().__init__(number, length)
        self._finished: list[Span] = []
        self._ends: dict[Place, Place] = {}
        """Of a state: where spans end of which it has some elements, by where their rest begins."""

    def finish(self, part: Part) -> None:
        super().finish(part)
        if part.span.first < part.span.end:
            insert(self._finished, part.span)

    def state(self, undone: Mapping[Part, Place] = NOTHING_UNDONE) -> State:
        places = {part: (part.position, part.skip) for part in self.open} | dict(self._own(undone))
        consumed = self._finished
        for part in places:
            consumed = without(consumed, part.span)
        consumed = [*consumed, *(part.until(place) for part, place in places.items())]
        ends = self._ends | {place: part.span.end for part, place in places.items() if place < part.span.end}
        holes: list[Span] = []
        at: Place = (0, 0)
        for span in merged(clipped(consumed, self.number, self._bound)):
            if span.first < span.end:
                holes += self._missing(at, span.first, ends)
                at = span.end
        frontier = at
        while frontier[1]:
            frontier = self._end_of_rest(frontier, ends)
        holes += self._missing(at, frontier, ends)
        return [frontier[0], [_hole(span) for span in holes]]

    def _missing(self, first: Place, end: Place, ends: Mapping[Place, Place]) -> Iterator[Span]:
        """What lies between two places; the rest of a span of which the beginning was consumed stands by itself."""
        while first < end:
            stop = min(end, self._end_of_rest(first, ends)) if first[1] else end
            yield Span.between(self.number, first, stop)
            first = stop

    def _end_of_rest(self, place: Place, ends: Mapping[Place, Place]) -> Place:
        return min(ends.get(place, (place[0] + 1, 0)), (self._bound, 0))

    def restore(self, state: State) -> None:
        frontier, holes = _checked(self.number, state)
        at: Place = (0, 0)
        for hole in [*holes, Span(pass_number=self.number, start=frontier, stop=frontier)]:
            if at < hole.first:
                self._finished.append(Span.between(self.number, at, hole.first))
            if hole.skip and hole.first < hole.end:
                self._ends[hole.first] = hole.end
            at = hole.end

    @property
    def _bound(self) -> int:
        return ENDLESS if self._length < 0 else self._length


def past_of(passes: Mapping[str, State]) -> list[Span]:
    """What a reader had consumed by the states of its passes, as `OpenEpoch.resumed` wants it: some span of each.

    After a span that ends in the middle of a position stands another one, perhaps empty, where what follows it ends.

    Raises:
        StateMismatchError: they are none.
    """
    past = []
    for name, state in passes.items():
        number = int(name)
        frontier, holes = _checked(number, state)
        at: Place = (0, 0)
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


def _hole(span: Span) -> list[int]:
    """A span in a state, which `_checked` reads."""
    return [span.start, span.stop, span.skip, *([span.more] if span.more else [])]


def _checked(pass_number: int, state: State) -> tuple[int, list[Span]]:
    """The frontier and the holes of a state."""
    try:
        frontier, holes = state
        checked = [
            Span.between(pass_number, (int(start), int(skip)), (int(stop), int(*more)))
            for start, stop, skip, *more in holes  # type: ignore[attr-defined]
        ]
        return int(frontier), checked  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise StateMismatchError(f"no state of a pass of the data service: {state!r:.200}") from error
