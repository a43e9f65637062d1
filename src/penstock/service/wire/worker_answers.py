"""Checks a data worker's answers against the requests.

A worker answers a `Fetch` with the elements of its span, each once and in order. A worker that answers anything else
counts as lost, and the reader asks another one.
"""

from math import inf
from typing import Final

from penstock.data.block import Block
from penstock.service.wire.interfaces import Answer, WrongAnswerError
from penstock.service.wire.subjects import PassKind, PassOffset
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, LeftOut, Making

_FARTHEST: Final = 1 << 62


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
            return offset == self._next or (offset[0] > self._next[0] and 0 <= offset[1] <= _FARTHEST)
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
        if not self._next < after or after[0] > last or after[1] < 0 or after[1] > _FARTHEST:
            raise WrongAnswerError(f"an element that failed at {self._next} is said to be followed by {after}")

    def _check_making(self) -> None:
        """Check the announcement of the elements: one, where it was asked for."""
        if self._came or self.announced or not self._alone:
            raise WrongAnswerError("elements are announced again, or though that was not asked for")
        self.announced = True


def _check_left_out(left_out: LeftOut | None) -> None:
    if left_out is None:
        return
    if not 1 <= len(left_out.rows) <= left_out.count <= _FARTHEST:
        raise WrongAnswerError(
            f"{left_out.count} rows are reported as skipped, and {len(left_out.rows)} of them are named"
        )
    if any(not 0 <= row.position <= _FARTHEST for row in left_out.rows if row.position is not None):
        raise WrongAnswerError("a row is reported as skipped at an impossible position")
