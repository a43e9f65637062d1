"""Rows that are made in pieces, several at a time, and returned in order."""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import Any

from penstock.data.block import Block
from penstock.data.skipped import Noticed
from penstock.data.streams.index_reading import UNKNOWN_ROW, Awaited, Failure, Making, Pending, to_keep
from penstock.data.streams.stream import State, Stream
from penstock.errors import ElementError
from penstock.runtime.callers import Bell, Callers
from penstock.runtime.threads import failures

OVERTAKING = 16
"""The number of results that may wait behind a slow call, for each call that may run."""
_BYTES = 1 << 26
_LARGE_ROW_BYTES = 1 << 19
"""Rows of this size are counted individually, even if one task makes several of them."""
_DONE = attrgetter("done")


class RowPiece:
    """Consecutive rows that are being made.

    Args:
        before: the state of the stream before them.
        source: the rows that they are made of, or the positions of these.
        make: makes them.

    Attributes:
        made: whether `block` and `failure` are final: the rows up to the first that fails, and that failure.
        pending: the calls that are waited for; None before they have begun and when the rows are made.
        skips: the elements that were skipped before them.
        waits: how often it has had to wait for calls.
        tasks: the number of tasks into which the last calls were divided.
        called: the number of rows for which these were made.
        seconds: the time it has taken, without calls in other threads.
    """

    made = False
    block: Block | None = None
    failure: Failure | None = None
    pending: Awaited | None = None
    skips: tuple[Noticed, ...] = ()
    waits = 0
    tasks = 0
    called = 0
    seconds = 0.0

    def __init__(self, before: State, source: Any, make: Callable[["RowPiece"], Making]) -> None:
        self.before = before
        self.source = source
        self._making = make(self)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def done(self) -> bool:
        """Return whether the rows wait to be taken."""
        return self.made or (self.pending is not None and self.pending.done)

    @property
    def nbytes(self) -> int:
        """The number of bytes that wait to be taken."""
        if self.block is not None:
            return self.block.nbytes
        return self.pending.nbytes if isinstance(self.pending, Pending) and self.pending.done else 0

    @property
    def results(self) -> int:
        """The number of results: one for each task, or for each large row."""
        return max(1, self.tasks, min(self.called, self.nbytes // _LARGE_ROW_BYTES))

    def resume(self) -> None:
        """Go on to the next calls that must be waited for, or to the end."""
        begun = time.perf_counter()
        try:
            self.pending = next(self._making)
            self.waits += 1
            if isinstance(self.pending, Pending):
                self.tasks, self.called = self.pending.tasks, self.pending.rows
        except StopIteration as end:
            self.pending, self.made = None, True
            self.block, self.failure = end.value
        except failures() as error:
            self.pending, self.made = None, True
            self.failure = Failure(UNKNOWN_ROW, to_keep(error))
        self.seconds += time.perf_counter() - begun


def failed_rows(failure: Failure, rows: int) -> tuple[int, ...]:
    """Return which of the rows of a piece failed, as far as their source knows, if it has one for each row here."""
    known = failure.error.positions if isinstance(failure.error, ElementError) else ()
    return known if known and known[-1] < rows else ()


class PiecesInOrder(Stream):
    """A stream whose pieces wait for calls in other threads; further ones begin if there is room, all go on in order.

    One begins as long as the callers want more and few results wait to be taken: as many as calls may run, if nothing
    delays them. Other calls may overtake a slow one, up to 16 pieces for each call or 64 MB.

    Args:
        bell: rings when calls in other threads have ended.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._pieces: deque[RowPiece] = deque()
        self._callers: list[Callers] = []
        self._then: Callable[[], None] | None = None

    @abstractmethod
    def _fill(self, need: int, allow: int) -> None:
        """Begin further pieces, `need` rows at least, and more as long as there is room."""

    @abstractmethod
    def _taken(self, piece: RowPiece) -> None:
        """Note that a piece is returned, or has failed."""

    @abstractmethod
    def _part(self, piece: RowPiece, start: int, stop: int) -> RowPiece:
        """Return some of a piece's rows as another piece, which has not begun."""

    @abstractmethod
    def _next_state(self) -> State:
        """Return the state before the first row that is in no piece."""

    def pull(self, need: int, allow: int) -> Block | None:
        while True:
            piece = self._finished(need, allow)
            if piece is None:
                return None
            self._taken(piece)
            block, failure = piece.block, piece.failure
            if failure is not None:
                if len(piece) == 1:
                    piece.failure = None  # an exception kept by another piece may refer to this one
                    try:
                        raise failure.error
                    finally:
                        del failure
                self._pieces.extendleft(reversed(self._divided(piece, failure)))
                if block is None:
                    continue
            elif block is not None:
                self._resume()  # the number of finished pieces limits how many more may begin
                self._fill(need - len(block), allow)  # rows returned beyond `need` count as read ahead
            return block

    def _divided(self, piece: RowPiece, failure: Failure) -> list[RowPiece]:
        """Return pieces of the rows of one that has failed, from the first that it has not made."""
        if failure.row != UNKNOWN_ROW:
            failed = self._part(piece, failure.row, failure.row + 1)
            failed.made, failed.failure = True, failure
            rest = self._part(piece, failure.row + 1, len(piece))
            return [failed, rest] if len(rest) else [failed]
        rows = failed_rows(failure, len(piece))
        cuts = {0, *rows, *(row + 1 for row in rows), len(piece)} if rows else {0, len(piece) // 2, len(piece)}
        return [self._part(piece, *both) for both in pairwise(sorted(cuts))]

    def _finished(self, need: int, allow: int) -> RowPiece | None:
        """Return the first piece when it is made; None at the end."""
        while True:
            rung = self._bell.rung
            self._resume()
            self._fill(need, allow)
            if not self._pieces:
                return None
            if self._pieces[0].made:
                return self._pieces.popleft()
            if not self._pieces[0].done:
                self._bell.wait(rung)

    def _begin(self, piece: RowPiece) -> None:
        self._pieces.append(piece)
        self._continue(piece)

    def _continue(self, piece: RowPiece) -> None:
        piece.resume()
        if isinstance(piece.pending, Pending) and piece.pending.callers not in self._callers:
            self._callers.append(piece.pending.callers)

    def _resume(self) -> None:
        """Continue the pieces whose calls have ended, in order; begin the first if it is what is left of another."""
        before: RowPiece | None = None
        for piece in self._pieces:
            while piece.done and not piece.made or (before is None and not piece.made and piece.pending is None):
                if before is not None and not before.made and before.waits <= piece.waits:
                    break
                self._continue(piece)
            before = piece

    def _has_room(self) -> bool:
        """Return whether another piece may begin after these."""
        with_threads = [callers for callers in self._callers if not callers.serial]
        if not with_threads or not all(callers.want_more for callers in with_threads):
            return False
        count = max(callers.count for callers in with_threads)
        ready = sum(piece.results for piece in takewhile(_DONE, self._pieces))
        if ready >= count or len(self._pieces) >= OVERTAKING * count:
            return False
        if sum(piece.results for piece in self._pieces) <= 2 * count:
            return True
        return sum(piece.nbytes for piece in self._pieces) < _BYTES

    def _drained(self) -> None:
        """Note that there is room, and nothing left to begin."""
        if self._then is not None and self._pieces:
            self._then()

    def run_ahead(self) -> None:
        self._fill(0, 1)

    def when_drained(self, then: Callable[[], None]) -> None:
        self._then = then

    def state(self) -> State:
        return self._pieces[0].before if self._pieces else self._next_state()

    def close(self) -> None:
        for piece in list(self._pieces):
            self._leave(piece)

    @staticmethod
    def _leave(piece: RowPiece) -> None:
        if isinstance(piece.pending, Pending):
            piece.pending.unwanted = True
