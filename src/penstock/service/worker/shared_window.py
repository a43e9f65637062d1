"""The window of a pass that trainers share: the newest of its elements."""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Condition

from penstock.data.block import Block
from penstock.data.skipped import Skips
from penstock.data.streams.stream import Cursor
from penstock.errors import LostDataWorkerError, ServiceError
from penstock.runtime.pacing import Pace
from penstock.service.wire.left_out import left_out_of
from penstock.service.wire.worker_messages import Fetch, LeftOut
from penstock.service.worker.sequence import Sequence, SequenceReader
from penstock.service.worker.spans import BLOCK_SECONDS, STOPPED, Piece, SpanReader, UserCalls
from penstock.service.worker.window import Behind, ProducedWindow, rows_of

_logger = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 22
_ABSENCE_SECONDS = 10.0
"""How long to wait for a trainer that reads nothing."""


@dataclass(eq=False)
class _WindowReader:
    """Position of a reader, now or when it left, and of the elements for which it waits.

    Attributes:
        silent: whether its process has not been heard since it read last: it may be stopped, or cut off.
    """

    trainer: str
    consumer: str
    position: int
    holds_back: bool
    left: float | None = None
    silent: bool = False
    wanted: int = 0


class SharedWindow:
    """One pass that several trainers read, each at its own pace, from one window: the fastest drives it.

    Readers of one trainer share its elements: while several of them read, each takes those that none of them has had.

    A trainer that falls out of the window continues at its present beginning. The others wait for one that holds back,
    as long as it reads and its process is heard: elements that it has not had stay in the window.

    Args:
        open: opens the stream of the pass.
        window_bytes: the most bytes that are kept of elements that no reader needs.
        most_bytes: the most bytes that may be kept now of those that readers need. It takes no lock of a window.
        calls: pulls the stream.
        clock: gives seconds.
    """

    def __init__(
        self,
        open: Callable[[], tuple[Cursor, Skips]],
        window_bytes: int,
        most_bytes: Callable[[], int],
        calls: UserCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed = Condition()
        self._open = open
        self._window = ProducedWindow(0)
        self._most_bytes = most_bytes
        self._window_bytes = window_bytes
        self._pace = Pace(seconds=BLOCK_SECONDS)
        self._pace.aim(min(_BLOCK_BYTES, window_bytes // 8))
        self._calls = calls
        self._clock = clock
        self._stream: Cursor | None = None
        self._skips: Skips | None = None
        self._producing = False
        self._ended = self._closed = False
        self._readers: list[_WindowReader] = []
        self._given: dict[str, int] = {}  # up to where the readers of a trainer have taken its elements

    def enter(self, trainer: str, consumer: str, position: int, holds_back: bool) -> _WindowReader:
        """Let a reader of a trainer read from a position on; returns it, and `read` advances it."""
        reader = _WindowReader(trainer, consumer, position, holds_back)
        with self._changed:
            self._readers = [other for other in self._readers if not self._replaces(reader, other)]
            if not self._shares(reader):
                self._given[trainer] = position
            self._readers.append(reader)
        return reader

    def _replaces(self, reader: _WindowReader, other: _WindowReader) -> bool:
        """Return whether a reader replaces another one: itself, or one of its trainer that is gone."""
        return other.trainer == reader.trainer and (other.left is not None or other.consumer == reader.consumer)

    def _shares(self, reader: _WindowReader) -> bool:
        """Return whether other readers of the same trainer are reading."""
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
        """Wait for other readers, and return whether they may have made the elements; or make the next block."""
        if self._producing:
            self._changed.wait()
            return True
        if self._held_back():
            return self._changed.wait(1.0)  # readers that hold others back may be gone
        self._produce()
        return False

    def moved(self, reader: _WindowReader, position: int) -> None:
        """Note that a reader has delivered everything before this position."""
        with self._changed:
            reader.position, reader.silent = position, False
            self._changed.notify_all()

    def wait_no_longer_for(self, consumers: Collection[str]) -> None:
        """Wait for none of these readers until they read again, though they hold others back."""
        with self._changed:
            for reader in self._readers:
                if reader.consumer in consumers and reader.holds_back and not reader.silent:
                    reader.silent = True
                    _logger.warning("the trainer %r is silent: others wait no longer for it", reader.trainer)
            self._changed.notify_all()

    @property
    def nbytes(self) -> int:
        """Return the size of the elements that are kept."""
        return self._window.nbytes

    @property
    def needed_bytes(self) -> int:
        """About how many of these bytes readers need that hold others back."""
        first, stop = self._window.first, self._window.next
        needed = stop - max(first, self._needed_from())
        return self._window.nbytes * needed // (stop - first) if needed > 0 else 0

    def make_room(self, nbytes: int) -> int:
        """Free a number of bytes that no reader needs that holds others back; returns how many were freed."""
        with self._changed:
            return self._window.make_room(nbytes, self._needed_from())

    def _held_back(self) -> bool:
        if not len(self._window) or self._needed_from() >= self._window.first_stop():
            return False
        return self._window.nbytes >= self._most_bytes()

    def _needed_from(self) -> int:
        """The first position that some reader that holds others back has not taken."""
        now = self._clock()
        readers = [reader for reader in self._readers if reader.holds_back and not reader.silent]
        there = [reader.position for reader in readers if reader.left is None or now - reader.left < _ABSENCE_SECONDS]
        return min(there, default=self._window.next)

    def _produce(self) -> None:
        """Make the next block, no longer than each waiting reader wants, while others read from the window."""
        wanted = [reader.wanted - self._window.next for reader in self._readers]
        rows = min([self._pace.start(), *(count for count in wanted if count > 0)])
        self._producing = True
        self._changed.release()
        try:
            if self._stream is None or self._skips is None:
                self._stream, self._skips = self._open()
            found = self._calls.pull(self._stream, rows)
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

    gathers = False  # it may skip elements that have left the window

    def __init__(self, window: SharedWindow, request: Fetch) -> None:
        self._window = window
        self._span = request.span
        self._position = self._span.start
        self._reader = window.enter(request.trainer, request.consumer, self._position, request.holds_back)

    def next(self, rows: int) -> Piece | None:
        self._window.moved(self._reader, self._position)
        if self._position >= self._span.stop:
            return None
        piece, self._position = self._window.read(self._reader, min(rows, self._span.stop - self._position))
        if piece is None:
            self.length = self._position
        return piece

    def close(self) -> None:
        self._window.leave(self._reader)


class AloneReader(SequenceReader):
    """One element for a reader of a shared window, made beside it because it may end the process.

    Meanwhile the window keeps the elements that follow for the reader, if it holds others back.
    """

    def __init__(self, window: SharedWindow, sequence: Sequence, request: Fetch) -> None:
        super().__init__(sequence, request.span)
        self._window = window
        self._reader = window.enter(request.trainer, request.consumer, request.span.start, request.holds_back)

    def next(self, rows: int) -> Piece | None:
        piece = super().next(rows)
        self._window.moved(self._reader, self._position)
        return piece

    def close(self) -> None:
        self._window.leave(self._reader)
