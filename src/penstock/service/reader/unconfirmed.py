"""What a reader has handed on and its caller may not have used yet, in the order in which it was handed on.

The order is that of arrival, which does not come again: this is how a reader that is restored has it again.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateMismatchError
from penstock.service.reader.fetched import ENDLESS, Arrived, Behind, Item, Part, beyond
from penstock.service.wire.subjects import PassKind, Place, Span

Entry = Sequence[int]
"""[pass, position, skip, rows, stop]: so many elements, failures counted, from a place on in a span that ends there."""


@dataclass(frozen=True)
class _Piece:
    """Elements that were handed on together, or a failure in place of one, or what was left out behind them.

    Attributes:
        number: of the first.
        used: whether the caller has nothing of it to use.
        place: of the first.
        follows: whether it is what comes in its part after the piece before it.
        claimed: whether the state from which the reader was restored says that they are its own.
    """

    part: Part
    number: int
    rows: int
    place: Place
    follows: bool = False
    claimed: bool = False
    used: bool = False


class HandedOn:
    """Pieces in order, numbered from the first element of the pass on.

    Args:
        kind: what the positions of the passes are.
        stride: from one position to the next.

    Attributes:
        number: of what is handed on next.
        claimed_until: what comes before it is in the state from which the reader was restored.
    """

    def __init__(self, kind: PassKind, stride: int) -> None:
        self.number = 0
        self.claimed_until = 0
        self.used_until = 0
        self._kind = kind
        self._stride = stride
        self._pieces: deque[_Piece] = deque()
        self._interrupted = False

    def restore(self, first: int, entries: Sequence[Entry], number: int) -> list[Part]:
        """Begin with the entries of a state, the first of which has the number `first`.

        Returns:
            What is to be handed on again, from `number` on.

        Raises:
            StateMismatchError: the entries do not tell of that number.
        """
        parts = []
        self.number, self.used_until = number, first
        end = first
        for pass_number, position, skip, rows, stop in entries:
            done = min(max(0, number - end), rows)
            start, left_out = self._beyond((position, skip), done)
            rest = Span(pass_number=pass_number, start=start, stop=stop, skip=left_out)
            part = Part(rest, limit=rows - done, again=True)
            if done < rows:
                parts.append(part)
            self._pieces.append(_Piece(part, end, rows, (position, skip), claimed=True))
            end += rows
        self.claimed_until = end
        if not first <= number <= end:
            raise StateMismatchError(f"the state tells of elements {first} to {end}, and goes on with element {number}")
        return parts

    def _beyond(self, place: Place, rows: int) -> Place:
        return beyond(place, rows, self._kind, self._stride)

    def add(self, part: Part, item: Item) -> None:
        """An item of a part is handed on, which stands at it yet."""
        rows, place = 1, (part.position, part.skip)
        if isinstance(item, Arrived):
            rows, place = item.chunk.rows, (item.chunk.position, item.chunk.skip)
        number, self.number = self.number, self.number + rows
        if part.again:
            return
        used = isinstance(item, Behind)
        part.unused += 0 if used else rows
        last = self._pieces[-1] if self._pieces else None
        follows = not self._interrupted and last is not None and last.part is part
        if follows and last is not None and self._kind != "groups":
            follows = self._beyond(last.place, last.rows) == place
        self._interrupted = False
        self._pieces.append(_Piece(part, number, rows, place, follows, used=used))

    def passed_over(self) -> None:
        """Something was left out: what comes next does not follow what came last."""
        self._interrupted = True

    def use(self, number: int) -> list[Part]:
        """What comes before this number was used; gives the parts of which that was the rest."""
        used = []
        while self._pieces and self._pieces[0].number + self._pieces[0].rows <= number:
            piece = self._pieces.popleft()
            if not piece.claimed and not piece.used:
                piece.part.unused -= piece.rows
                if piece.part.done and piece.part.unused == 0:
                    used.append(piece.part)
        self.used_until = max(self.used_until, number)
        return used

    def parts(self) -> list[Part]:
        """The parts of which something may not be used yet."""
        return list(dict.fromkeys(piece.part for piece in self._pieces if not piece.claimed))

    def undone(self, number: int) -> dict[Part, Place]:
        """Where parts would stand if what comes from this number on had not been handed on."""
        places = {}
        for piece in reversed(self._pieces):
            if piece.number + piece.rows <= number:
                break
            if not piece.claimed:
                places[piece.part] = self._beyond(piece.place, max(0, number - piece.number))
        return places

    def turn(self, number: int, now: int) -> int:
        """Which pass was next before the element with this number was handed on, where `now` is next now."""
        return next((piece.part.pass_number for piece in self._from(number) if not piece.claimed), now)

    def _from(self, number: int) -> Iterator[_Piece]:
        return (piece for piece in self._pieces if number < piece.number + piece.rows)

    def entries(self, number: int) -> list[list[int]]:
        """What was handed on from this number on, and what is to be handed on again."""
        entries: list[list[int]] = []
        for piece in self._from(number):
            done = max(0, number - piece.number)
            position, skip = self._beyond(piece.place, done)
            if entries and piece.follows:
                entries[-1][3] += piece.rows
            else:
                # What is counted from the last position on may be found anywhere behind it.
                stop = ENDLESS if piece.part.span.more else piece.part.span.stop
                entries.append([piece.part.pass_number, position, skip, piece.rows - done, stop])
            if self._kind != "groups":
                entries[-1][4] = entries[-1][1] + entries[-1][3] * self._stride
        return entries


def entries_of(record: Any) -> list[Entry]:
    """The entries of a record.

    Raises:
        StateMismatchError: they are none.
    """
    try:
        entries: list[Entry] = [tuple(map(int, entry)) for entry in record["order"]]
    except (TypeError, KeyError, ValueError) as error:
        raise StateMismatchError(f"no state of a dataset of the data service: {record!r:.200}") from error
    if any(len(entry) != 5 for entry in entries):
        raise StateMismatchError(f"no state of a dataset of the data service: {record!r:.200}")
    return entries
