"""Calls of a function for the rows of a stream, made by other threads ahead of the consumer.

Rows are read in the thread that pulls, in order. The state holds a position only: rows that were read but not returned
are read again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.data.block import Block
from penstock.data.skipped import SkipsAhead
from penstock.data.streams.index_reading import Making, Outcome, Pending
from penstock.data.streams.pieces import OVERTAKING, PiecesInOrder, RowPiece
from penstock.data.streams.stream import Cursor, OneInputStream, State
from penstock.runtime.callers import Callers

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


class CallsInOrder(PiecesInOrder, OneInputStream):
    """The results in the order of the rows; calls begin as long as there is room.

    The state is the input's before the first row that was not returned. It never passes a failure that has not been
    raised yet, so that a restored stream meets it again.
    """

    same_rows = True

    def __init__(self, input: Cursor, work: CallSettings, skips: SkipsAhead) -> None:
        super().__init__(work.callers.bell)
        self._input = input
        self._work = work
        self._skips = skips
        self._callers.append(work.callers)
        self._most_rows = 1 << 40
        self._ended = False

    def _taken(self, piece: RowPiece) -> None:
        self._skips.count(piece.skips)
        if piece.block is not None:
            self._most_rows = max(1, _BLOCK_BYTES * len(piece.block) // max(1, piece.block.nbytes))

    def _part(self, piece: RowPiece, start: int, stop: int) -> RowPiece:
        before, passed, met = piece.before
        return RowPiece([before, passed + start, met + start], piece.source.slice(start, stop), self._calls)

    def _fill(self, need: int, allow: int) -> None:
        """Read rows and begin the calls for them, as long as there is room."""
        here = self._work.callers.serial
        if self._work.paced and not here and (not self._pieces or self._pieces[0].done):
            here = self._work.callers.here_one_by_one
        if here and (self._pieces or need <= 0):
            return
        # Waiting for the rows of a slow source must not delay finished results.
        reads = 2 if self._work.paced else -1
        while reads and not self._ended and ((need > 0 and not self._pieces) or self._has_room()):
            serial = self._work.callers.serial
            rows = allow if serial else min(self._work.callers.chunk, self._most_rows)
            sure = rows if not self._work.paced else need if here else self._sure(need)
            if sure <= 0:
                break
            self._read(min(sure, rows), rows)
            if here:
                break
            reads -= bool(self._pieces) and self._pieces[0].done
        if self._ended and self._has_room():
            self._drained()

    def _sure(self, need: int) -> int:
        """Return how many rows of a paced source may be read: those that are needed, and one for each call."""
        ahead, in_front = 0, True
        for piece in self._pieces:
            in_front = in_front and piece.done
            ahead += len(piece) if in_front or not piece.done else 0
        count = self._work.callers.count
        return need + min(count - ahead, OVERTAKING * count - sum(map(len, self._pieces)))

    def _read(self, need: int, allow: int) -> None:
        self._begin(RowPiece(self._input.state(), range(1), partial(self._next, need, allow)))
        self._pieces[-1].skips = tuple(self._skips.taken())
        if self._ended and not self._pieces[-1].skips:
            self._pieces.pop()

    def _next(self, need: int, allow: int, piece: RowPiece) -> Making:
        """Read the next rows of the input and call the function for them."""
        rows = self._input.pull(need, allow)
        if rows is None:
            self._ended, piece.source = True, range(0)
            return None, None
        piece.source = rows
        return (yield from self._calls(piece))

    def _calls(self, piece: RowPiece) -> Making:
        calls = self._work.start(piece.source, self._work.first + piece.before[-1])
        yield calls
        outcome: Outcome = calls.outcome()
        return outcome

    def _next_state(self) -> State:
        return self._input.state()

    def close(self) -> None:
        super().close()
        self._input.close()
