"""The elements of a sequence for one consumer of coordinated reads: one of every round."""

from dataclasses import dataclass

from penstock.data.block import Block
from penstock.service.wire.left_out import together
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import LeftOut
from penstock.service.worker.sequence import Sequence, SequenceReader
from penstock.service.worker.spans import Piece
from penstock.service.worker.window import Behind, rows_of


@dataclass(frozen=True)
class _Round:
    """A round of a sequence.

    Attributes:
        whole: whether there is an element for each consumer.
        left_out: the rows skipped before any of its elements, and after them if the sequence ends: each consumer
            counts all.
    """

    whole: bool
    left_out: LeftOut | None


class RoundsReader(SequenceReader):
    """Every `stride`-th position of a sequence, from the start of a span on; an incomplete last round is dropped."""

    def __init__(self, sequence: Sequence, span: Span, stride: int) -> None:
        super().__init__(sequence, span)
        self._stride = stride
        self._position = span.start + span.skip * stride

    def next(self, rows: int) -> Piece | None:
        position, stride = self._position, self._stride
        if position >= self._span.stop or 0 <= self.length <= position:
            return None
        read = self._sequence.read(position, min(rows * stride, self._span.stop - position))
        found, first = read.found, position - position % stride
        current = self._round(first)
        if found is None or isinstance(found, Behind) or not current.whole:
            self._end(first)
            return None
        count = 1
        if isinstance(found, Block):
            count = self._count_alike(first, position + len(found), len(range(0, len(found), stride)))
            found = found.take(range(0, count * stride, stride))
        self._position += count * stride
        return Piece(position, 0, found, read.kept, current.left_out)

    def _count_alike(self, first: int, stop: int, most: int) -> int:
        """The number of rounds that fit into a block before `stop`: up to the first with rows skipped before it."""
        count = 1
        while count < most:
            start = first + count * self._stride
            if start + self._stride > stop:
                following = self._round(start)
                if following.left_out is not None or not following.whole:
                    break
            count += 1
        return count

    def _round(self, first: int) -> _Round:
        position, stop = first, first + self._stride
        left_out: list[LeftOut | None] = []
        while position < stop:
            read = self._sequence.read(position, stop - position)
            if read.found is None:
                break
            if isinstance(read.found, Behind):
                left_out.append(read.found.left_out)
                break
            left_out.append(read.left_out)
            position += rows_of(read.found)
        return _Round(position == stop, together(left_out))

    def _end(self, first: int) -> None:
        """Note where the sequence ends, having come to the round that begins at `first`."""
        end = self._sequence.read(first + self._stride, 1).position
        if end and isinstance(self._sequence.read(end - 1, 1).found, Behind):
            end -= 1
        last = end - end % self._stride
        self.length = last
        left_out = self._round(last).left_out
        if left_out is not None:
            self.length += self._stride
            self.left_out = left_out if first == last else None
