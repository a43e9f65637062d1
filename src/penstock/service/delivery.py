"""In which order a consumer gets what has arrived: that of the positions, as it comes, or from each pass in turn."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping

from penstock.service.fetching import Chunk
from penstock.service.progress import Arrived, Part, PassProgress, Raised

Passes = Mapping[int, PassProgress]


class Delivery(ABC):
    """Chooses the part whose oldest item is handed on next."""

    turn = 0
    """Belongs to a reader's state: which pass is next, where that matters."""

    @abstractmethod
    def next_part(self, passes: Passes) -> Part | None:
        """The part to hand on from, or None while what is next has not arrived."""

    @abstractmethod
    def awaits(self, part: Part, passes: Passes) -> bool:
        """Whether nothing can be handed on before something of this part arrives."""

    def arrived(self, part: Part) -> None:  # noqa: B027  # most look at the parts themselves
        """Note that an item of a part has arrived."""

    def gave_up(self, part: Part) -> None:  # noqa: B027  # most look at the parts themselves
        """Note that all items of a part are gone."""

    def take(self, part: Part) -> Arrived | Raised:
        """The item to hand on."""
        return part.items.popleft()


class InOrder(Delivery):
    """The elements of each pass in the order of their positions; of several passes now one, now another."""

    def __init__(self) -> None:
        self._last = -1

    def next_part(self, passes: Passes) -> Part | None:
        return next((part for part in self._heads(passes) if part.items), None)

    def awaits(self, part: Part, passes: Passes) -> bool:
        heads = self._heads(passes)
        return part in heads and not any(head.items for head in heads)

    def take(self, part: Part) -> Arrived | Raised:
        self._last = part.pass_number
        return part.items.popleft()

    def _heads(self, passes: Passes) -> list[Part]:
        """The first part of each pass, those of the passes after the one that was last before the others."""
        heads = [progress.open[0] for _, progress in sorted(passes.items()) if progress.open]
        return sorted(heads, key=lambda part: part.pass_number <= self._last)


class AsItComes(Delivery):
    """Blocks as they arrive; within a part they keep their order."""

    def __init__(self) -> None:
        self._ready: deque[Part] = deque()  # a part once for each of its items

    def next_part(self, passes: Passes) -> Part | None:
        return self._ready.popleft() if self._ready else None

    def awaits(self, part: Part, passes: Passes) -> bool:
        return not self._ready

    def arrived(self, part: Part) -> None:
        self._ready.append(part)

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

    def awaits(self, part: Part, passes: Passes) -> bool:
        progress = self._in_turn(passes)
        return progress is not None and part in progress.open[:1]

    def take(self, part: Part) -> Arrived | Raised:
        self.turn = part.pass_number + 1
        item = part.items.popleft()
        if isinstance(item, Raised) or item.chunk.rows == 1:
            return item
        chunk, rest = item.chunk, item.chunk.rows - 1
        left = Chunk(position=chunk.position + self._stride, skip=0, rows=rest)
        part.items.appendleft(Arrived(left, item.block.slice(1, rest + 1)))
        return Arrived(Chunk(position=chunk.position, skip=0, rows=1), item.block.slice(0, 1))

    def _in_turn(self, passes: Passes) -> PassProgress | None:
        going = [number for number in sorted(passes) if not passes[number].ended]
        if not going:
            return None
        return passes[next((number for number in going if number >= self.turn), going[0])]


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

    def awaits(self, part: Part, passes: Passes) -> bool:
        return part is self._parts[0] if self._parts else self._later.awaits(part, passes)

    def arrived(self, part: Part) -> None:
        if not part.again:
            self._later.arrived(part)

    def gave_up(self, part: Part) -> None:
        self._later.gave_up(part)

    def take(self, part: Part) -> Arrived | Raised:
        if part.again:
            return part.items.popleft()
        item = self._later.take(part)
        self.turn = self._later.turn
        return item
