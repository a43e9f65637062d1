"""Reads spans of a pass whose positions are rows read by index, each of which gives any number of elements.

The operators over these rows request the next ones only when they have given everything that they made of those before.
So elements are counted from the last request for rows: `position` is the first of these rows, and `skip` counts
elements and failures since. That is exact wherever it is resumed, and `skip` may extend over the following positions.
"""

from typing import Any

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
from penstock.service.worker.cut import base_of, by_row
from penstock.service.worker.spans import Piece, SpanReader, UserCalls
from penstock.service.worker.window import rows_of


class SpanRows(OneInput, name="rows"):
    """The rows of one `SpanRun`, of a node that is read by index."""

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
        self.__dict__.update(run.__dict__)  # the same threads, and the same agreements of its nodes
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
                "the element in the whole stream; it is not known here. Give them seeds, or put the filter above"
            )
        return super().inner(node, root, epoch, position)


class Feed(IndexStream):
    """The rows of a span, which notes the positions that are read. Operators that read ahead pass these on."""

    def __init__(self, base: Node, run: SpanRun, epoch: int) -> None:
        length, start, stop = base.cardinality, run.span.start, run.span.stop
        stop = stop if length == INFINITE_CARDINALITY else min(stop, length)
        own = run.for_one_stream()
        super().__init__(lambda indices: base.making(own, epoch, indices), stop, run.bell, run.demand, start)
        self._skips = run.skips

    def pull(self, need: int, allow: int) -> Block | None:
        self._skips.read_from(int(self.state()))
        return super().pull(need, allow)


class SpanProgress(Skips):
    """Position of the elements of a span, and the rows skipped between them.

    Attributes:
        position: the first of the rows that the next elements are made of.
        met: the number of elements and failures since.
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
        span: the rows, of whose elements the first `span.skip` are skipped.
        calls: pulls the elements.
    """

    def __init__(self, node: Node, length: int, run: Run, epoch: int, span: Span, calls: UserCalls) -> None:
        self._calls = calls
        self._span = span
        self.length = length if 0 <= length <= span.stop else UNKNOWN_CARDINALITY
        self.skip = span.skip
        own = SpanRun(run, span)
        own.skips = self._progress = SpanProgress(run.skips.limit, span.start)
        self._stream = node.cursor(own, epoch)

    def next(self, rows: int) -> Piece | None:
        while self.skip > 0:
            piece = self._pull(self.skip)
            if piece is None:
                return None
            self.skip -= rows_of(piece.found)
        return self._pull(rows)

    def _pull(self, rows: int) -> Piece | None:
        found = self._calls.pull(self._stream, rows)
        left_out = left_out_of(self._progress.take())
        if found is None:
            # Rows skipped before an element that is passed over belong to that element.
            self.left_out = left_out if self.skip == 0 else None
            return None
        piece = Piece(self._progress.position, self._progress.met, found, left_out=left_out)
        self._progress.met += rows_of(found)
        return piece

    def rest(self) -> Span:
        number, progress = self._span.pass_number, self._progress
        return Span(pass_number=number, start=progress.position, stop=self._span.stop, skip=progress.met)

    def close(self) -> None:
        self._stream.close()
