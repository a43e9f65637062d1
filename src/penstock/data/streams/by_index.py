"""A pass over a node that is read by index; the calls of parallel maps run ahead of the consumer."""

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from penstock.data.block import Block
from penstock.data.streams.index_reading import Awaited, Pending, Reading, to_keep
from penstock.data.streams.lookahead import Lookahead, results_of
from penstock.data.streams.stream import State, Stream
from penstock.errors import StateMismatchError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.callers import Bell
from penstock.runtime.pacing import Demand
from penstock.runtime.threads import failures

_SECONDS = 0.004
_SMALL_BYTES = 1 << 18
_TOGETHER = 64
_TOGETHER_SECONDS = 0.001
_TOGETHER_BYTES = 1 << 15
"""The most rows, seconds and bytes that are read together when fewer rows are requested.

Each read by index costs at least 10 us, of a file 100 us, so rows that are requested one by one are read in advance."""


class _ReadPiece:
    """Rows that are being read: those from `start` to `stop`, of which the first `passed` are no longer wanted.

    Attributes:
        pending: the calls that the reading waits for; None before it has begun and after it has ended.
        block: the rows, once they have been read.
        error: the exception, if reading them failed.
        waits: how often the reading has had to wait for calls.
        tasks: the number of tasks into which the last calls were divided.
        called: the number of rows for which these were made.
        seconds: the time it has read, without calls in other threads.
    """

    passed = 0
    pending: Awaited | None = None
    block: Block | None = None
    error: BaseException | None = None
    waits = 0
    tasks = 0
    called = 0
    seconds = 0.0

    def __init__(self, start: int, stop: int, read: Callable[[range], Reading]) -> None:
        self.start = start
        self.stop = stop
        self._reading = read(range(start, stop))

    def __len__(self) -> int:
        return self.stop - self.start - self.passed

    @property
    def nbytes(self) -> int:
        if self.block is not None:
            return self.block.nbytes
        return self.pending.nbytes if isinstance(self.pending, Pending) and self.pending.done else 0

    @property
    def results(self) -> int:
        return results_of(self.tasks, self.called, self.nbytes)

    @property
    def done(self) -> bool:
        return self.block is not None or self.error is not None

    def resume(self, lookahead: Lookahead) -> None:
        """Read up to the next calls that must be waited for, or to the end."""
        begun = time.perf_counter()
        try:
            self.pending = next(self._reading)
            self.waits += 1
            if isinstance(self.pending, Pending):
                self.tasks, self.called = self.pending.tasks, self.pending.rows
                lookahead.meet(self.pending.callers)
        except StopIteration as end:
            self.pending, self.block = None, end.value
        except failures() as error:
            self.pending, self.error = None, to_keep(error)
        self.seconds += time.perf_counter() - begun


