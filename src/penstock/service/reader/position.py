"""Where a reader stands: how far it is in each pass, and what it has handed on. Pure bookkeeping without threads."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ServiceError, TooManySkippedError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.service.reader.delivery import Again
from penstock.service.reader.fetched import ENDLESS, Arrived, Item, Part, after
from penstock.service.reader.progress import PassProgress, SharedProgress, State, first_of
from penstock.service.reader.requests import Reading
from penstock.service.reader.unconfirmed import HandedOn, entries_of
from penstock.service.wire.subjects import Pass, Span
from penstock.service.wire.worker_messages import LeftOut


@dataclass
class GivenUp:
    """What a reader has let go of.

    Attributes:
        spans: are not its own any more.
        rows: how many elements of them had come.
        used: the parts of which it has used all that is left to it.
    """

    spans: list[Span] = field(default_factory=list)
    rows: int = 0
    used: list[Part] = field(default_factory=list)


class Position:
    """Where a reader stands; the reader holds a lock around it.

    Args:
        shared: whether others read the same passes.
        record: what the reader is restored from, if it is.
        number: of the element that it is to go on with.

    Attributes:
        passes: how far it is in each.
        handed_on: what its caller may not have used yet.
        delivery: in which order elements are handed on.
        claimed: up to which element the last record says that they are this reader's.
    """

    def __init__(self, reading: Reading, *, shared: bool, record: Any, number: int) -> None:
        self._reading = reading
        self._shared = shared
        self.descriptions: dict[int, Pass] = {}
        self.passes: dict[int, PassProgress] = {}
        self._restored: dict[int, State] = {}
        self.handed_on = HandedOn(reading.kind, reading.stride)
        self.claimed = 0
        self._again: deque[Part] = deque()
        self.delivery = reading.delivery()
        if record is not None:
            self.delivery.turn = int(record["turn"])
            self._restored = {int(number): state for number, state in record["passes"].items()}
            self._again.extend(self.handed_on.restore(int(record["first"]), entries_of(record), number))
        self._waiting = deque(self._again)
        if self._again:
            self.delivery = Again(self._again, self.delivery)

    def update(self, descriptions: Sequence[Pass]) -> int:
        """Take over what the dispatcher says of the passes; gives how many have come.

        Raises:
            ServiceError: a dispatcher that was started anew, without a journal, cuts them for other workers.
        """
        for description in descriptions:
            known = self.descriptions.get(description.number, description)
            if (known.shard_index, known.num_shards) != (description.shard_index, description.num_shards):
                raise ServiceError(
                    f"the dispatcher was started anew and divides this epoch by {description.num_shards} instead of "
                    f"{known.num_shards}: go on from a checkpoint, and let the dispatcher keep a journal "
                    "(`penstock dispatcher --work-dir`)"
                )
        new = [description for description in descriptions if description.number not in self.passes]
        for description in descriptions:
            self.descriptions[description.number] = description
        for description in new:
            self.passes[description.number] = self._progress(description)
        return len(new)

    def _progress(self, description: Pass) -> PassProgress:
        reading = self._reading
        length = description.length if reading.length_known or description.length < 0 else UNKNOWN_CARDINALITY
        if self._shared:
            progress: PassProgress = SharedProgress(description.number, length)
        else:
            progress = PassProgress(description.number, length, reading.offset)
        state = self._restored.pop(description.number, None)
        if state is not None:
            progress.restore(state)
        return progress

    def waiting(self) -> Part | None:
        """A part that was begun and that nobody fetches."""
        if self._waiting:
            return self._waiting.popleft()
        return next((progress.waiting.popleft() for progress in self.passes.values() if progress.waiting), None)

    @property
    def requested(self) -> int:
        """How many positions are being fetched."""
        return sum(
            max(0, part.span.stop - part.fetch_position)
            for progress in self.passes.values()
            for part in progress.open
            if not part.complete and part.span.stop < ENDLESS
        )

    @property
    def unread(self) -> int:
        """About how many positions were begun and not handed on, where others may have them."""
        return sum(part.unread for part in self._open())

    def _open(self) -> list[Part]:
        return [part for progress in self.passes.values() for part in progress.open]

    def give_up(self, positions: int) -> "GivenUp":
        """Let go of about so many positions that are not handed on: first those of which nothing waits here."""
        given = GivenUp()
        parts = [part for part in reversed(self._open()) if part.unread]
        for part in sorted(parts, key=lambda part: bool(part.items)):
            if positions <= 0:
                break
            positions -= part.unread
            given.rows += sum(item.chunk.rows for item in part.items if isinstance(item, Arrived))
            left = part.give_up()
            given.spans += [left] if left.first < left.end else []
            self.delivery.gave_up(part)
            given.used += [part] if self.finish(part) else []
        return given

    @property
    def all_handed_on(self) -> bool:
        """Whether everything that is this reader's was handed on, as far as that is known."""
        if self._again or any(progress.open for progress in self.passes.values()):
            return False
        return self._shared or (bool(self.passes) and all(progress.all_begun for progress in self.passes.values()))

    @property
    def all_read(self) -> bool:
        """Whether this reader alone has read all positions of all passes."""
        return bool(self.passes) and all(progress.state() == [progress.length, []] for progress in self.passes.values())

    def next_part(self) -> Part | None:
        """The part to hand on from, or None while what is next has not arrived."""
        return self.delivery.next_part(self.passes)

    def awaited(self) -> Sequence[Part]:
        """The parts of one of which something must arrive before anything can be handed on."""
        return self.delivery.awaited(self.passes)

    def begin_all(self) -> Iterator[Part]:
        """A part of each pass that nobody has begun, up to its end, after those that were begun and wait."""
        while (part := self.waiting()) is not None:
            yield part
        for progress in self.passes.values():
            if progress.frontier < ENDLESS and not progress.all_begun:
                yield progress.begin(ENDLESS - progress.frontier)

    def count_left_out(self, part: Part, counted: Callable[[int, LeftOut], None]) -> None:
        """Let what was left out before the next item of a part be counted, with the number of that item.

        Raises:
            TooManySkippedError: it is too much; the item comes next all the same.
        """
        left_out = part.items[0].left_out
        if left_out is not None:
            try:
                counted(self.handed_on.number, left_out)
            except TooManySkippedError:
                self.delivery.put_back(part)
                raise

    def hand_on(self, part: Part) -> Item:
        """Take the next item of a part."""
        item = self.delivery.take(part)
        if self._reading.leaves_out(item):
            self.handed_on.passed_over()
        else:
            self.handed_on.add(part, item)
        if isinstance(item, Arrived):
            part.position, part.skip = after(item.chunk, item.chunk.rows, self._reading.kind, self._reading.stride)
        else:
            part.position, part.skip = item.next
        return item

    def finish(self, part: Part) -> bool:
        """Note that a part is done, if it is; whether it is used up too."""
        if not part.done or part.again:
            return False
        self.passes[part.pass_number].finish(part)
        return part.unused == 0

    def record(self, number: int, *, bare: bool) -> dict[str, Any]:
        """How to have the elements again from `number` on: see `LiveStream.record`.

        What was handed on is this reader's from then on. What it has besides comes back to it where nobody else has it.
        """
        handed_on = self.handed_on
        number = max(number, handed_on.used_until)
        bare = bare and number >= handed_on.claimed_until
        self.claimed = number if bare else handed_on.number
        order = [] if bare else handed_on.entries(number)
        return {**self.state(self.claimed), "first": number, "order": order}

    def state(self, number: int) -> dict[str, Any]:
        """The passes as they were before the element with this number was handed on, and whose turn it was."""
        passes: dict[str, State] = {str(number): state for number, state in self._restored.items()}
        undone = self.handed_on.undone(number)
        for pass_number, progress in self.passes.items():
            passes[str(pass_number)] = progress.state(undone)
        return {"passes": passes, "turn": self.handed_on.turn(number, self.delivery.turn)}

    def rounds(self) -> tuple[list[int], int]:
        """Of coordinated reads, how many rounds of each pass the caller is done with, and whose turn it is then."""
        offset, stride = self._reading.offset, self._reading.stride
        if stride == 1:
            return [], 0
        state = self.state(self.handed_on.used_until)
        nexts = [first_of(state["passes"][name]) for name in sorted(state["passes"], key=int)]
        return [max(0, -(-(position - offset) // stride)) for position in nexts], state["turn"]

    def begun(self, number: int) -> list[Span]:
        """What was handed on before this number of parts that are not used up."""
        return [span for span in self._begun(number) if span.first < span.end]

    def _begun(self, number: int) -> Iterator[Span]:
        undone = self.handed_on.undone(number)
        for part in dict.fromkeys([*self.handed_on.parts(), *self._open()]):
            yield part.until(undone.get(part, part.span.end if part.done else (part.position, part.skip)))
