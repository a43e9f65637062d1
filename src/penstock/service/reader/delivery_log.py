"""The elements that a reader has delivered and its caller may not have consumed yet, in order of delivery.

Elements arrive in another order the next time. A restored reader repeats the order of this log.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateMismatchError
from penstock.service.reader.fetch_task import ENDLESS, Arrival, Arrived, FetchedBehind, FetchTask, beyond
from penstock.service.wire.subjects import PassKind, PassOffset, Span

Entry = Sequence[int]
"""[pass, position, skip, rows, stop]: `rows` elements, failures counted, from (position, skip) on up to `stop`."""


@dataclass(frozen=True)
class _Piece:
    """Elements that were delivered together, or a failure instead of one, or the rows skipped after them.

    Attributes:
        number: of the first.
        used: whether it holds nothing that the caller could consume.
        offset: of the first.
        follows: whether it directly follows the piece before it in the same task.
        claimed: whether the restored state lists it.
    """

    task: FetchTask
    number: int
    rows: int
    offset: PassOffset
    follows: bool = False
    claimed: bool = False
    used: bool = False


class DeliveryLog:
    """Pieces in order, numbered from the first element of the pass on.

    Args:
        kind: the kind of the passes.
        stride: from one position to the next.

    Attributes:
        number: of the element that is delivered next.
        turn: the pass after the one that delivered last; the next one, where passes take turns.
        claimed_until: the restored state lists all elements before this number.
    """

    def __init__(self, kind: PassKind, stride: int) -> None:
        self.number = 0
        self.turn = 0
        self.claimed_until = 0
        self.used_until = 0
        self._kind = kind
        self._stride = stride
        self._pieces: deque[_Piece] = deque()
        self._interrupted = False

    def restore(self, first: int, entries: Sequence[Entry], number: int) -> list[FetchTask]:
        """Begin with the entries of a state; the first element has the number `first`.

        Returns:
            The tasks to deliver again, from element `number` on.

        Raises:
            StateMismatchError: the entries do not reach that number.
        """
        tasks = []
        self.number, self.used_until = number, first
        end = first
        for pass_number, position, skip, rows, stop in entries:
            done = min(max(0, number - end), rows)
            start, left_out = self._beyond((position, skip), done)
            rest = Span(pass_number=pass_number, start=start, stop=stop, skip=left_out)
            task = FetchTask(rest, limit=rows - done, again=True)
            if done < rows:
                tasks.append(task)
            self._pieces.append(_Piece(task, end, rows, (position, skip), claimed=True))
            end += rows
        self.claimed_until = end
        if not first <= number <= end:
            raise StateMismatchError(
                f"the state describes elements {first} to {end}, and continues with element {number}"
            )
        return tasks

    def _beyond(self, offset: PassOffset, rows: int) -> PassOffset:
        return beyond(offset, rows, self._kind, self._stride)

    def add(self, task: FetchTask, item: Arrival, following: PassOffset) -> None:
        """Note that an item of a task is being delivered, and move the task to the offset that follows it.

        A signal handler may ask for the state after any call, so nothing is called between the changes.
        """
        rows, offset = 1, (task.position, task.skip)
        if isinstance(item, Arrived):
            rows, offset = item.chunk.rows, (item.chunk.position, item.chunk.skip)
        if task.again:
            self.number += rows
            task.position, task.skip = following
            return
        used = isinstance(item, FetchedBehind)
        last = self._pieces[-1] if self._pieces else None
        follows = last is not None and last.task is task and not self._interrupted
        if last is not None and self._kind != "groups":
            follows = follows and self._beyond(last.offset, last.rows) == offset
        self._interrupted = False
        piece = _Piece(task, self.number, rows, offset, follows, used=used)
        append, turn, unused = self._pieces.append, task.pass_number + 1, 0 if used else rows
        self.number += rows
        self.turn = turn
        task.unused += unused
        task.position, task.skip = following
        append(piece)

    def pass_over(self, task: FetchTask, following: PassOffset) -> None:
        """Move a task over an item that is skipped, so that the next one does not directly follow the last."""
        self._interrupted = True
        task.position, task.skip = following

    def use(self, number: int) -> list[FetchTask]:
        """Note that all elements before this number were consumed; returns the tasks that are now complete."""
        used = []
        while self._pieces and self._pieces[0].number + self._pieces[0].rows <= number:
            piece = self._pieces.popleft()
            if not piece.claimed and not piece.used:
                piece.task.unused -= piece.rows
                if piece.task.done and piece.task.unused == 0:
                    used.append(piece.task)
        self.used_until = max(self.used_until, number)
        return used

    def tasks(self) -> list[FetchTask]:
        """The tasks of which something may not be consumed yet."""
        return list(dict.fromkeys(piece.task for piece in self._pieces if not piece.claimed))

    def undone(self, number: int) -> dict[FetchTask, PassOffset]:
        """The positions that tasks would have if nothing from this element on had been delivered."""
        offsets = {}
        for piece in reversed(self._pieces):
            if piece.number + piece.rows <= number:
                break
            if not piece.claimed:
                offsets[piece.task] = self._beyond(piece.offset, max(0, number - piece.number))
        return offsets

    def turn_at(self, number: int) -> int:
        """The pass that was next before this element was delivered."""
        return next((piece.task.pass_number for piece in self._from(number) if not piece.claimed), self.turn)

    def _from(self, number: int) -> Iterator[_Piece]:
        return (piece for piece in self._pieces if number < piece.number + piece.rows)

    def entries(self, number: int) -> list[list[int]]:
        """The entries of a state for everything from this element on."""
        entries: list[list[int]] = []
        for piece in self._from(number):
            done = max(0, number - piece.number)
            position, skip = self._beyond(piece.offset, done)
            if entries and piece.follows:
                entries[-1][3] += piece.rows
            else:
                # Elements that are counted from the last position on may be at any position after it.
                stop = ENDLESS if piece.task.span.more else piece.task.span.stop
                entries.append([piece.task.pass_number, position, skip, piece.rows - done, stop])
            if self._kind != "groups":
                entries[-1][4] = entries[-1][1] + entries[-1][3] * self._stride
        return entries


def entries_of(replay: Any) -> list[Entry]:
    """The checked entries of a replay.

    Raises:
        StateMismatchError: the replay has no such entries.
    """
    try:
        return [
            (int(pass_number), int(position), int(skip), int(rows), int(stop))
            for pass_number, position, skip, rows, stop in replay["order"]
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise StateMismatchError(f"no state of a dataset of the data service: {replay!r:.200}") from error
