"""Reads spans of a pass whose positions are rows read by index, each of which gives any number of elements.

The operators over these rows ask for the next ones only when they have given everything that they made of those before.
So what comes is counted from the last time that rows were asked for: `position` is the first of these rows, and `skip`
counts elements and failures since. That is exact wherever it is resumed, and `skip` may run on over the positions that
follow.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.data.block import Block
from penstock.data.node import Node, OneInput, Run
from penstock.data.operators.expand import Interleave
from penstock.data.plan import with_inputs
from penstock.data.skipped import Skips
from penstock.data.streams.by_index import IndexStream
from penstock.errors import InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.service.wire.left_out import left_out_of
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import LeftOut
from penstock.service.worker.cut import base_of, by_row
from penstock.service.worker.spans import Piece, SpanReader
from penstock.service.worker.user_calls import UserCalls


@dataclass(frozen=True, eq=False)
class SpanRows(OneInput):
    """The rows of one `SpanRun`, of a node that is read by index."""

    name: ClassVar[str] = "rows"

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0]

    def stream(self, run: Run, epoch: int) -> "Feed":
        assert isinstance(run, SpanRun)
        return Feed(self.input, run, epoch)


def over_rows(node: Node) -> Node:
    """The nodes of a pass of kind "groups", with `SpanRows` inserted above the node that is read by index.

    An interleave of one dataset at a time reads the next ones in the same turn; each node must end with its row.
    """
    base, above = base_of(node)
    assert base is not None
    node = SpanRows(base)
    for step in above:
        node = with_inputs(by_row(step, numbered=True), [node])
    return node


class SpanRun(Run):
    """The run of a pass for one span; rows keep their numbers of the whole epoch."""

    def __init__(self, run: Run, span: Span) -> None:
        self.__dict__.update(run.__dict__)  # the same threads, and what its nodes have agreed on
        self.span = span

    def first(self, node: Node) -> int:
        return self.span.start if isinstance(node, SpanRows) else 0

    def from_beginning(self) -> Run:
        return SpanRun(super().from_beginning(), Span(pass_number=self.span.pass_number, start=0, stop=1 << 62))

    def settle(self, node: Node, position: int) -> None:
        super().settle(node, position if node.indexable else position + self.span.start)

    def inner(self, node: Node, root: Node, epoch: int, position: int) -> Run:
        if root.unseeded and isinstance(node, Interleave) and not node.numbers_known:
            raise InvalidArgumentError(
                f"{node.where()} makes datasets that draw random numbers without a seed, which depend on the number of "
                "the element in the whole stream; it is not known here. Give them seeds, or let the filter stand above"
            )
        return super().inner(node, root, epoch, position)


class Feed(IndexStream):
    """The rows of a span, which says where they are read. Whatever reads ahead passes that on with what it gives."""

    def __init__(self, base: Node, run: SpanRun, epoch: int) -> None:
        length, start, stop = base.cardinality, run.span.start, run.span.stop
        stop = stop if length == INFINITE_CARDINALITY else min(stop, length)
        own = run.for_one_stream()
        super().__init__(lambda indices: base.reading(own, epoch, indices), stop, run.bell, run.demand, start)
        self._skips = run.skips

    def pull(self, need: int, allow: int) -> Block | None:
        self._skips.read_from(int(self.state()))
        return super().pull(need, allow)


class SpanProgress(Skips):
    """Where the elements of a span are, and what was left out between them.

    Attributes:
        position: where the rows were read that the next elements are made of.
        met: how many elements and failures came since.
    """

    def __init__(self, limit: int | None, start: int) -> None:
        super().__init__(limit)
        self.position = start
        self.met = 0

    def read_from(self, position: int) -> None:
        self.position, self.met = position, 0


class GroupsReader(SpanReader):
    """A span of groups.

    Args:
        node: the nodes, with `SpanRows` in them.
        length: the number of rows there are; -1 infinite.
        run: the run of the pass.
        epoch: the epoch.
        span: the rows, of whose elements the first `span.skip` are left out.
        calls: pulls the elements.
    """

    def __init__(self, node: Node, length: int, run: Run, epoch: int, span: Span, calls: UserCalls) -> None:
        self._calls = calls
        self._span = span
        self._length = length
        own = SpanRun(run, span)
        own.skips = self._progress = SpanProgress(run.skips.limit, span.start)
        self._stream = node.cursor(own, epoch)
        self._passed = 0
        self._last_left_out: LeftOut | None = None

    def next(self, rows: int) -> Piece | None:
        while self._passed < self._span.skip:
            piece = self._pull(self._span.skip - self._passed)
            if piece is None:
                return None
            self._passed += _count(piece.found)
        return self._pull(rows)

    def _pull(self, rows: int) -> Piece | None:
        found = self._calls.pull(self._stream, rows)
        left_out = left_out_of(self._progress.take())
        if found is None:
            self._last_left_out = left_out
            return None
        piece = Piece(self._progress.position, self._progress.met, found, left_out=left_out)
        self._progress.met += _count(found)
        return piece

    def rest(self) -> Span:
        number, progress = self._span.pass_number, self._progress
        return Span(pass_number=number, start=progress.position, stop=self._span.stop, skip=progress.met)

    @property
    def length(self) -> int:
        return self._length if 0 <= self._length <= self._span.stop else -2

    @property
    def skip(self) -> int:
        return self._span.skip - self._passed

    @property
    def left_out(self) -> LeftOut | None:
        # Rows left out before a skipped element belong to that element.
        return self._last_left_out if self.skip == 0 else None

    def close(self) -> None:
        self._stream.close()


def _count(found: Block | Exception) -> int:
    return len(found) if isinstance(found, Block) else 1
