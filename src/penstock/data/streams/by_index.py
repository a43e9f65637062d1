"""One pass over what can be read by index, with the calls of parallel maps running ahead of what is taken."""

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
"""Up to so many rows are read together though fewer are asked for, where that takes less than this time and memory.

Where rows are asked for one by one, each would cost what reading by index costs at least: 10 us, of a file 100."""


class _ReadPiece:
    """Rows that are being read: those from `start` to `stop`, of which the first `passed` are not wanted any more.

    Attributes:
        pending: the calls that the reading waits for; None before it has begun and after it has ended.
        block: the rows, when they are there.
        error: or what was raised in place of one of them.
        waits: how often the reading has had to wait for calls.
        tasks: into how many tasks the last calls were divided.
        called: for how many rows these were made.
        seconds: how long it read, without the calls of others.
    """

    passed = 0
    pending: Awaited | None = None
    block: Block | None = None
    error: BaseException | None = None
    waits = 0
    tasks = 0
    called = 0
    seconds = 0.0
    _reading: Reading | None = None

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start - self.passed

    @property
    def begun(self) -> bool:
        return self._reading is not None

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

    def begin(self, read: Callable[[range], Reading]) -> None:
        """Read up to the first calls that must be waited for."""
        self._reading = read(range(self.start, self.stop))
        self.go_on()

    def go_on(self) -> None:
        """Read on, to the next such calls or to the end."""
        assert self._reading is not None
        begun = time.perf_counter()
        try:
            self.pending = next(self._reading)
            self.waits += 1
            if isinstance(self.pending, Pending):
                self.tasks, self.called = self.pending.tasks, self.pending.rows
        except StopIteration as end:
            self.pending, self.block = None, end.value
        except failures() as error:
            self.pending, self.error = None, to_keep(error)
        self.seconds += time.perf_counter() - begun


class IndexStream(Stream):
    """One pass over what can be read by index: the state is a position.

    While a reading waits for calls in other threads, further readings begin if there is room for their calls; all
    continue in order.

    Args:
        read: reads the rows at positions.
        length: how many rows there are, or INFINITE_CARDINALITY.
        bell: tells when calls in other threads have ended.
        demand: says whether rows may be read that nobody has asked for.
        start: the first position; of those beyond the end there are no rows.
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
        # The most rows to read at a time. Others that fail may be near one that did, so it grows from few again.
        self._most = self._ANY
        # The rows of a piece that is read ahead.
        self._rows = 1
        # How many rows are read together at least.
        self._together = 1
        self._lookahead = Lookahead()
        self._then: Callable[[], None] | None = None

    def _left(self, rows: int, start: int) -> int:
        return rows if self._length == INFINITE_CARDINALITY else min(rows, self._length - start)

    @property
    def at_end(self) -> bool:
        return self._position == self._length

    def pull(self, need: int, allow: int) -> Block | None:
        # The rest of what was read together would come in place of so many rows.
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
            if head.waits == 0 and len(head) > allow:
                return self._part(head, allow)
            self._pieces.popleft()
            self._position += len(head)
            self._learn(head)
            if self._pieces:
                self._go_on()  # which pieces wait to be taken says how many more may begin
                self._fill()
            assert head.block is not None
            if not head.passed:
                return head.block
            rest = head.block.slice(head.passed, len(head.block))
            return rest if self._pieces or len(rest) >= allow else self._continued(rest, allow)

    def _continued(self, rest: Block, allow: int) -> Block:
        """The rest of what was read together with the rows after it, if they come without waiting."""
        if not self._begin(min(allow - len(rest), self._most)) or (block := self._pieces[0].block) is None:
            return rest
        head = self._pieces[0]
        try:
            joined = Block.concatenate([rest, block])
        except failures():  # rows of another kind come in a block of their own
            return rest
        self._pieces.popleft()
        self._position += len(head)
        self._learn(head)
        return joined

    def _part(self, head: _ReadPiece, rows: int) -> Block:
        """So many rows of the first piece, whose others are given later."""
        assert head.block is not None
        start = head.passed
        head.passed += rows
        self._position += rows
        return head.block.slice(start, head.passed)

    def _begin(self, rows: int) -> bool:
        """Begin to read a further piece; False at the end."""
        rows = self._left(rows, self._next)
        if rows <= 0:
            return False
        piece = _ReadPiece(self._next, self._next + rows)
        self._next += rows
        self._pieces.append(piece)
        piece.begin(self._read)
        if piece.pending is not None:
            self._meet(piece)
        return True

    def _meet(self, piece: _ReadPiece) -> None:
        if isinstance(piece.pending, Pending):
            self._lookahead.meet(piece.pending.callers)

    def _finish(self, head: _ReadPiece) -> None:
        """Have the first piece read to its end."""
        if not head.begun:
            head.begin(self._read)
            self._meet(head)
        while not head.done:
            rung = self._bell.rung
            self._go_on()
            self._fill()
            if head.pending is not None and not head.pending.done:
                self._bell.wait(rung)

    def _go_on(self) -> None:
        """Continue the readings whose calls have ended, in the order of the pieces."""
        before: _ReadPiece | None = None
        for piece in self._pieces:
            while piece.pending is not None and piece.pending.done:
                if before is not None and not before.done and before.waits <= piece.waits:
                    break
                piece.go_on()
                self._meet(piece)
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
        """Choose the size of the next pieces by one that was read."""
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
        """Raise what a row has raised, or read fewer rows: the rows before the failing one are delivered first."""
        self._pieces.popleft()
        start, rows = head.start + head.passed, len(head)
        if rows == 1 and head.passed == 0:
            self._position += 1
            self._most = self._FEW
            error, head.error = head.error, None  # what another piece keeps may refer to this one
            assert error is not None
            try:
                raise error
            finally:
                del error
        told = getattr(head.error, "position", None)
        if told is None or not head.passed <= told < head.stop - head.start:
            cuts = [start + max(1, rows // 2)]
        else:  # the source knows which row it is, if there is a row here for each of its rows
            cuts = [head.start + told, head.start + told + 1]
        bounds = sorted({start, *cuts, head.stop})
        self._pieces.extendleft(_ReadPiece(*both) for both in reversed(list(pairwise(bounds))))

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
