"""A pass that one worker produces in order, for consumers at different positions of it.

Position p is the p-th thing that comes: an element, or a failure in place of one.
"""

from collections.abc import Callable
from threading import Lock

from penstock.data.block import Block
from penstock.data.stream import Cursor, State
from penstock.errors import LostDataWorkerError
from penstock.runtime.pacing import Pace
from penstock.service.reading import BLOCK_SECONDS, STOPPED, Piece, Reader, pulled
from penstock.service.subjects import Span
from penstock.service.window import Window, rows_of

_HEADS = 4
_SAVED_STATES = 64


class Gone(Exception):
    """What was asked for has left the window."""


class Head:
    """One stream through a pass, and the newest of what it gave, up to `window_bytes`.

    Args:
        open: opens the stream, at its beginning.
        saved: (position, state) to continue from.
        window_bytes: how much is kept; the newest block always is.
        passed: told each (position, state) that could be continued from.
        parallelism: the number of rows that are worth asking for at least.
    """

    def __init__(
        self,
        open: Callable[[], Cursor],
        saved: tuple[int, State],
        window_bytes: int,
        passed: Callable[[int, Cursor], None],
        parallelism: int,
    ) -> None:
        self._lock = Lock()
        self._open = open
        self._saved = saved
        self._window_bytes = window_bytes
        self._passed = passed
        self._pace = Pace(parallelism, BLOCK_SECONDS)
        self._stream: Cursor | None = None
        self._window = Window(saved[0])
        self._ended = False
        self._retired = False

    @property
    def first(self) -> int:
        """The first position that is kept."""
        return self._window.first

    @property
    def next(self) -> int:
        """The position that is made next."""
        return self._window.next

    def read(self, position: int, rows: int) -> tuple[Block | Exception | None, bool]:
        """What stands at `position`, with what follows, up to `rows` rows; None behind the end.

        Also says whether it was there already.

        Raises:
            Gone: it has left the window, or this head was retired.
        """
        there = True
        while True:
            with self._lock:
                try:
                    if self._retired or position < self.first:
                        raise Gone
                    if position < self.next:
                        return self._window.at(position, rows), there
                    if self._ended:
                        return None, there
                    there = False
                    self._produce(position + rows - self.next)
                finally:
                    self._close_if_retired()

    def _produce(self, wanted: int) -> None:
        """Make the next block of the stream, of at most `wanted` rows."""
        if self._stream is None:
            self._stream = self._open()
            if self._saved[1] is not None:
                self._stream.restore(self._saved[1])
        self._passed(self.next, self._stream)
        found = pulled(self._stream, min(self._pace.start(), wanted))
        if found is None:
            self._ended = True
            return
        self._pace.stop(0 if isinstance(found, Exception) else found.nbytes)
        self._window.add(found)
        while self._window.nbytes > self._window_bytes and len(self._window) > 1:
            self._window.drop()

    def retire(self) -> None:
        """Close the stream, after the block that is being made."""
        self._retired = True
        if self._lock.acquire(blocking=False):
            try:
                self._close_if_retired()
            finally:
                self._lock.release()

    def _close_if_retired(self) -> None:
        if self._retired and self._stream is not None:
            self._stream.close()


class Sequence:
    """A pass in order, from wherever it is asked for.

    Requests near each other share one stream and compute nothing twice. One for what has left the window is served by a
    further stream, from the nearest state that was saved on the way.

    Args:
        open: opens a stream at the beginning of the pass.
        window_bytes: how much of what it gave is kept for each of its streams.
        parallelism: the number of rows that are worth asking for at least.
    """

    def __init__(self, open: Callable[[], Cursor], window_bytes: int, parallelism: int) -> None:
        self._lock = Lock()
        self._open = open
        self._window_bytes = window_bytes
        self._parallelism = parallelism
        self._heads: list[Head] = []  # the one used last at the end
        self._states: dict[int, State] = {0: None}
        self._closed = False
        self._between = 1  # positions from one saved state to the next

    def read(self, position: int, rows: int) -> tuple[int, Block | Exception | None, bool]:
        """What stands at `position`, as `Head.read` gives it; behind the end None, at the length of the pass."""
        while True:
            head = self._head_for(position)
            try:
                found, there = head.read(position, rows)
            except Gone:
                continue
            return (head.next if found is None else position), found, there

    def _head_for(self, position: int) -> Head:
        with self._lock:
            if self._closed:
                raise LostDataWorkerError(STOPPED)
            start = max(known for known in self._states if known <= position)
            near = [head for head in self._heads if head.first <= position and head.next >= start]
            if near:
                head = max(near, key=lambda head: head.next)
                self._heads.remove(head)
            else:
                saved = (start, self._states[start])
                head = Head(self._open, saved, self._window_bytes, self._save, self._parallelism)
            self._heads.append(head)
            retired = self._heads.pop(0) if len(self._heads) > _HEADS else None
        if retired is not None:
            retired.retire()
        return head

    def _save(self, position: int, stream: Cursor) -> None:
        """Note the state of a stream at a position, every so often."""
        with self._lock:
            if position < max(self._states) + self._between:
                return
            self._states[position] = stream.state()
            if len(self._states) > _SAVED_STATES:
                self._states = dict(sorted(self._states.items())[::2])
                self._between *= 2

    def close(self) -> None:
        """Close all streams."""
        with self._lock:
            self._closed = True
            heads, self._heads = self._heads, []
        for head in heads:
            head.retire()


class SequenceReader(Reader):
    """A span of a sequence."""

    def __init__(self, sequence: Sequence, span: Span, stride: int) -> None:
        self._sequence = sequence
        self._span = span
        self._stride = stride
        self._position = span.start + span.skip * stride
        self._length = -2

    def next(self, rows: int) -> Piece | None:
        position = self._position
        if position >= self._span.stop or 0 <= self._length <= position:
            return None
        wanted = min(rows * self._stride, self._span.stop - position)
        end, found, kept = self._sequence.read(position, wanted)
        if found is None:
            self._length = end
            return None
        if self._stride > 1:
            if isinstance(found, Block):
                found = found.take(range(0, len(found), self._stride))
            last = position + (rows_of(found) - 1) * self._stride
            if not self._whole_group(last):
                self._length = last - last % self._stride
                if rows_of(found) == 1:
                    return None
                assert isinstance(found, Block)
                found = found.slice(0, len(found) - 1)
        self._position += rows_of(found) * self._stride
        return Piece(position, 0, found, kept)

    def _whole_group(self, position: int) -> bool:
        """Whether there is something for each of the consumers that read in step with this one."""
        _, found, _ = self._sequence.read(position - position % self._stride + self._stride - 1, 1)
        return found is not None

    def rest(self) -> Span:
        return Span(pass_number=self._span.pass_number, start=self._position, stop=self._span.stop)

    @property
    def length(self) -> int:
        return self._length

    def close(self) -> None:
        """The sequence stays open for others."""
