"""The newest elements of a stream by position, up to a number of bytes; and a window that trainers share."""

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from penstock.data.block import Block
from penstock.data.skipped import Skips
from penstock.data.streams.stream import Cursor
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.runtime.pacing import Pace
from penstock.service.wire.left_out import left_out_of
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import LeftOut
from penstock.service.worker.spans import BLOCK_SECONDS, STOPPED, Piece, SpanReader, pulled

_BLOCK_BYTES = 1 << 22
_OVERHEAD_BYTES = 256
_ABSENCE_SECONDS = 10.0
"""How long to wait for a trainer that reads nothing."""
_ARRIVAL_SECONDS = 0.5
"""How long readers that have lost a worker take to ask another one."""


@dataclass(frozen=True)
class Behind:
    """What was left out behind the last element of a pass; it takes one position, as an exception does."""

    left_out: LeftOut


Found = Block | Exception | Behind
"""What is at a position of a pass."""


class ProducedWindow:
    """What is at the positions `first` to `next` - 1, and the rows left out before them."""

    def __init__(self, position: int) -> None:
        self.first = self.next = position
        self.nbytes = 0
        self._starts: list[int] = []
        self._found: list[Found] = []
        self._left_out: dict[int, LeftOut] = {}
        self._gone = 0  # dropped pieces at the beginning of the lists

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self._starts) - self._gone

    def add(self, found: Found, left_out: LeftOut | None) -> None:
        """Add what is at `next` and after it to the window, with the rows left out before it."""
        if left_out is not None:
            self._left_out[self.next] = left_out
        self._starts.append(self.next)
        self._found.append(found)
        self.next += rows_of(found)
        self.nbytes += _bytes_of(found)

    def left_out(self, position: int) -> LeftOut | None:
        """The rows left out before a position."""
        return self._left_out.get(position)

    def at(self, position: int, rows: int) -> Found:
        """What is at a position, up to `rows` rows of its block: read-only, because other readers share them."""
        number = bisect_right(self._starts, position) - 1
        found = self._found[number]
        if not isinstance(found, Block):
            return found
        start = position - self._starts[number]
        return found.slice(start, start + rows).read_only()

    def first_stop(self) -> int:
        """Where the oldest piece ends."""
        return self._starts[self._gone + 1] if len(self) > 1 else self.next

    def drop(self) -> None:
        """Forget the oldest piece."""
        self._left_out.pop(self.first, None)
        self.first = self.first_stop()
        self.nbytes -= _bytes_of(self._found[self._gone])
        self._found[self._gone] = _DROPPED
        self._gone += 1
        if self._gone > len(self._starts) // 2:
            del self._starts[: self._gone], self._found[: self._gone]
            self._gone = 0

    def make_room(self, nbytes: int, needed: int) -> int:
        """Forget the oldest pieces, up to a number of bytes; returns how many these were.

        The newest piece stays, and what is needed: everything from a position on.
        """
        before = self.nbytes
        while before - self.nbytes < nbytes and len(self) > 1 and self.first_stop() <= needed:
            self.drop()
        return before - self.nbytes


_DROPPED = Exception()


def rows_of(found: Found) -> int:
    """How many positions this takes."""
    return len(found) if isinstance(found, Block) else 1


def _bytes_of(found: Found) -> int:
    return _OVERHEAD_BYTES + (found.nbytes if isinstance(found, Block) else 0)


@dataclass(eq=False)
class _WindowReader:
    """How far a reader is, or was last, and up to where it waits for elements."""

    trainer: str
    consumer: str
    position: int
    holds_back: bool
    left: float | None = None
    wanted: int = 0


