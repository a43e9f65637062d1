"""A function called for the rows of a stream by other threads, which run ahead of what is taken.

Rows are read in the thread that pulls, in order. The state describes what was read but not given by a position alone:
it is read again.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.data.block import Block
from penstock.data.skipped import Noticed, SkipsAhead
from penstock.data.streams.given import GivenNext
from penstock.data.streams.reading import Pending, to_keep
from penstock.data.streams.room import OVERTAKING, Room
from penstock.data.streams.stream import Cursor, OneInputStream, RowsBeforeFailure, State
from penstock.runtime.callers import Callers
from penstock.runtime.threads import failures

_BLOCK_BYTES = 1 << 19


@dataclass(frozen=True)
class Work:
    """What a stream of calls does with the rows that it reads.

    Attributes:
        start: calls the function for the rows of a block that begins at this position; the outcome is a block up to the
            first row that fails, and that failure.
        callers: who calls it.
        first: the position of the first row of all.
        paced: whether the rows come from something that shows how far it is read.
    """

    start: Callable[[Block, int], Pending]
    callers: Callers
    first: int = 0
    paced: bool = False


class _CalledPiece:
    """Rows that were read, and the calls for them; or what was raised in place of a row, or the end.

    Attributes:
        place: the state of the input before them.
        number: how many rows and failures the input had given before them.
        position: of the first row.
        rows: the rows; None for a failure or the end.
        skips: what was left out before them, and where they were read.
        again: whether they were given in this place before the state was taken that was restored.
    """

    def __init__(self, place: State, number: int, position: int, rows: Block | None, skips: list[Noticed]) -> None:
        self.place = place
        self.number = number
        self.position = position
        self.rows = rows
        self.skips = skips
        self.again = False
        self.pending: Pending | None = None
        self.error: BaseException | None = None

    @property
    def count(self) -> int:
        """How many rows and failures they are."""
        return 1 if self.rows is None else len(self.rows)

    def part(self, start: int, stop: int) -> "_CalledPiece":
        """Rows start to stop, for which nothing is called yet."""
        if self.rows is None:
            return self
        state, passed, met = self.place
        place = [state, passed + start, met + start]
        skips = self.skips if start == 0 else []
        part = _CalledPiece(place, self.number + start, self.position + start, self.rows.slice(start, stop), skips)
        part.again = self.again
        return part

    @property
    def done(self) -> bool:
        return self.pending is None or self.pending.done

    @property
    def nbytes(self) -> int:
        """How many bytes wait to be taken."""
        return self.pending.nbytes if self.pending is not None and self.done else 0


class _CallsStream(RowsBeforeFailure, OneInputStream):
    """What streams of calls have in common: reading rows and having the function called as long as there is room."""

    def __init__(self, input: Cursor, work: Work, skips: SkipsAhead) -> None:
        self._input = input
        self._work = work
        self._skips = skips
        self._pieces: deque[_CalledPiece] = deque()
        self._position = work.first
        self._room = Room()
        self._room.meet(work.callers)
        self._most_rows = 1 << 40
        self._ended = False
        # The piece that begins with the row whose failure comes with the next pull.
        self._failed: _CalledPiece | None = None
        self._then: Callable[[], None] | None = None

    def _make(self, need: int, allow: int) -> Block | None:
        while True:
            rung = self._work.callers.bell.rung
            self._fill(need, allow)
            if not self._pieces:
                return None
            piece = self._next_done()
            if piece is not None:
                break
            self._work.callers.bell.wait(rung)
        self._skips.count(piece.skips)  # if these are too many, the piece comes with the next pull
        return self._taken(piece, need, allow)

    def _taken(self, piece: _CalledPiece, need: int, allow: int) -> Block | None:
        self._pieces.remove(piece)
        if piece.error is not None:
            self._gave(piece.number, 1)
            raise piece.error
        if piece.rows is None:
            return None
        assert piece.pending is not None
        output: Block | None
        output, failure = piece.pending.outcome()
        if output is not None:
            self._gave(piece.number, len(output))
        if failure is not None:
            self._failure, self._failed = failure.error, piece.part(failure.row, len(piece.rows))
        else:
            # What is given beyond what is needed was read ahead too.
            self._fill(need - len(output) if output is not None else 0, allow)
        if output is not None:
            self._most_rows = max(1, _BLOCK_BYTES * len(output) // max(1, output.nbytes))
        return output

    def _pass_failed_row(self) -> None:
        assert self._failed is not None
        failed, self._failed = self._failed, None
        self._gave(failed.number, 1)
        if failed.count > 1:
            self._put(failed.part(1, failed.count), in_front=True)

    def _fill(self, need: int, allow: int) -> None:
        """Read rows and have the function called for them, as long as there is room."""
        # Waiting for the rows of a slow source must not delay results that are there.
        reads = 2 if self._work.paced else -1
        while reads and not self._ended and ((need > 0 and not self._pieces) or self._room.free(self._pieces)):
            serial = self._work.callers.serial
            rows = allow if serial else min(self._work.callers.chunk, self._most_rows)
            sure = rows if not self._work.paced else need if serial else self._sure(need)
            if sure <= 0:
                break
            self._read(min(sure, rows), rows)
            reads -= self._next_done() is not None
        if self._ended and self._then is not None and self._room.free(self._pieces) and self._pieces:
            self._then()

    def _sure(self, need: int) -> int:
        """How many rows may be read of a source that shows how far it is read: as needed, and one for each call."""
        ahead, read, in_front = 0, 0, True
        for piece in self._pieces:
            in_front = in_front and piece.done
            rows = 0 if piece.rows is None else len(piece.rows)
            read += rows
            ahead += rows if in_front or not piece.done else 0
        count = self._work.callers.count
        return need + min(count - ahead, OVERTAKING * count - read)

    def _read(self, need: int, allow: int) -> None:
        piece = self._next_piece(need, allow)
        if piece is not None:
            self._put(piece)

    def _next_piece(self, need: int, allow: int) -> _CalledPiece | None:
        """The next rows, for which nothing is called yet; None at the end, if nothing was left out before it."""
        place, number = self._input.state(), self._input.met
        rows, error = None, None
        try:
            rows = next(self._pulled(need, allow))
        except failures() as raised:
            error = to_keep(raised)
        piece = _CalledPiece(place, number, self._position, rows, self._skips.taken())
        piece.error = error
        if rows is not None:
            self._position += len(rows)
        elif error is None:
            self._ended = True
            if not piece.skips:
                return None
        return piece

    def _pulled(self, need: int, allow: int) -> Iterator[Block | None]:
        """The next rows of the input, from a coroutine: see `to_keep`."""
        yield self._input.pull(need, allow)

    def _put(self, piece: _CalledPiece, *, in_front: bool = False) -> None:
        if piece.rows is not None:
            piece.pending = self._work.start(piece.rows, piece.position)
        if in_front:
            self._pieces.appendleft(piece)
        else:
            self._pieces.append(piece)

    @abstractmethod
    def _next_done(self) -> _CalledPiece | None:
        """The piece to give now, if its calls have ended."""

    def _gave(self, number: int, count: int) -> None:
        """Note which elements, rows or a failure, are given now."""

    def run_ahead(self) -> None:
        self._fill(0, 1)

    def when_drained(self, then: Callable[[], None]) -> None:
        self._then = then

    def close(self) -> None:
        for piece in list(self._pieces):
            if piece.pending is not None:
                piece.pending.unwanted = True
        super().close()


class CallsInOrder(_CallsStream):
    """The results in the order of the rows.

    The state is the input's before the first row that is not given. It never passes a failure that has not been raised
    yet: it is met again.
    """

    same_rows = True

    def _next_done(self) -> _CalledPiece | None:
        return self._pieces[0] if self._pieces and self._pieces[0].done else None

    def state(self) -> State:
        if self._failed is not None:
            return self._failed.place
        return self._pieces[0].place if self._pieces else self._input.state()

    def restore(self, state: State) -> None:
        self._input.restore(state)
        self._position = self._work.first + self._input.met


class CallsInAnyOrder(_CallsStream):
    """The results in the order in which the calls end.

    The state names the elements that were read but not given, as ranges, and a place in the input from which to read
    them again. It also names, when it is `settled`, what was given after it was taken: where what stands above says how
    many rows after this state it is, these rows come in that order again, and only then others in any order.

    Args:
        in_order: give the results in the order of the elements all the same: after what a state names, if it was
            restored from one.
    """

    def __init__(self, input: Cursor, work: Work, skips: SkipsAhead, *, in_order: bool) -> None:
        super().__init__(input, work, skips)
        self._in_order = in_order
        self._given_next = GivenNext()

    def _next_done(self) -> _CalledPiece | None:
        if self._pieces and (self._in_order or self._pieces[0].again):
            return self._pieces[0] if self._pieces[0].done else None
        return next((piece for piece in self._pieces if piece.done), None)

    def _gave(self, number: int, count: int) -> None:
        self._given_next = self._given_next.give(number, count)

    def state(self) -> State:
        left = list(self._pieces)
        if self._failed is not None:
            left.append(self._failed)
        first = min(left, key=lambda piece: piece.number, default=None)
        place = self._input.state() if first is None else first.place
        elements = sorted([piece.number, piece.position, piece.count] for piece in left)
        return [place, self._input.met, self._position, elements, self._given_next]

    def restore(self, state: State) -> None:
        place, known, position, elements, given = state
        self._input.restore(place)
        pieces: list[_CalledPiece] = []
        for piece in self._pieces_up_to(known):
            pieces += _parts(piece, elements)
        self._position = position
        pieces += self._pieces_up_to(max((number + count for number, count in given), default=0))
        for piece in _in_that_order(pieces, given):
            self._put(piece)

    def _pieces_up_to(self, number: int) -> Iterator[_CalledPiece]:
        while (left := number - self._input.met) > 0 and (piece := self._next_piece(left, left)) is not None:
            yield piece


def _parts(piece: _CalledPiece, elements: list[list[int]]) -> Iterator[_CalledPiece]:
    """Those of a piece's elements which are among these: [number, position, count] of each range."""
    for number, position, count in elements:
        start, stop = max(number - piece.number, 0), min(number + count - piece.number, piece.count)
        if start < stop:
            part = piece.part(start, stop)
            part.position = position + piece.number + start - number
            yield part


def _in_that_order(pieces: list[_CalledPiece], given: list[list[int]]) -> list[_CalledPiece]:
    """Pieces cut so that those which were given come first and in that order, and after them the others."""
    first: list[_CalledPiece] = []
    for start, count in given:
        rest: list[_CalledPiece] = []
        for piece in pieces:
            low, high = max(start - piece.number, 0), min(start + count - piece.number, piece.count)
            if low >= high:
                rest.append(piece)
                continue
            same = piece.part(low, high)
            same.again = True
            first.append(same)
            rest += [piece.part(*bounds) for bounds in ((0, low), (high, piece.count)) if bounds[0] < bounds[1]]
        pieces = rest
    return first + pieces
