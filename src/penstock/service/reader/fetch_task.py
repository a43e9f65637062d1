"""A span that is fetched in one piece, the blocks of it that have arrived, and what has to come of it next.

A worker answers a `Fetch` with the elements of its span, each once and in order. A worker that answers anything else
counts as lost, and the reader asks another one.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.service.reader.poison_search import PoisonSearch
from penstock.service.wire.interfaces import Answer, WrongAnswerError
from penstock.service.wire.left_out import together
from penstock.service.wire.subjects import PassKind, PassOffset, Span
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, LeftOut, Making

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


class ExpectedAnswer:
    """The rest of the answer that is expected to a request.

    Args:
        kind: the kind of the pass.
        length: the number of its positions; less than 0 if unknown.

    Attributes:
        announced: whether the worker has said that it makes this and nothing else.
    """

    def __init__(self, request: Fetch, kind: PassKind, length: int) -> None:
        self._span = request.span
        self._length = length
        self._stride = request.stride
        self._may_jump = bool(request.trainer)
        self._by_offset = kind == "groups"
        span = request.span
        self._next: PassOffset = span.first if self._by_offset else (span.start + span.skip * self._stride, 0)
        self._came = False
        self._alone = request.alone
        self.announced = False

    def check(self, answer: Answer) -> None:
        """Check the next piece of the answer.

        Raises:
            WrongAnswerError: it does not fit the request.
        """
        match answer:
            case End():
                self._check_end(answer)
            case Failed():
                self._check_failure(answer)
            case Making():
                self._check_making()
            case chunk, block:
                self._check_block(chunk, block)

    def _check_block(self, chunk: Chunk, block: Block) -> None:
        """Check a block."""
        rows, offset = chunk.rows, (chunk.position, chunk.skip)
        if not 1 <= rows == len(block):
            raise WrongAnswerError(f"a block of {len(block)} rows came that is said to have {rows}")
        if not 0 <= chunk.seconds < inf:
            raise WrongAnswerError(f"a block came that is said to have taken {chunk.seconds} s")
        _check_left_out(chunk.left_out)
        last = chunk.position + (0 if self._by_offset else (rows - 1) * self._stride)
        if not self._is_next(offset) or last >= self._span.stop:
            raise WrongAnswerError(
                f"elements {offset} to position {last} came, where {self._next} to position {self._span.stop - 1} were "
                "to come"
            )
        self._came = True
        skip = chunk.skip + rows
        self._next = (chunk.position, skip) if self._by_offset else (last + self._stride, 0)

    def _is_next(self, offset: PassOffset) -> bool:
        if self._by_offset or self._may_jump:  # several pairs may mean one offset
            return offset == self._next or (offset[0] > self._next[0] and 0 <= offset[1] <= ENDLESS)
        return offset == self._next

    def _check_end(self, end: End) -> None:
        """Check an end against the elements that have arrived."""
        position, stop = self._next[0], self._span.stop
        whole = self._by_offset or self._may_jump
        if not 0 <= end.skip <= self._span.skip or not 0 <= end.seconds < inf:
            raise WrongAnswerError(f"an end came that skips {end.skip} elements after {end.seconds} s")
        self._check_left_out_behind(end)
        if end.length == -2:
            if not whole and position < stop:
                raise WrongAnswerError(f"positions up to {stop} were to come, and the end came at {position}")
            return
        if not self._may_jump and end.length != self._length >= 0:
            raise WrongAnswerError(f"a pass of {self._length} positions is said to have {end.length}")
        least = position - self._stride + 1 if self._came and not self._by_offset else 0
        most = stop if whole else min(stop, position + (self._stride if end.left_out is not None else 0))
        if not least <= end.length <= most:
            raise WrongAnswerError(
                f"a pass is said to have {end.length} positions, of which those up to {position} have come"
            )

    def _check_left_out_behind(self, end: End) -> None:
        """Check that rows can be skipped after the last element here."""
        if end.left_out is None:
            return
        _check_left_out(end.left_out)
        position = self._next[0]
        # If positions count elements, skipped rows take one more.
        if end.skip or (not self._by_offset and not position < end.length <= position + self._stride):
            raise WrongAnswerError(f"rows are reported as skipped at the end of {end.length} positions")

    def _check_failure(self, failed: Failed) -> None:
        """Check a failure instead of an element."""
        _check_left_out(failed.left_out)
        after, last = failed.next.first, max(self._span.stop, self._next[0] + self._stride)
        if not self._next < after or after[0] > last or after[1] < 0 or after[1] > ENDLESS:
            raise WrongAnswerError(f"an element that failed at {self._next} is said to be followed by {after}")

    def _check_making(self) -> None:
        """Check the announcement of the elements: one, where it was asked for."""
        if self._came or self.announced or not self._alone:
            raise WrongAnswerError("elements are announced again, or though that was not asked for")
        self.announced = True


def _check_left_out(left_out: LeftOut | None) -> None:
    if left_out is None:
        return
    if not 1 <= len(left_out.rows) <= left_out.count <= ENDLESS:
        raise WrongAnswerError(
            f"{left_out.count} rows are reported as skipped, and {len(left_out.rows)} of them are named"
        )
    if any(not 0 <= row.position <= ENDLESS for row in left_out.rows if row.position is not None):
        raise WrongAnswerError("a row is reported as skipped at an impossible position")
