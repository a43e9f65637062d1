"""Elements of several datasets, selected by choices: sample_from_datasets and choose_from_datasets."""

from dataclasses import field
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block
from penstock.data.element_kinds import OneKindStream, merged_spec
from penstock.data.node import ByMethod, Node, Run, added, derived, surely
from penstock.data.skipped import Noticed, SkipsAhead
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.errors import ElementError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import by_part
from penstock.runtime.threads import failures
from penstock.structure import LEAF

_OF_EACH = 128
"""The number of rows of a member that are read together at little cost for each."""
_TOGETHER = 4096
_MORE = 16
"""The factor by which the number of rows that are read together grows."""
_BYTES = 1 << 22
_ENDLESS = 1 << 62


class Choose(ByMethod):
    """The next element of the dataset whose number `choice` yields; `name` is the method that made the node."""

    members: tuple[Node, ...] = field(repr=False)
    choice: Node
    stop_on_empty_dataset: bool
    draws: bool = field(default=False, repr=False)
    """Whether the choices are drawn at random: they never end, and every dataset is chosen again and again."""

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments of all nodes of the choice, because its values decide which elements come."""
        choosing = [(node.name, node.arguments_by_name) for node in self.choice.walk()]
        return {"stop_on_empty_dataset": self.stop_on_empty_dataset, "choice": choosing}

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (*self.members, self.choice)

    @derived
    def cardinality(self) -> int:
        lengths = [surely(node) for node in self.members]
        if self.choice.cardinality == 0 or not any(lengths):
            return 0
        if all(length == INFINITE_CARDINALITY for length in lengths):
            return surely(self.choice)
        # Draws choose every dataset again and again; other choices may never choose one.
        if self.draws and not self.stop_on_empty_dataset:
            return added(*lengths)
        return UNKNOWN_CARDINALITY

    def spec_over(self, *inputs: Any) -> Any:
        return reduce(merged_spec, inputs)

    @property
    def spec_inputs(self) -> tuple[Node, ...]:
        return self.members


class ChooseStream(Stream, of=Choose):
    """The state is that of every input and of the choice, and which inputs have ended.

    Elements that a member skips are counted at the element for which they were read: a block begins there.
    """

    def __init__(self, node: Choose, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._ahead = not any(member.shows_reading for member in node.inputs)
        self._members: list[Cursor] = []
        self._skips: list[SkipsAhead] = []
        self._skipped: list[list[Noticed]] = [[] for _ in node.members]
        for member in node.members:
            own, skips = run.ahead()
            self._members.append(Cursor(OneKindStream(run, node, member, member.open(own, epoch))))
            self._skips.append(skips)
        self._choice = node.choice.cursor(run, epoch)
        self._ended = [False] * len(self._members)
        self._stopped = False
        # The most draws that are served together: members whose blocks are short serve only the first of many. Where
        # nothing can fail and rows are read by index, these may exceed `allow`.
        self._most = _ENDLESS
        cheap = all(part.indexable and not part.any_fails for part in node.inputs)
        self._together_most = max(_TOGETHER, _OF_EACH * len(self._members)) if cheap else 1
        self._together = 1
        # The last known states of the members, and the members that have changed since.
        self._states: list[State] = [None] * len(self._members)
        self._moved = set(range(len(self._members)))

    def pull(self, need: int, allow: int) -> Block | None:
        while not self._over():
            # Where it shows how far members are read, only elements that are surely wanted are read.
            wanted = min(max(allow, self._together), self._most) if self._ahead else need
            drawn = self._choice.pull(wanted, wanted)
            if drawn is None:
                break
            block = self._take(self._choice.made(drawn, partial(_checked, self._node)))
            if block is not None:
                return block
        self._stopped = True
        return None

    def _over(self) -> bool:
        return self._stopped or all(self._ended)

    def _take(self, numbers: Any) -> Block | None:
        """Return the elements of these draws; draws that cannot be served now are given back."""
        usable = len(numbers)
        pulled: dict[int, Block] = {}
        # The first draw for which a member that ends has no element.
        ending: dict[int, int] = {}
        drawn = {number: where for number, where, _ in by_part(numbers, numbers)}
        for number, where in drawn.items():
            self._moved.add(number)
            member, first, skipped = self._members[number], int(where[0]), self._skipped[number]
            block, failure = self._pulled(number, len(where))
            skipped += self._skips[number].taken()
            if first > 0 and (failure is not None or skipped):  # earlier draws come first
                usable = min(usable, first)
                if block is None:
                    member.withhold(failure)
                    failure = None  # it would refer to itself by this frame
                    continue
            if first == 0:
                self._skips[number].count(skipped)
                skipped.clear()
            if failure is not None:
                for other, rows in pulled.items():
                    self._members[other].give_back(len(rows))
                self._choice.give_back(len(numbers))
                try:
                    raise failure
                finally:
                    del failure
            if block is not None:
                pulled[number] = block
                first = int(where[len(block)]) if len(block) < len(where) else len(numbers)
                if not member.at_end:
                    usable = min(usable, first)
            if first < len(numbers) and (block is None or member.at_end):
                ending[number] = first
                if self._node.stop_on_empty_dataset:
                    usable = min(usable, first)
        self._serve(numbers, usable, ending)
        block = self._merged(pulled, drawn, usable)
        if block is not None and _MORE * block.nbytes <= _BYTES:
            self._together = max(self._together, min(_MORE * usable, self._together_most))
        return block

    def _serve(self, numbers: Any, usable: int, ending: dict[int, int]) -> None:
        """Record that the first `usable` draws are served, and which members have ended."""
        stops = self._node.stop_on_empty_dataset
        for number, first in ending.items():
            self._ended[number] |= first < usable or (first == usable and stops)
        self._choice.give_back(len(numbers) - usable)
        self._most = 2 * usable if 0 < usable < len(numbers) else _ENDLESS
        self._stopped = stops and usable < len(numbers) and self._ended[numbers[usable]]

    def _pulled(self, number: int, rows: int) -> tuple[Block | None, BaseException | None]:
        """Return the next rows of a member, or its exception; neither at its end."""
        if self._ended[number]:
            return None, None
        member = self._members[number]
        try:
            block = member.pull(1, rows)
        except failures() as error:
            return None, error
        if block is not None and len(block) < rows and self._together_most > 1:  # what an earlier reading has left
            rest = member.pull(1, rows - len(block))
            block = block if rest is None else Block.concatenate([block, rest])
        return block, None

    def _merged(self, pulled: dict[int, Block], drawn: dict[int, Any], usable: int) -> Block | None:
        """Return the rows for the first `usable` draws; the others are given back."""
        parts = []
        for number, block in pulled.items():
            where = drawn[number][: len(block)]
            if where[-1] >= usable:
                where = where[: np.searchsorted(where, usable)]
            self._members[number].give_back(len(block) - len(where))
            if where.size:
                parts.append((where, block.slice(0, where.size)))
        return Block.in_places(parts) if parts else None

    def state(self) -> State:
        for number in self._moved:
            self._states[number] = self._members[number].state()
        self._moved.clear()
        return [[*self._states, self._choice.state()], list(self._ended), self._stopped]

    def restore(self, state: State) -> None:
        positions, self._ended, self._stopped = state[0], list(state[1]), state[2]
        for cursor, position in zip((*self._members, self._choice), positions, strict=True):
            cursor.restore(position)
        self._moved.update(range(len(self._members)))

    def close(self) -> None:
        for cursor in (*self._members, self._choice):
            cursor.close()


def _checked(node: Choose, drawn: Block) -> npt.NDArray[np.integer[Any]]:
    """Return the numbers of members in a block of choices."""
    numbers = drawn.columns[0] if drawn.structure == LEAF else None
    if numbers is None or numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ElementError(f"{node.where()}: the choices must be integers, got {drawn.spec()}")
    wrong = numbers[(numbers < 0) | (numbers >= len(node.members))]
    if len(wrong):
        raise ElementError(f"{node.where()}: the choice must be from 0 to {len(node.members) - 1}, got {wrong[0]}")
    return numbers