class SharedWindow:
    """One pass that several trainers read, each at its own pace, from one window: the fastest drives it.

    Readers of one trainer share what it gets: each takes what none of them has had while others of them read.

    A trainer that falls out of the window continues at its present beginning. The others wait for one that holds back,
    as long as it reads: elements that it has not had stay in the window.

    If the first reader comes from another worker, that worker was lost, perhaps because an element kills its process.
    So no element is made for the first time until the other readers have had time to come too: otherwise an element
    that one of them needs could be lost together with one that another reader wants.

    Args:
        open: opens the stream of the pass.
        window_bytes: how much is kept of elements that no reader needs.
        most_bytes: how much may be kept now of those that readers need. It takes no lock of a window.
        clock: gives seconds.
    """

    def __init__(
        self,
        open: Callable[[], tuple[Cursor, Skips]],
        window_bytes: int,
        most_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed = Condition()
        self._open = open
        self._window = ProducedWindow(0)
        self._most_bytes = most_bytes
        self._window_bytes = window_bytes
        self._pace = Pace(seconds=BLOCK_SECONDS)
        self._pace.aim(min(_BLOCK_BYTES, window_bytes // 8))
        self._clock = clock
        self._stream: Cursor | None = None
        self._skips: Skips | None = None
        self._producing = False
        self._ended = self._closed = False
        self._readers: list[_WindowReader] = []
        self._given: dict[str, int] = {}  # up to where the readers of a trainer have taken its elements
        self._awaits_until = float("-inf")

    def enter(self, trainer: str, consumer: str, position: int, holds_back: bool) -> _WindowReader:
        """Let a reader of a trainer read from a position on; returns it, and `read` advances it."""
        reader = _WindowReader(trainer, consumer, position, holds_back)
        with self._changed:
            if position > 0 and not self._readers:
                self._awaits_until = self._clock() + _ARRIVAL_SECONDS
            self._readers = [other for other in self._readers if not self._replaces(reader, other)]
            if not self._shares(reader):
                self._given[trainer] = position
            self._readers.append(reader)
        return reader

    def _replaces(self, reader: _WindowReader, other: _WindowReader) -> bool:
        """Whether a reader replaces another one: itself, or one of its trainer that is gone."""
        return other.trainer == reader.trainer and (other.left is not None or other.consumer == reader.consumer)

    def _shares(self, reader: _WindowReader) -> bool:
        """Whether other readers of the same trainer are reading."""
        others = (other for other in self._readers if other.trainer == reader.trainer and other is not reader)
        return any(other.left is None and other.consumer != reader.consumer for other in others)

    def leave(self, reader: _WindowReader) -> None:
        """Note that a reader stops reading for now."""
        with self._changed:
            reader.left = self._clock()
            self._changed.notify_all()

    def read(self, reader: _WindowReader, rows: int) -> tuple[Piece | None, int]:
        """The next piece for a reader, and the position after it; no piece at the end of the pass.

        Raises:
            LostDataWorkerError: the window was closed.
        """
        with self._changed:
            kept = True
            while True:
                reader.position = max(reader.position, self._window.first)
                if self._shares(reader):
                    reader.position = max(reader.position, self._given[reader.trainer])
                if reader.position < self._window.next:
                    found = self._window.at(reader.position, rows)
                    assert not isinstance(found, Behind)
                    piece = Piece(reader.position, 0, found, kept, self._window.left_out(reader.position))
                    stop = reader.position + rows_of(piece.found)
                    self._given[reader.trainer] = max(self._given[reader.trainer], stop)
                    return piece, stop
                if self._closed:
                    raise LostDataWorkerError(STOPPED)
                if self._ended:
                    return None, self._window.next
                reader.wanted = reader.position + rows
                try:
                    kept = self._wait_or_produce() and kept
                finally:
                    reader.wanted = 0

    def _wait_or_produce(self) -> bool:
        """Wait for other readers, and return whether they may have made what is wanted; or make the next block."""
        if self._producing:
            self._changed.wait()
            return True
        if self._held_back():
            return self._changed.wait(1.0)  # readers that hold others back may be gone
        awaited = self._awaits_until - self._clock()
        if awaited > 0 and self._window.next >= self._had_until():
            return self._changed.wait(awaited)
        self._produce()
        return False

    def _had_until(self) -> int:
        """All elements before this position were taken by some reader, here or at another worker."""
        return max(reader.position for reader in self._readers)

    def moved(self, reader: _WindowReader, position: int) -> None:
        """Note that a reader has delivered everything before this position."""
        with self._changed:
            reader.position = position
            self._changed.notify_all()

    @property
    def nbytes(self) -> int:
        """How much is kept."""
        return self._window.nbytes

    @property
    def needed_bytes(self) -> int:
        """About how much of it readers need that hold others back."""
        first, stop = self._window.first, self._window.next
        needed = stop - max(first, self._needed_from())
        return self._window.nbytes * needed // (stop - first) if needed > 0 else 0

    def make_room(self, nbytes: int) -> int:
        """Forget so many bytes, as far as no reader needs them that holds others back; returns how many these were."""
        with self._changed:
            return self._window.make_room(nbytes, self._needed_from())

    def _held_back(self) -> bool:
        if not len(self._window) or self._needed_from() >= self._window.first_stop():
            return False
        return self._window.nbytes >= self._most_bytes()

    def _needed_from(self) -> int:
        """The first position that some reader that holds others back has not taken."""
        now = self._clock()
        readers = [reader for reader in self._readers if reader.holds_back]
        there = [reader.position for reader in readers if reader.left is None or now - reader.left < _ABSENCE_SECONDS]
        return min(there, default=self._window.next)

    def _rows(self) -> int:
        """How many rows to make: no more than all waiting readers want, nor beyond what some reader has taken."""
        stops = [reader.wanted for reader in self._readers]
        rows = [stop - self._window.next for stop in (*stops, self._had_until()) if stop > self._window.next]
        return min(self._pace.start(), *rows)

    def _produce(self) -> None:
        """Make the next block, while others read from the window."""
        rows = self._rows()
        self._producing = True
        self._changed.release()
        try:
            if self._stream is None or self._skips is None:
                self._stream, self._skips = self._open()
            found = pulled(self._stream, rows)
            left_out = left_out_of(self._skips.take())
        finally:
            self._changed.acquire()
            self._producing = False
            self._changed.notify_all()
        if found is None:
            self._ended = True
        else:
            self._add(self._checked(found), left_out, rows)
        self._close_if_asked()

    def _add(self, found: Block | Exception, left_out: LeftOut | None, asked: int) -> None:
        nbytes, rows = (0, 1) if isinstance(found, Exception) else (found.nbytes, len(found))
        self._pace.stop(nbytes, rows, asked)
        self._window.add(found, left_out)
        self._window.make_room(self._window.nbytes - self._window_bytes, self._needed_from())

    def _checked(self, found: Block | Exception) -> Block | Exception:
        if isinstance(found, Exception) or found.nbytes <= self._window_bytes * len(found):
            return found
        return ServiceError(
            f"an element of {found.nbytes // len(found):,} bytes does not fit into the cross-trainer window of "
            f"{self._window_bytes:,} bytes: give the data workers a larger one, or share smaller elements"
        )

    def close(self) -> None:
        """Close the stream, and forget its elements; readers get an error."""
        with self._changed:
            self._closed = True
            self._window = ProducedWindow(self._window.next)
            self._changed.notify_all()
            if not self._producing:
                self._close_if_asked()

    def _close_if_asked(self) -> None:
        if self._closed and self._stream is not None:
            self._stream.close()


class SharedReader(SpanReader):
    """One reader of a shared window."""

    gathers = False  # it may skip what has left the window

    def __init__(self, window: SharedWindow, span: Span, trainer: str, consumer: str, holds_back: bool) -> None:
        self._window = window
        self._span = span
        self._reader = window.enter(trainer, consumer, span.start, holds_back)
        self._position = span.start
        self._length = -2

    def next(self, rows: int) -> Piece | None:
        self._window.moved(self._reader, self._position)
        if self._position >= self._span.stop:
            return None
        piece, self._position = self._window.read(self._reader, min(rows, self._span.stop - self._position))
        if piece is None:
            self._length = self._position
        return piece

    def rest(self) -> Span:
        return Span(pass_number=self._span.pass_number, start=self._position, stop=self._span.stop)

    @property
    def length(self) -> int:
        return self._length

    def close(self) -> None:
        self._window.leave(self._reader)