class IndexStream(Stream):
    """A pass over a node that is read by index: the state is a position.

    While a reading waits for calls in other threads, further readings begin if there is room for their calls; all
    continue in order.

    Args:
        read: reads the rows at positions.
        length: how many rows there are, or INFINITE_CARDINALITY.
        bell: rings when calls in other threads have ended.
        demand: decides whether rows may be read before they are requested.
        start: the first position; it may be beyond the end.
    """

    _FEW = 16
    _ANY = 1 << 40

    def __init__(
        self, read: Callable[[range], Reading], length: int, bell: Bell, demand: Demand, start: int = 0
    ) -> None:
        self._read = read
        self._bell = bell
        self._demand = demand
        self._length = length
        self._position = start
        self._pieces: deque[_ReadPiece] = deque()
        # The first position that is in no piece.
        self._next = start
        # The most rows to read at a time: few after a failure, because others may be near.
        self._most = self._ANY
        # The rows of a piece that is read ahead.
        self._rows = 1
        # The least number of rows that are read together.
        self._together = 1
        self._lookahead = Lookahead()
        self._then: Callable[[], None] | None = None

    def _left(self, rows: int, start: int) -> int:
        return rows if self._length == INFINITE_CARDINALITY else min(rows, self._length - start)

    @property
    def at_end(self) -> bool:
        return self._position == self._length

    def pull(self, need: int, allow: int) -> Block | None:
        # Otherwise the rest of an earlier piece would be returned instead of `allow` rows.
        if allow >= _TOGETHER or not self._demand.ahead:
            self._together = 1
        while True:
            if not self._pieces and not self._begin(min(max(allow, self._together), self._most)):
                return None
            head = self._pieces[0]
            if head.block is None:
                self._finish(head)
            if head.error is not None:
                self._pass_over(head)  # raises, unless the rows before the failing one can be found
                continue
            assert head.block is not None
            if head.waits == 0 and len(head) > allow:
                start = head.passed
                head.passed += allow
                self._position += allow
                return head.block.slice(start, head.passed)
            self._pieces.popleft()
            self._position += len(head)
            self._learn(head)
            if self._pieces:
                self._resume()  # the number of finished pieces limits how many more may begin
                self._fill()
            if not head.passed:
                return head.block
            rest = head.block.slice(head.passed, len(head.block))
            return rest if self._pieces or len(rest) >= allow else self._continued(rest, allow)

    def _continued(self, rest: Block, allow: int) -> Block:
        """Return the rest of a piece, with the rows after it if they need no waiting."""
        if not self._begin(min(allow - len(rest), self._most)) or (block := self._pieces[0].block) is None:
            return rest
        head = self._pieces[0]
        try:
            joined = Block.concatenate([rest, block])
        except failures():  # rows of another kind need a separate block
            return rest
        self._pieces.popleft()
        self._position += len(head)
        self._learn(head)
        return joined

    def _begin(self, rows: int) -> bool:
        """Begin to read a further piece; False at the end."""
        rows = self._left(rows, self._next)
        if rows <= 0:
            return False
        piece = _ReadPiece(self._next, self._next + rows, self._read)
        self._next += rows
        self._pieces.append(piece)
        piece.resume(self._lookahead)
        return True

    def _finish(self, head: _ReadPiece) -> None:
        """Read the first piece to its end."""
        if head.pending is None and not head.done:
            head.resume(self._lookahead)
        while not head.done:
            rung = self._bell.rung
            self._resume()
            self._fill()
            if head.pending is not None and not head.pending.done:
                self._bell.wait(rung)

    def _resume(self) -> None:
        """Continue the readings whose calls have ended, in the order of the pieces."""
        before: _ReadPiece | None = None
        for piece in self._pieces:
            while piece.pending is not None and piece.pending.done:
                if before is not None and not before.done and before.waits <= piece.waits:
                    break
                piece.resume(self._lookahead)
            before = piece

    def _fill(self) -> None:
        """Begin further pieces as long as there is room for their calls."""
        while self._pieces and self._lookahead.free(self._pieces):
            if not self._begin(min(self._rows, self._most)):
                if self._then is not None and self._pieces:
                    self._then()
                return
            if self._pieces[-1].pending is None:  # it needs no calls
                return

    def _learn(self, head: _ReadPiece) -> None:
        """Adapt the size of the next pieces to the cost of one that was read."""
        assert head.block is not None
        if self._most < self._ANY:
            self._most *= 2
        if head.waits == 0:
            self._learn_together(head)
        if head.tasks > 1 or head.seconds > 2 * _SECONDS:
            self._rows = max(1, self._rows // 2)
        elif head.tasks == 1 and self._lookahead.wide and head.seconds < _SECONDS and head.block.nbytes < _SMALL_BYTES:
            self._rows = max(self._rows, min(2 * len(head.block), self._ANY))

    def _learn_together(self, head: _ReadPiece) -> None:
        assert head.block is not None
        rows = len(head.block)
        if head.seconds > 2 * _TOGETHER_SECONDS or head.block.nbytes > 2 * _TOGETHER_BYTES:
            self._together = max(1, min(rows, self._together) // 2)
        elif rows >= self._together and head.seconds < _TOGETHER_SECONDS and head.block.nbytes < _TOGETHER_BYTES:
            self._together = min(_TOGETHER, 2 * self._together)

    def _pass_over(self, head: _ReadPiece) -> None:
        """Raise the exception of a single row, or read fewer rows to deliver those before the failing one first."""
        self._pieces.popleft()
        start, rows = head.start + head.passed, len(head)
        if rows == 1 and head.passed == 0:
            self._position += 1
            self._most = self._FEW
            error, head.error = head.error, None  # an exception kept by another piece may refer to this one
            assert error is not None
            try:
                raise error
            finally:
                del error
        failed = getattr(head.error, "position", None)
        if failed is None or not head.passed <= failed < head.stop - head.start:
            cuts = [start + max(1, rows // 2)]
        else:  # the source knows which row failed, if it has one for each row here
            cuts = [head.start + failed, head.start + failed + 1]
        bounds = sorted({start, *cuts, head.stop})
        self._pieces.extendleft(_ReadPiece(*both, self._read) for both in reversed(list(pairwise(bounds))))

    def skip(self, rows: int) -> int:
        skipped = max(0, self._left(rows, self._position))
        self._position += skipped
        while self._pieces and self._position >= self._pieces[0].stop:
            self._leave(self._pieces.popleft())
        if self._pieces:
            self._pieces[0].passed = self._position - self._pieces[0].start
        self._next = max(self._next, self._position)
        return skipped

    def advanced(self, state: State, rows: int) -> State:
        return int(state) + rows

    def state(self) -> State:
        return self._position

    def restore(self, state: State) -> None:
        beyond = self._length != INFINITE_CARDINALITY and isinstance(state, int) and state > self._length
        if not isinstance(state, int) or state < 0 or beyond:
            has = "" if self._length == INFINITE_CARDINALITY else f", which has {self._length} elements"
            raise StateMismatchError(
                f"the state is damaged or of other data: its position {state!r:.200} is not in the data{has}"
            )
        self._position = self._next = state

    def run_ahead(self) -> None:
        if not self._pieces:
            self._begin(1)
        self._fill()

    def when_drained(self, then: Callable[[], None]) -> None:
        self._then = then

    def close(self) -> None:
        for piece in list(self._pieces):
            self._leave(piece)

    @staticmethod
    def _leave(piece: _ReadPiece) -> None:
        if isinstance(piece.pending, Pending):
            piece.pending.unwanted = True
