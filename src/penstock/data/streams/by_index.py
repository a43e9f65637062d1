"""A pass over a node that is read by index; the calls of parallel maps run ahead of the consumer."""

from collections.abc import Callable

from penstock.data.block import Block
from penstock.data.streams.index_reading import UNKNOWN_ROW, Making
from penstock.data.streams.pieces import PiecesInOrder, RowPiece, failed_rows
from penstock.data.streams.stream import State
from penstock.errors import StateMismatchError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.callers import Bell
from penstock.runtime.pacing import Demand

_SECONDS = 0.004
_SMALL_BYTES = 1 << 18
"""The size of a piece grows as long as reading it takes less, and it holds less."""
_TOGETHER = 64
_TOGETHER_SECONDS = 0.001
_TOGETHER_BYTES = 1 << 15
"""The most rows, seconds and bytes that are read together when fewer rows are requested.

Each read by index costs at least 10 us, of a file 100 us, so rows that are requested one by one are read in advance."""
_FEW = 16
_ANY = 1 << 40


class IndexStream(PiecesInOrder):
    """A pass over a node that is read by index: the state is a position.

    Args:
        make: reads the rows at positions.
        length: how many rows there are, or INFINITE_CARDINALITY.
        bell: rings when calls in other threads have ended.
        demand: decides whether rows may be read before they are requested.
        start: the first position; it may be beyond the end.
    """

    def __init__(
        self, make: Callable[[range], Making], length: int, bell: Bell, demand: Demand, start: int = 0
    ) -> None:
        super().__init__(bell)
        self._make = make
        self._demand = demand
        self._length = length
        # The first position that is in no piece.
        self._next = start
        # The most rows to read at a time: few after a failure that had to be found, because others may be near.
        self._most = _ANY
        # The rows of a piece that is read ahead, and those that are read together when fewer are requested.
        self._rows = self._together = 1

    def _left(self, rows: int, start: int) -> int:
        return rows if self._length == INFINITE_CARDINALITY else min(rows, self._length - start)

    @property
    def at_end(self) -> bool:
        return not self._pieces and self._next == self._length

    def pull(self, need: int, allow: int) -> Block | None:
        if not self._pieces:
            rows = max(allow, self._together if self._demand.ahead else 1)
            if any(not callers.serial for callers in self._callers):  # further pieces begin beside it
                rows = min(rows, max(self._rows, _TOGETHER))
            self._begin_next(rows)
        return super().pull(need, allow)

    def _begin_next(self, rows: int) -> bool:
        """Begin to read a further piece; False at the end."""
        rows = self._left(min(rows, self._most), self._next)
        if rows <= 0:
            return False
        positions = range(self._next, self._next + rows)
        self._next += rows
        self._begin(self._piece(positions))
        return True

    def _piece(self, positions: range) -> RowPiece:
        return RowPiece(positions.start, positions, lambda piece: self._make(piece.source))

    def _fill(self, need: int, allow: int) -> None:
        while self._pieces and self._pieces[-1].waits and self._has_room():
            if not self._begin_next(self._rows):
                self._drained()
                return

    def _taken(self, piece: RowPiece) -> None:
        """Adapt the size of the next pieces to the cost of one that was read."""
        if piece.block is None or piece.failure is not None:
            if piece.failure is not None and piece.failure.row == UNKNOWN_ROW:
                self._most = self._most if failed_rows(piece.failure, len(piece)) else _FEW
            return
        if self._most < _ANY:
            self._most *= 2
        nbytes = piece.block.nbytes
        if piece.seconds > 2 * _TOGETHER_SECONDS or nbytes > 2 * _TOGETHER_BYTES:
            self._together = max(1, min(len(piece), self._together) // 2)
        elif len(piece) >= self._together and piece.seconds < _TOGETHER_SECONDS and nbytes < _TOGETHER_BYTES:
            self._together = min(_TOGETHER, 2 * self._together)
        if piece.tasks > 1 or piece.seconds > 2 * _SECONDS or nbytes > 2 * _SMALL_BYTES:
            self._rows = max(1, min(self._rows, len(piece)) // 2)
        elif len(piece) >= self._rows and piece.seconds < _SECONDS and nbytes < _SMALL_BYTES:
            # Not where the calls for one row are enough for a task.
            self._rows *= 1 + all(callers.chunk > 1 for callers in self._callers)

    def _part(self, piece: RowPiece, start: int, stop: int) -> RowPiece:
        return self._piece(piece.source[start:stop])

    def skip(self, rows: int) -> int:
        skipped = 0
        while self._pieces and skipped + len(self._pieces[0]) <= rows:
            skipped += len(self._pieces[0])
            self._leave(self._pieces.popleft())
        if not self._pieces:
            further = max(0, self._left(rows - skipped, self._next))
            self._next += further
            skipped += further
        return skipped

    def advanced(self, state: State, rows: int) -> State:
        return int(state) + rows

    def _next_state(self) -> State:
        return self._next

    def restore(self, state: State) -> None:
        beyond = self._length != INFINITE_CARDINALITY and isinstance(state, int) and state > self._length
        if not isinstance(state, int) or state < 0 or beyond:
            has = "" if self._length == INFINITE_CARDINALITY else f", which has {self._length} elements"
            raise StateMismatchError(
                f"the state is damaged or of other data: its position {state!r:.200} is not in the data{has}"
            )
        self._next = state

    def run_ahead(self) -> None:
        if not self._pieces:
            self._begin_next(1)
        super().run_ahead()
