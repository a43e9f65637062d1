"""A pass that a worker produces in order, for readers at different positions of it.

Position p is the p-th element, or a failure instead of one. Rows skipped after the last one take one more position.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from penstock.data.skipped import Skips
from penstock.data.streams.stream import Cursor, State
from penstock.errors import LostDataWorkerError
from penstock.runtime.pacing import Pace
from penstock.service.wire.left_out import left_out_of
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import LeftOut
from penstock.service.worker.spans import BLOCK_SECONDS, STOPPED, Piece, SpanReader, UserCalls
from penstock.service.worker.window import Behind, Found, ProducedWindow, rows_of

_MOST_STREAMS = 4
_SAVED_STATES = 64


Opened = tuple[Cursor, Skips]
"""A stream, and the rows that it skips."""


class Gone(Exception):
    """The requested position has left the window."""


@dataclass(frozen=True)
class Read:
    """Elements from a position on.

    Attributes:
        position: the position; after the end, the length of the pass.
        found: the element, with those that follow in its block; None after the end.
        kept: whether it had been made before.
        left_out: the rows skipped before it.
    """

    position: int
    found: Found | None
    kept: bool
    left_out: LeftOut | None = None


class WindowedStream:
    """One stream through a pass, and its newest elements, up to `window_bytes`.

    Args:
        open: opens the stream at its beginning, and returns with it the rows that it skips.
        saved: (position, state) to continue from.
        window_bytes: the most bytes that are kept; the newest block always is.
        passed: called with each (position, state) from which the stream can be continued.
        calls: pulls the stream.

    Attributes:
        window: the newest elements.
    """

    def __init__(
        self,
        open: Callable[[], Opened],
        saved: tuple[int, State],
        window_bytes: int,
        passed: Callable[[int, Opened], None],
        calls: UserCalls,
    ) -> None:
        self._lock = Lock()
        self._open = open
        self._saved = saved
        self._window_bytes = window_bytes
        self._passed = passed
        self._calls = calls
        self._pace = Pace(seconds=BLOCK_SECONDS)
        self._stream: Opened | None = None
        self.window = ProducedWindow(saved[0])
        self._ended = False
        self._retired = False

    def read(self, position: int, rows: int) -> Read:
        """Read up to `rows` rows from `position` on.

        Raises:
            Gone: it has left the window, or this stream was retired.
        """
        there, window = True, self.window
        while True:
            try:
                with self._lock:
                    if self._retired or position < window.first:
                        raise Gone
                    if position < window.next:
                        return Read(position, window.at(position, rows), there, window.left_out(position))
                    if self._ended:
                        return Read(window.next, None, there)
                    there = False
                    self._produce(position + rows - window.next)
            finally:
                self._close_if_retired()

    def _produce(self, wanted: int) -> None:
        """Make the next block of the stream, of at most `wanted` rows."""
        window, begins = self.window, self._stream is None
        stream, skips = self._stream = self._stream or self._open()
        if begins and self._saved[1] is not None:
            state, passes = self._saved[1]
            skips.restore_passes(passes)
            stream.restore(state)
        self._passed(window.next, self._stream)
        found = self._calls.pull(stream, min(self._pace.start(), wanted))
        left_out = left_out_of(skips.take())
        if found is None:
            self._ended = True
            if left_out is not None:
                window.add(Behind(left_out), None)
            return
        nbytes, rows = (0, 1) if isinstance(found, Exception) else (found.nbytes, len(found))
        self._pace.stop(nbytes, rows)
        window.add(found, left_out)
        window.make_room(window.nbytes - self._window_bytes, window.next)

    def make_room(self, nbytes: int) -> int:
        """Free a number of bytes, unless a block is made now; returns how many were freed."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self.window.make_room(nbytes, self.window.next)
        finally:
            self._lock.release()
            self._close_if_retired()

    def retire(self) -> None:
        """Close the stream, once the current block is made."""
        self._retired = True
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        """Close the stream, unless another thread has the lock, which calls this when it has released it."""
        if self._retired and self._lock.acquire(blocking=False):
            try:
                if self._stream is not None:
                    self._stream[0].close()
            finally:
                self._lock.release()


class Sequence:
    """A pass in order, readable from any position.

    Requests for near positions share one stream and compute nothing twice. A request for a position that has left the
    window opens another stream, from the nearest saved state before it.

    Args:
        open: opens a stream at the beginning of the pass, and returns with it the rows that it skips.
        window_bytes: the most bytes that are kept of each stream.
        calls: pulls the streams.
    """

    def __init__(self, open: Callable[[], Opened], window_bytes: int, calls: UserCalls) -> None:
        self._lock = Lock()
        self._open = open
        self._window_bytes = window_bytes
        self._calls = calls
        self._streams: list[WindowedStream] = []  # the one used last at the end
        self._states: dict[int, State] = {0: None}
        self._closed = False
        self._between = 1  # positions from one saved state to the next

    def read(self, position: int, rows: int) -> Read:
        """Read up to `rows` rows from `position` on."""
        while True:
            stream = self._stream_for(position)
            try:
                return stream.read(position, rows)
            except Gone:
                continue

    def _stream_for(self, position: int) -> WindowedStream:
        with self._lock:
            if self._closed:
                raise LostDataWorkerError(STOPPED)
            start = max(known for known in self._states if known <= position)
            near = [
                stream for stream in self._streams if stream.window.first <= position and stream.window.next >= start
            ]
            if near:
                stream = max(near, key=lambda stream: stream.window.next)
                self._streams.remove(stream)
            else:
                saved = (start, self._states[start])
                stream = WindowedStream(self._open, saved, self._window_bytes, self._save, self._calls)
            self._streams.append(stream)
            retired = self._streams.pop(0) if len(self._streams) > _MOST_STREAMS else None
        if retired is not None:
            retired.retire()
        return stream

    @property
    def nbytes(self) -> int:
        """Return the size of the elements that are kept."""
        with self._lock:
            return sum(stream.window.nbytes for stream in self._streams)

    def make_room(self, nbytes: int) -> int:
        """Free a number of bytes, as far as they are kept; returns how many were freed."""
        with self._lock:
            streams = list(self._streams)
        freed = 0
        for stream in streams:
            freed += stream.make_room(nbytes - freed)
        return freed

    def _save(self, position: int, stream: Opened) -> None:
        """Save the state of a stream at regular positions."""
        with self._lock:
            if position < max(self._states) + self._between:
                return
            self._states[position] = stream[0].state(), stream[1].passes()
            if len(self._states) > _SAVED_STATES:
                self._states = dict(sorted(self._states.items())[::2])
                self._between *= 2

    def close(self) -> None:
        """Close all streams."""
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.retire()


class SequenceReader(SpanReader):
    """A span of a sequence."""

    def __init__(self, sequence: Sequence, span: Span) -> None:
        self._sequence = sequence
        self._span = span
        self._position = span.start + span.skip

    def next(self, rows: int) -> Piece | None:
        position = self._position
        if position >= self._span.stop or 0 <= self.length <= position:
            return None
        read = self._sequence.read(position, min(rows, self._span.stop - position))
        if isinstance(read.found, Behind):
            self.length, self.left_out = position + 1, read.found.left_out
            return None
        if read.found is None:
            self.length = read.position
            return None
        self._position += rows_of(read.found)
        return Piece(position, 0, read.found, read.kept, read.left_out)
