"""In which order a consumer gets what has arrived: that of the positions, as it comes, or from each pass in turn."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from penstock.service.reader.fetched import Arrived, Item, Part
from penstock.service.reader.progress import PassProgress
from penstock.service.wire.worker_messages import Chunk

Passes = Mapping[int, PassProgress]


class Delivery(ABC):
    """Chooses the part whose oldest item is handed on next."""

    turn = 0
    """Belongs to a reader's state: which pass is next, where that matters."""

    @abstractmethod
    def next_part(self, passes: Passes) -> Part | None:
        """The part to hand on from, or None while what is next has not arrived."""

    @abstractmethod
    def awaited(self, passes: Passes) -> Sequence[Part]:
        """The parts of one of which something must arrive before anything can be handed on."""

    def arrived(self, part: Part) -> None:  # noqa: B027  # most look at the parts themselves
        """Note that an item of a part has arrived."""

    def gave_up(self, part: Part) -> None:  # noqa: B027  # most look at the parts themselves
        """Note that all items of a part are gone."""

    def put_back(self, part: Part) -> None:  # noqa: B027  # most look at the parts themselves
        """The part that `next_part` has just given is to be given again."""

    def take(self, part: Part) -> Item:
        """The item to hand on."""
        return part.items.popleft()


class InOrder(Delivery):
    """The elements of each pass in the order of their positions; of several passes now one, now another."""

    def __init__(self) -> None:
        self._last = -1

    def next_part(self, passes: Passes) -> Part | None:
        return next((part for part in self._heads(passes) if part.items), None)

    def awaited(self, passes: Passes) -> Sequence[Part]:
        heads = list(self._heads(passes))
        return [] if any(head.items for head in heads) else heads

    def take(self, part: Part) -> Item:
        self._last = part.pass_number
        return part.items.popleft()

    def _heads(self, passes: Passes) -> Iterator[Part]:
        """The first part of each pass, those of the passes after the one that was last before the others."""
        numbers = sorted(passes)
        start = bisect_right(numbers, self._last)
        return (passes[number].open[0] for number in (*numbers[start:], *numbers[:start]) if passes[number].open)


class AsItComes(Delivery):
    """Blocks as they arrive; within a part they keep their order."""

    def __init__(self) -> None:
        self._ready: deque[Part] = deque()  # a part once for each of its items

    def next_part(self, passes: Passes) -> Part | None:
        return self._ready.popleft() if self._ready else None

    def awaited(self, passes: Passes) -> Sequence[Part]:
        return [] if self._ready else [part for progress in passes.values() for part in progress.open]

    def arrived(self, part: Part) -> None:
        self._ready.append(part)

    def put_back(self, part: Part) -> None:
        self._ready.appendleft(part)

    def gave_up(self, part: Part) -> None:
        self._ready = deque(ready for ready in self._ready if ready is not part)


class InTurns(Delivery):
    """One element of each pass in turn, until a pass has ended: all consumers of coordinated reads do the same."""

    def __init__(self, stride: int) -> None:
        self._stride = stride

    def next_part(self, passes: Passes) -> Part | None:
        progress = self._in_turn(passes)
        if progress is None or not progress.open or not progress.open[0].items:
            return None
        return progress.open[0]

    def awaited(self, passes: Passes) -> Sequence[Part]:
        progress = self._in_turn(passes)
        return [] if progress is None else progress.open[:1]

    def take(self, part: Part) -> Item:
        self.turn = part.pass_number + 1
        item = part.items.popleft()
        if not isinstance(item, Arrived) or item.chunk.rows == 1:
            return item
        chunk, rest = item.chunk, item.chunk.rows - 1
        left = Chunk(position=chunk.position + self._stride, skip=0, rows=rest)
        part.items.appendleft(Arrived(left, item.block.slice(1, rest + 1)))
        first = Chunk(position=chunk.position, skip=0, rows=1, left_out=chunk.left_out)
        return Arrived(first, item.block.slice(0, 1))

    def _in_turn(self, passes: Passes) -> PassProgress | None:
        numbers = sorted(passes)
        start = bisect_left(numbers, self.turn)
        return next(
            (passes[number] for number in (*numbers[start:], *numbers[:start]) if not passes[number].ended), None
        )


class Again(Delivery):
    """First what was handed on before a state was taken, in the order of that time; then as another delivery has it.

    Args:
        parts: what is to come again; those that have are taken out.
    """

    def __init__(self, parts: deque[Part], later: Delivery) -> None:
        self._parts = parts
        self._later = later
        self.turn = later.turn

    def next_part(self, passes: Passes) -> Part | None:
        while self._parts and self._parts[0].done:
            self._parts.popleft()
        if self._parts:
            return self._parts[0] if self._parts[0].items else None
        return self._later.next_part(passes)

    def awaited(self, passes: Passes) -> Sequence[Part]:
        return [self._parts[0]] if self._parts else self._later.awaited(passes)

    def arrived(self, part: Part) -> None:
        if not part.again:
            self._later.arrived(part)

    def put_back(self, part: Part) -> None:
        if not part.again:
            self._later.put_back(part)

    def gave_up(self, part: Part) -> None:
        self._later.gave_up(part)

    def take(self, part: Part) -> Item:
        if part.again:
            return part.items.popleft()
        item = self._later.take(part)
        self.turn = self._later.turn
        return item
