"""Answers compared with what was asked: those of a data worker.

A worker answers a `Fetch` with the elements of its span, each once and in order. One that answers anything else is as
good as lost: what it should have given is asked of another one.
"""

import time
from collections.abc import Generator
from contextlib import closing
from math import inf
from typing import Final

from penstock.data.block import Block
from penstock.service.wire.interfaces import Answer, Answers, WrongAnswerError
from penstock.service.wire.subjects import PassKind, Place
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, LeftOut, Pause

_FARTHEST: Final = 1 << 62


def checked(answers: Answers, request: Fetch, kind: PassKind, length: int) -> Generator[Answer, None, None]:
    """A worker's answers to a request, as long as they are.

    Args:
        kind: what the positions of the pass are.
        length: how many there are, if that is known; less than 0 otherwise.

    Raises:
        WrongAnswerError: they are not.
    """
    asked = _Asked(request, kind, length)
    with closing(answers):
        for answer in answers:
            match answer:
                case End():
                    asked.check_end(answer)
                case Failed():
                    asked.check_failure(answer)
                case Pause():
                    asked.check_pause()
                case chunk, block:
                    asked.check_block(chunk, block)
            yield answer


class _Asked:
    """What is to come of a request."""

    def __init__(self, request: Fetch, kind: PassKind, length: int) -> None:
        self._span = request.span
        self._length = length
        self._stride = request.stride
        self._may_jump = bool(request.trainer)
        self._by_place = kind == "groups"
        span = request.span
        self._next: Place = span.first if self._by_place else (span.start + span.skip * self._stride, 0)
        self._came = False
        self._wait_seconds = request.wait_seconds
        self._looks_in = request.looks_in
        self._begun = time.monotonic()

    def check_block(self, chunk: Chunk, block: Block) -> None:
        """Compare a block with what was to come."""
        rows, place = chunk.rows, (chunk.position, chunk.skip)
        if not 1 <= rows == len(block):
            raise WrongAnswerError(f"a block of {len(block)} rows came that is said to have {rows}")
        if not 0 <= chunk.seconds < inf:
            raise WrongAnswerError(f"a block came that is said to have taken {chunk.seconds} s")
        _check_left_out(chunk.left_out)
        last = chunk.position + (0 if self._by_place else (rows - 1) * self._stride)
        if not self._is_next(place) or last >= self._span.stop:
            raise WrongAnswerError(
                f"elements {place} to position {last} came, where {self._next} to position {self._span.stop - 1} were "
                "to come"
            )
        self._came = True
        skip = chunk.skip + rows
        self._next = (chunk.position, skip) if self._by_place else (last + self._stride, 0)

    def _is_next(self, place: Place) -> bool:
        if self._by_place or self._may_jump:  # a place may have several names where positions have any number of rows
            return place == self._next or (place[0] > self._next[0] and 0 <= place[1] <= _FARTHEST)
        return place == self._next

    def check_end(self, end: End) -> None:
        """Compare an end with what has come."""
        position, stop = self._next[0], self._span.stop
        whole = self._by_place or self._may_jump
        if not 0 <= end.skip <= self._span.skip or not 0 <= end.seconds < inf:
            raise WrongAnswerError(f"an end came that leaves out {end.skip} elements after {end.seconds} s")
        self._check_left_out_behind(end)
        if end.length == -2:
            if not whole and position < stop:
                raise WrongAnswerError(f"positions up to {stop} were to come, and the end came at {position}")
            return
        if not self._may_jump and end.length != self._length >= 0:
            raise WrongAnswerError(f"a pass of {self._length} positions is said to have {end.length}")
        least = position - self._stride + 1 if self._came and not self._by_place else 0
        most = stop if whole else min(stop, position + (self._stride if end.left_out is not None else 0))
        if not least <= end.length <= most:
            raise WrongAnswerError(
                f"a pass is said to have {end.length} positions, of which those up to {position} have come"
            )

    def _check_left_out_behind(self, end: End) -> None:
        """Compare what was left out behind the last element with where that can be."""
        if end.left_out is None:
            return
        _check_left_out(end.left_out)
        position = self._next[0]
        # Where positions are those of elements it stands at one more.
        if end.skip or (not self._by_place and not position < end.length <= position + self._stride):
            raise WrongAnswerError(f"rows are said to be left out at the end of {end.length} positions")

    def check_failure(self, failed: Failed) -> None:
        """Compare what stands in place of an element with what was to come."""
        _check_left_out(failed.left_out)
        after, last = failed.next.first, max(self._span.stop, self._next[0] + self._stride)
        if not self._next < after or after[0] > last or after[1] < 0 or after[1] > _FARTHEST:
            raise WrongAnswerError(f"an element that failed at {self._next} is said to be followed by {after}")

    def check_pause(self) -> None:
        """Compare a pause with what was asked: a worker that never waits would be asked without a pause."""
        waited = time.monotonic() - self._begun
        if self._wait_seconds == 0:
            raise WrongAnswerError("a pause came where the whole answer was asked for")
        if not self._came and waited < self._wait_seconds / 2 and not self._looks_in:
            raise WrongAnswerError(f"a pause came after {waited:.3f} s, and {self._wait_seconds} s were to be waited")


def _check_left_out(left_out: LeftOut | None) -> None:
    if left_out is None:
        return
    if not 1 <= len(left_out.rows) <= left_out.count <= _FARTHEST:
        raise WrongAnswerError(f"of {left_out.count} rows that are said to be left out {len(left_out.rows)} are named")
    if any(not 0 <= row.position <= _FARTHEST for row in left_out.rows if row.position is not None):
        raise WrongAnswerError("a row is said to be left out at a position that cannot be")
