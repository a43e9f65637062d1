"""A span that is fetched in one piece, and the blocks of it that have arrived.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.service.reader.poison_search import PoisonSearch
from penstock.service.wire.left_out import together
from penstock.service.wire.subjects import PassKind, PassOffset, Span
from penstock.service.wire.worker_messages import Chunk, LeftOut

ENDLESS = 1 << 62
"""The end of a span that reaches to the end of its pass."""


@dataclass(frozen=True)
class Arrived:
    """A block that has arrived, and its position."""

    chunk: Chunk
    block: Block

    @property
    def left_out(self) -> LeftOut | None:
        """The rows skipped before it."""
        return self.chunk.left_out


@dataclass(frozen=True)
class Raised:
    """A failure of a user's function instead of an element, the offset that follows it, and the rows skipped before."""

    error: Exception
    next: PassOffset
    left_out: LeftOut | None = None


@dataclass(frozen=True)
class FetchedBehind:
    """Rows skipped after the last element that was fetched, and the offset that follows them."""

    left_out: LeftOut
    next: PassOffset


Arrival = Arrived | Raised | FetchedBehind
"""An item to deliver. Each takes the number of an element; `FetchedBehind` is not passed on to the caller."""


@dataclass(eq=False)
class FetchTask:
    """A span to fetch, with the items that have arrived and were not delivered yet.

    The `span.more` elements are fetched last, from position `span.stop` on; their positions are counted from there.

    Attributes:
        limit: how many more elements and failures are wanted, if fewer than are fetched.
        again: whether it had been delivered before the restored state was taken.
        position: with `skip`, the element that is delivered next.
        fetch_position: with `fetch_skip`, the element that arrives next.
        fetch_stop: the position at which fetching ends.
        complete: whether everything has arrived.
        unused: how many elements were delivered that the caller may not have consumed yet.
        wrong_answers: how many workers in a row have given a wrong answer.
        left_with: the worker whose answer ended at a failure, and which can continue there; -1 for none.
        before: rows skipped before the next element, as another answer reported them.
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
    left_with: int = -1
    poison_search: PoisonSearch = field(default_factory=PoisonSearch)
    items: deque[Arrival] = field(default_factory=deque)
    before: LeftOut | None = None

    def __post_init__(self) -> None:
        self.position, self.skip = self.fetch_position, self.fetch_skip = self.span.first
        self.fetch_stop = self.span.stop
        if self.span.more:
            self._look_for_end()

    @property
    def pass_number(self) -> int:
        """The number of its pass."""
        return self.span.pass_number

    @property
    def done(self) -> bool:
        """Return whether everything was delivered."""
        return self.complete and not self.items

    def until(self, offset: PassOffset) -> Span:
        """The span from its beginning to an offset."""
        return Span.between(self.pass_number, self.span.first, offset)

    @property
    def unread(self) -> int:
        """About how many positions were not delivered and could go to other readers."""
        return 0 if self.again or self.done else max(1, self.span.stop - self.position)

    def give_up(self) -> Span:
        """Give up the rest that was not delivered, and return it. The task is complete then."""
        offset = (self.position, self.skip)
        left = Span.between(self.pass_number, offset, self.span.end)
        self.span, self.complete = self.until(offset), True
        self.items.clear()
        return left

    def missing(self) -> Span:
        """The span that is still to be fetched."""
        return Span(pass_number=self.pass_number, start=self.fetch_position, stop=self.fetch_stop, skip=self.fetch_skip)

    def ends_at(self, stop: int, skip: int) -> None:
        """Note that everything up to `stop` has arrived; `skip` elements after it are still to be skipped."""
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
        """Return whether the elements that arrive now come from `span.stop` on."""
        return self.span.more > 0 and self.fetch_stop == ENDLESS

    @property
    def _counted(self) -> PassOffset:
        return self.span.stop, self.span.more - (self.limit or 0)

    def arrive(self, item: Arrived, kind: PassKind, stride: int) -> int:
        """Note that a block has arrived; returns how many of its elements are wanted."""
        if self.limit is not None:
            rows = min(item.chunk.rows, self.limit)
            item = Arrived(replace(item.chunk, rows=rows), item.block.slice(0, rows))
        if self.before is not None:
            item = Arrived(replace(item.chunk, left_out=self._with_before(item.left_out)), item.block)
        self.fetch_position, self.fetch_skip = offset_after(item.chunk, kind, stride)
        if self._counts:
            position, skip = self._counted
            item = Arrived(replace(item.chunk, position=position, skip=skip), item.block)
        self.items.append(item)
        self._count_down(item.chunk.rows)
        return item.chunk.rows

    def _with_before(self, left_out: LeftOut | None) -> LeftOut | None:
        before, self.before = self.before, None
        return together([before, left_out])

    def _count_down(self, count: int) -> None:
        if self.limit is not None:
            self.limit -= count
            self.complete = self.complete or self.limit == 0

    def arrive_failure(self, error: Exception, position: int, skip: int, left_out: LeftOut | None = None) -> None:
        """Note an exception instead of an element, the offset after it, and the rows skipped before it."""
        self.fetch_position, self.fetch_skip = position, skip
        self._count_down(1)
        following = self._counted if self._counts else (position, skip)
        self.items.append(Raised(error, following, self._with_before(left_out)))
        self._look_for_end()

    def arrive_behind(self, left_out: LeftOut, following: PassOffset) -> None:
        """Note the rows skipped after the last element of the span, and the offset after them."""
        if self._counts:  # there were fewer elements than are wanted
            return
        if self.span.more:  # more elements are fetched after it
            self.before = together([self.before, left_out])
            return
        self._count_down(1)
        self.items.append(FetchedBehind(left_out, following))


def offset_after(chunk: Chunk, kind: PassKind, stride: int) -> PassOffset:
    """The offset after a block."""
    return beyond((chunk.position, chunk.skip), chunk.rows, kind, stride)


def beyond(offset: PassOffset, rows: int, kind: PassKind, stride: int) -> PassOffset:
    """The offset after the first `rows` elements from an offset on."""
    position, skip = offset
    if kind == "groups":  # a position may give any number of elements
        return position, skip + rows
    return (position + rows * stride, 0) if rows else offset
