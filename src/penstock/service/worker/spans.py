"""Reads a span of a pass, piece by piece, and calls users' functions for that, beside others or alone."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Condition, Lock, get_ident
from typing import Final

from penstock.data.block import Block, is_ragged
from penstock.data.node import Node, Run, scaled
from penstock.data.streams.by_index import IndexStream
from penstock.data.streams.index_reading import Making
from penstock.data.streams.stream import Stream
from penstock.errors import InvalidTypeError, LostDataWorkerError, ServiceError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import LeftOut

STOPPED = "this data worker has stopped"
_PATIENCE_SECONDS: Final = 10.0
"""Time for which calls wait for each other: one that never returns must not keep all others."""
BLOCK_SECONDS = 0.016
"""A block takes a worker this long, at most twice: each costs its trainer about a quarter of a millisecond."""
_GATHERING_SECONDS = 0.001
_SMALL_BYTES = 1 << 18  # a copy of more bytes costs more than another piece


@dataclass(frozen=True)
class Piece:
    """Consecutive elements, or an exception instead of one.

    Attributes:
        position: of the first.
        skip: the number of elements and failures since the beginning of that position.
        kept: whether it had been made before.
        left_out: the rows skipped before the first of them.
    """

    position: int
    skip: int
    found: Block | Exception
    kept: bool = False
    left_out: LeftOut | None = None


class SpanReader(ABC):
    """One span of a pass, from its beginning to its end.

    Attributes:
        gathers: whether each piece begins where the previous one ends.
        length: the number of positions of the pass, if its end was reached; otherwise -2.
        skip: at the end of the span, the number of elements to skip that come after it.
        left_out: at the end of the span, the rows skipped after its last element.
    """

    gathers = True
    length = UNKNOWN_CARDINALITY
    skip = 0
    left_out: LeftOut | None = None
    _span: Span
    _position: int

    @abstractmethod
    def next(self, rows: int) -> Piece | None:
        """The next piece, at most about `rows` elements; None at the end of the span or of the pass."""

    def rest(self) -> Span:
        """The rest of the span."""
        return Span(pass_number=self._span.pass_number, start=self._position, stop=self._span.stop)

    def close(self) -> None:  # noqa: B027  # most read streams that stay open for others
        """Close everything that was opened for this span alone."""


class Gathered:
    """Joins small blocks of a reader, because each piece has a cost on its way."""

    def __init__(self, reader: SpanReader) -> None:
        self._reader = reader
        self._pending: list[Piece | None] = []

    def next(self, rows: int) -> Piece | None:
        """Return the next piece, as `SpanReader.next`, but wait a moment longer if more elements may come."""
        first = self._next(rows)
        if first is None or isinstance(first.found, Exception) or not self._reader.gathers:
            return first
        until = time.perf_counter() + _GATHERING_SECONDS
        blocks, left = [first.found], rows - len(first.found)
        nbytes = first.found.nbytes
        while left > 0 and nbytes < _SMALL_BYTES and time.perf_counter() < until:
            piece = self._next(left)
            if piece is None or isinstance(piece.found, Exception) or not _fits(piece, first.found):
                self._pending.append(piece)
                break
            blocks.append(piece.found)
            left -= len(piece.found)
            nbytes += piece.found.nbytes
        return replace(first, found=Block.concatenate(blocks))

    def _next(self, rows: int) -> Piece | None:
        return self._pending.pop() if self._pending else self._reader.next(rows)


def _fits(piece: Piece, first: Block) -> bool:
    """Return whether a piece can be joined with others: its rows have their layout, and none was skipped before it."""
    assert isinstance(piece.found, Block)
    if piece.left_out is not None or piece.found.structure != first.structure:
        return False
    return all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:] and is_ragged(a) == is_ragged(b)
        for a, b in zip(piece.found.columns, first.columns, strict=True)
    )


class RowsReader(SpanReader):
    """A span of a node that is read by index.

    Args:
        node: the indexable nodes.
        run: their run.
        epoch: the epoch.
        span: the positions.
        stride: only every `stride`-th of them, from the first; an incomplete last group of `stride` is dropped.
        calls: pulls the rows.
    """

    def __init__(self, node: Node, run: Run, epoch: int, span: Span, stride: int, calls: "UserCalls") -> None:
        self._span = span
        self._calls = calls
        self._first = self._position = span.start + span.skip * stride
        self._stride = stride
        rows = scaled(node.cardinality, lambda count: count - count % stride)
        stop = span.stop if rows == INFINITE_CARDINALITY else min(span.stop, rows)
        if 0 <= rows <= span.stop:
            self.length = rows
        positions = range(self._first, max(stop, self._first), stride)
        own = run.for_one_stream()

        def make(numbers: range) -> Making:
            return node.making(own, epoch, positions[numbers.start : numbers.stop])

        self._stream = IndexStream(make, len(positions), run.bell, run.demand)

    def next(self, rows: int) -> Piece | None:
        position = self._position
        found = self._calls.pull(self._stream, rows)
        self._position = self._first + int(self._stream.state()) * self._stride
        return None if found is None else Piece(position, 0, found)

    def close(self) -> None:
        self._stream.close()


class UserCalls:
    """All streams of a worker are pulled through this object."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._changed = Condition()
        self._running = 0
        self._alone: int | None = None  # the thread that calls alone, or waits for that
        self._until = 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the calls that run, and let no others begin until the end of the block."""
        with self._turn:
            with self._changed:
                self._alone, self._until = get_ident(), time.monotonic() + _PATIENCE_SECONDS
                self._changed.wait_for(lambda: not self._running, _PATIENCE_SECONDS)
                self._until = time.monotonic() + _PATIENCE_SECONDS
            try:
                yield
            finally:
                with self._changed:
                    self._alone = None
                    self._changed.notify_all()

    @contextmanager
    def _among_others(self) -> Iterator[None]:
        own = get_ident()
        with self._changed:
            while self._alone not in (None, own) and (left := self._until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                if self._alone is not None:
                    self._changed.notify_all()

    def pull(self, stream: Stream, rows: int) -> Block | Exception | None:
        """The next rows of a stream, or the exception that it raises.

        Raises:
            LostDataWorkerError: the stream was closed meanwhile.
        """
        try:
            with self._among_others():
                return stream.pull(rows, rows)
        except Closed:
            raise LostDataWorkerError(STOPPED) from None
        except StopIteration:  # it comes from a user function, and would end the loop silently
            return InvalidTypeError("a function of this dataset raised StopIteration: return a value instead")
        except failures() as error:
            return as_exception(error)


def as_exception(error: BaseException) -> Exception:
    """Return a function's exception as an `Exception`, so that it ends neither this process nor the trainer's."""
    if isinstance(error, Exception):
        return error
    kept = ServiceError(f"a function of this dataset raised {error!r}, which ends no process here: raise an exception")
    kept.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        kept.add_note(note)
    return kept
