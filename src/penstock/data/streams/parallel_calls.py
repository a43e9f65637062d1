"""Calls of a function for the rows of a stream, made by other threads ahead of the consumer.

Rows are read in the thread that pulls, in order. The state holds a position only: rows that were read but not returned
are read again.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.data.block import Block
from penstock.data.skipped import Noticed, SkipsAhead
from penstock.data.streams.index_reading import Pending, to_keep
from penstock.data.streams.lookahead import OVERTAKING, Lookahead, results_of
from penstock.data.streams.stream import Cursor, OneInputStream, RowsBeforeFailure, State
from penstock.runtime.callers import Callers
from penstock.runtime.threads import failures

_BLOCK_BYTES = 1 << 19


@dataclass(frozen=True)
class CallSettings:
    """Settings of a stream of calls.

    Attributes:
        start: calls the function for the rows of a block that begins at this position; the outcome is a block up to the
            first row that fails, and that failure.
        callers: the threads that call it.
        first: the position of the first row of all.
        paced: whether the rows come from a source that shows how far it is read.
    """

    start: Callable[[Block, int], Pending]
    callers: Callers
    first: int = 0
    paced: bool = False


class _CalledPiece:
    """Rows that were read, and the calls for them; or the failure of a row; or the end.

    Attributes:
        input_state: the state of the input before them.
        number: the number of rows and failures of the input before them.
        rows: the rows; None for a failure or the end.
        skips: the elements that were skipped before them.
    """

    def __init__(self, input_state: State, number: int, rows: Block | None, skips: list[Noticed]) -> None:
        self.input_state = input_state
        self.number = number
        self.rows = rows
        self.skips = skips
        self.pending: Pending | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.pending is None or self.pending.done

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait to be taken."""
        return self.pending.nbytes if self.pending is not None and self.done else 0

    @property
    def results(self) -> int:
        return 1 if self.pending is None else results_of(self.pending.tasks, self.pending.rows, self.nbytes)


class CallsInOrder(RowsBeforeFailure, OneInputStream):
    """The results in the order of the rows; calls begin as long as there is room.

    The state is the input's before the first row that was not returned. It never passes a failure that has not been
    raised yet, so that a restored stream meets it again.
    """

    same_rows = True

    def __init__(self, input: Cursor, work: CallSettings, skips: SkipsAhead) -> None:
        self._input = input
        self._work = work
        self._skips = skips
        self._pieces: deque[_CalledPiece] = deque()
        self._lookahead = Lookahead()
        self._lookahead.meet(work.callers)
        self._most_rows = 1 << 40
        self._ended = False
        # The piece that begins with the row whose failure comes with the next pull.
        self._failed: _CalledPiece | None = None
        self._then: Callable[[], None] | None = None

    def _make(self, need: int, allow: int) -> Block | None:
        """Return the results of the first piece; waits for its calls."""
        while True:
            rung = self._work.callers.bell.rung
            self._fill(need, allow)
            if not self._pieces:
                return None
            piece = self._pieces[0]
            if piece.done:
                break
            self._work.callers.bell.wait(rung)
        self._skips.count(piece.skips)
        self._pieces.popleft()
        if piece.error is not None:
            raise piece.error
        if piece.rows is None:
            return None
        assert piece.pending is not None
        output: Block | None
        output, failure = piece.pending.outcome()
        if failure is not None:
            self._failure, self._failed = failure.error, self._rest(piece, failure.row)
        else:
            # Rows returned beyond `need` count as read ahead.
            self._fill(need - len(output) if output is not None else 0, allow)
        if output is not None:
            self._most_rows = max(1, _BLOCK_BYTES * len(output) // max(1, output.nbytes))
        return output

    def _pass_failed_row(self) -> None:
        assert self._failed is not None
        rest, self._failed = self._rest(self._failed, 1), None
        if rest.rows:
            self._begin(rest)
            self._pieces.appendleft(rest)

    @staticmethod
    def _rest(piece: _CalledPiece, rows: int) -> _CalledPiece:
        """Return a piece without its first rows."""
        assert piece.rows is not None
        state, passed, met = piece.input_state
        left = piece.rows.slice(rows, len(piece.rows))
        return _CalledPiece([state, passed + rows, met + rows], piece.number + rows, left, [])

    def _fill(self, need: int, allow: int) -> None:
        """Read rows and begin the calls for them, as long as there is room."""
        here = self._work.callers.serial
        if self._work.paced and not here and (not self._pieces or self._pieces[0].done):
            here = self._work.callers.here_one_by_one
        if here and (self._pieces or need <= 0):
            return
        # Waiting for the rows of a slow source must not delay finished results.
        reads = 2 if self._work.paced else -1
        while reads and not self._ended and ((need > 0 and not self._pieces) or self._lookahead.free(self._pieces)):
            serial = self._work.callers.serial
            rows = allow if serial else min(self._work.callers.chunk, self._most_rows)
            sure = rows if not self._work.paced else need if here else self._sure(need)
            if sure <= 0:
                break
            self._read(min(sure, rows), rows)
            if here:
                break
            reads -= bool(self._pieces) and self._pieces[0].done
        if self._ended and self._then is not None and self._lookahead.free(self._pieces) and self._pieces:
            self._then()

    def _sure(self, need: int) -> int:
        """Return how many rows of a paced source may be read: those that are needed, and one for each call."""
        ahead, read, in_front = 0, 0, True
        for piece in self._pieces:
            in_front = in_front and piece.done
            rows = 0 if piece.rows is None else len(piece.rows)
            read += rows
            ahead += rows if in_front or not piece.done else 0
        count = self._work.callers.count
        return need + min(count - ahead, OVERTAKING * count - read)

    def _read(self, need: int, allow: int) -> None:
        input_state, number = self._input.state(), self._input.met
        rows, error = None, None
        try:
            rows = next(self._pulled(need, allow))
        except failures() as raised:
            error = to_keep(raised)
        piece = _CalledPiece(input_state, number, rows, self._skips.taken())
        piece.error = error
        if rows is not None:
            self._begin(piece)
        elif error is None:
            self._ended = True
            if not piece.skips:
                return
        self._pieces.append(piece)

    def _pulled(self, need: int, allow: int) -> Iterator[Block | None]:
        """Yield the next rows of the input: `to_keep` expects a coroutine."""
        yield self._input.pull(need, allow)

    def _begin(self, piece: _CalledPiece) -> None:
        assert piece.rows is not None
        piece.pending = self._work.start(piece.rows, self._work.first + piece.number)

    def run_ahead(self) -> None:
        self._fill(0, 1)

    def when_drained(self, then: Callable[[], None]) -> None:
        self._then = then

    def close(self) -> None:
        for piece in list(self._pieces):
            if piece.pending is not None:
                piece.pending.unwanted = True
        super().close()

    def state(self) -> State:
        if self._failed is not None:
            return self._failed.input_state
        return self._pieces[0].input_state if self._pieces else self._input.state()
