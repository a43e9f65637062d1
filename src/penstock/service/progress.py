"""How far a consumer is in its passes: which positions nobody has begun, which are being fetched, which are done.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.errors import StateMismatchError
from penstock.service.fetching import Chunk
from penstock.service.machine.spans import insert, without
from penstock.service.subjects import PassKind, Span
from penstock.service.suspicion import Suspicion

ENDLESS = 1 << 62
"""The end of a span that goes on to the end of its pass."""

State = list[object]
Place = tuple[int, int]
"""(position, skip): an element of a pass."""


@dataclass(frozen=True)
class Arrived:
    """A block that was fetched, and where it stands."""

    chunk: Chunk
    block: Block


@dataclass(frozen=True)
class Raised:
    """A failure of a user's function in place of an element; the part goes on with `rest`."""

    error: Exception
    rest: Span


@dataclass(eq=False)
class Part:
    """A span that is fetched in one piece, with what has arrived of it and was not handed on yet.

    Attributes:
        start: where it began.
        position: with `skip`, the element that is handed on next.
        fetch_position: with `fetch_skip`, the element that arrives next.
        complete: whether everything has arrived.
        limit: how many more may arrive, elements and failures, where not all of the span is wanted.
        unused: how many were handed on that the caller may not have used yet.
    """

    pass_number: int
    start: int
    stop: int
    skip: int = 0
    position: int = 0
    fetch_position: int = 0
    fetch_skip: int = 0
    complete: bool = False
    limit: int | None = None
    unused: int = 0
    suspicion: Suspicion = field(default_factory=Suspicion)
    items: deque[Arrived | Raised] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.position = self.fetch_position = self.start
        self.fetch_skip = self.skip

    @property
    def done(self) -> bool:
        """Whether everything was handed on."""
        return self.complete and not self.items

    def missing(self) -> Span:
        """What has not arrived yet."""
        return Span(pass_number=self.pass_number, start=self.fetch_position, stop=self.stop, skip=self.fetch_skip)

    def ends_at(self, stop: int, skip: int) -> None:
        """What was asked for up to `stop` has arrived, except for `skip` elements behind it that are to be left out."""
        self.fetch_position, self.fetch_skip = max(self.fetch_position, stop), skip
        self.complete = self.fetch_position >= self.stop

    def arrive(self, item: Arrived, kind: PassKind, stride: int) -> int:
        """Note what has come; gives how many of the elements are wanted."""
        if self.limit is not None and item.chunk.rows > self.limit:
            item = Arrived(replace(item.chunk, rows=self.limit), item.block.slice(0, self.limit))
        self.fetch_position, self.fetch_skip = after(item.chunk, item.chunk.rows, kind, stride)
        self.items.append(item)
        self._came(item.chunk.rows)
        return item.chunk.rows

    def _came(self, count: int) -> None:
        if self.limit is not None:
            self.limit -= count
            self.complete = self.complete or self.limit == 0

    def arrive_failure(self, error: Exception, rest: Span) -> None:
        """Note what was raised in place of an element, before the rest of the part."""
        self.fetch_position, self.fetch_skip = rest.start, rest.skip
        self.complete = rest.start >= rest.stop
        self.items.append(Raised(error, rest))
        self._came(1)


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
        part = Part(self.number, self.frontier, stop)
        self.frontier = stop
        self.open.append(part)
        return part

    def adopt(self, span: Span) -> Part:
        """Begin a part for a span that was chosen elsewhere."""
        part = Part(self.number, span.start, span.stop, span.skip)
        self.open.append(part)
        return part

    def state(self, undone: Mapping[Part, Place] = NOTHING_UNDONE) -> State:
        """[frontier, [[start, stop, skip], …]]: all positions before the frontier are consumed, except in these spans.

        Args:
            undone: parts that are to be taken as if these were their next elements; of any pass.
        """
        holes = [[part.position, part.stop, part.skip] for part in self.open if part not in undone]
        holes += [[start, part.stop, skip] for part, (start, skip) in self._own(undone)]
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
        self.frontier, holes = _checked(state)
        for start, stop, skip in holes:
            self.waiting.append(self.adopt(Span(pass_number=self.number, start=start, stop=stop, skip=skip)))


class SharedProgress(PassProgress):
    """A pass of which others read a part too: what is theirs counts as not consumed."""

    def __init__(self, number: int, length: int) -> None:
        super().__init__(number, length)
        self._finished: list[Span] = []
        self._left: list[Span] = []
        """Of a state: what is left of spans of which it has some elements, and that somebody may have had since."""

    def finish(self, part: Part) -> None:
        super().finish(part)
        if part.start < part.stop:
            insert(self._finished, Span(pass_number=self.number, start=part.start, stop=part.stop))

    def state(self, undone: Mapping[Part, Place] = NOTHING_UNDONE) -> State:
        places = {part: (part.position, part.skip) for part in self.open} | dict(self._own(undone))
        finished = self._finished
        for part in places:
            finished = without(finished, Span(pass_number=self.number, start=part.start, stop=part.stop))
        own = [Span(pass_number=self.number, start=part.start, stop=part.stop) for part in places] + finished
        left = [span for span in self._left if not any(other.start <= span.start < other.stop for other in own)]
        # [from, up to, elements of what follows, where that ends]
        consumed = [(span.start, span.stop, 0, span.stop) for span in finished]
        consumed += [(part.start, stop, skip, part.stop) for part, (stop, skip) in places.items()]
        consumed += [(span.start, span.start, span.skip, span.stop) for span in left]
        frontier = 0
        holes = []
        for start, stop, skip, end in sorted(tuple(min(at, self._bound) for at in one) for one in consumed):
            if start == stop and not skip:
                continue
            holes += [[frontier, start, 0], [stop, end, skip]] if skip else [[frontier, start, 0]]
            frontier = end if skip else stop
        return [frontier, [hole for hole in holes if hole[0] < hole[1]]]

    def restore(self, state: State) -> None:
        frontier, holes = _checked(state)
        begin = 0
        for start, stop, skip in [*holes, (frontier, frontier, 0)]:
            if begin < start:
                self._finished.append(Span(pass_number=self.number, start=begin, stop=start))
            if skip:
                self._left.append(Span(pass_number=self.number, start=start, stop=stop, skip=skip))
            begin = stop

    @property
    def _bound(self) -> int:
        return ENDLESS if self._length < 0 else self._length


def past_of(passes: Mapping[str, State]) -> list[Span]:
    """What a reader had consumed by the states of its passes, as `OpenEpoch.resumed` wants it: some span of each.

    After a span of whose `stop` some elements were consumed stands another one, perhaps empty, where that hole ends.

    Raises:
        StateMismatchError: they are none.
    """
    past = []
    for name, state in passes.items():
        frontier, holes = _checked(state)
        begin, opened = 0, False
        for start, stop, skip in [*holes, (frontier, frontier, 0)]:
            if begin < start or skip or start == 0 or opened:
                past.append(Span(pass_number=int(name), start=begin, stop=start, skip=skip))
            begin, opened = stop, skip > 0
    return past


def first_of(state: State) -> int:
    """The first position that is not consumed by a state of a pass."""
    frontier, holes = _checked(state)
    return holes[0][0] if holes else frontier


def _checked(state: State) -> tuple[int, list[tuple[int, int, int]]]:
    """The frontier and the holes of a state."""
    try:
        frontier, holes = state
        checked = [(int(start), int(stop), int(skip)) for start, stop, skip in holes]  # type: ignore[attr-defined]
        return int(frontier), checked  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise StateMismatchError(f"no state of a pass of the data service: {state!r:.200}") from error
