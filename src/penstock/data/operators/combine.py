"""Operators with several inputs: zip, concatenate, and taking from one or the other by choice."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Indices, dtype_of_rows
from penstock.data.node import DependsOn, Node, Run, added, surely
from penstock.data.skipped import Noticed, SkipsAhead
from penstock.data.streams.reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State, Stream
from penstock.errors import ElementError, InvalidTypeError, TooManySkippedError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.rng import as_positions
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec, alike, merged
from penstock.structure import LEAF, Structure, flatten, map_structure


@dataclass(frozen=True, eq=False)
class Zip(Node):
    """One element of each input, together; as many as the shortest input has."""

    name: ClassVar[str] = "zip"
    pairs = True
    fails = False
    drops_alike = True
    keeps_places = True
    members: tuple[Node, ...] = field(repr=False)
    structure: Structure = field(repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {}

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.members

    @property
    def cardinality(self) -> int:
        lengths = [node.cardinality for node in self.members]
        if any(length != INFINITE_CARDINALITY for length in lengths):
            lengths = [surely(node) for node in self.members]
        finite = [length for length in lengths if length >= 0]
        if 0 in finite:
            return 0
        if UNKNOWN_CARDINALITY in lengths:
            return UNKNOWN_CARDINALITY
        return min(finite) if finite else INFINITE_CARDINALITY

    def spec_over(self, *inputs: Any) -> Any:
        return self.structure.unflatten(inputs)

    @property
    def indexable(self) -> bool:
        return all(node.indexable for node in self.members)

    def together(self, blocks: list[Block]) -> Block:
        """Blocks of equal length side by side."""
        columns = tuple(column for block in blocks for column in block.columns)
        return Block(columns, self.structure.nested([block.structure for block in blocks]), len(blocks[0]))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        blocks = []
        for node in self.members:
            blocks.append((yield from node.reading(run, epoch, indices)))  # noqa: PERF401  # a list cannot wait
        return self.together(blocks)

    def stream(self, run: Run, epoch: int) -> "ZipStream":
        return ZipStream(self, run, epoch)


class ZipStream(Stream):
    """The state is that of every input."""

    def __init__(self, node: Zip, run: Run, epoch: int) -> None:
        self._node = node
        self._inputs = [member.cursor(run, epoch) for member in node.members]
        self._ended = False

    def pull(self, need: int, allow: int) -> Block | None:
        blocks: list[Block] = []
        for cursor in self._inputs:
            try:
                block = None if self._ended else cursor.pull(need, allow)
            except failures():
                # The other inputs lose the element that belongs to the failed one, so that pairs stay pairs.
                for other, pulled in zip(self._inputs, blocks, strict=False):
                    other.give_back(len(pulled))
                for other in self._inputs:
                    if other is not cursor:
                        with suppress(Exception):  # it fails there too: one failure tells of the pair
                            other.skip(1)
                raise
            if block is None:
                self._ended = True
                return None
            blocks.append(block)
            allow = min(allow, len(block))
        for cursor, block in zip(self._inputs, blocks, strict=True):
            cursor.give_back(len(block) - allow)
        return self._node.together([block.slice(0, allow) for block in blocks])

    def state(self) -> State:
        return [self._ended, [cursor.state() for cursor in self._inputs]]

    def restore(self, state: State) -> None:
        self._ended, positions = state
        for cursor, position in zip(self._inputs, positions, strict=True):
            cursor.restore(position)

    def close(self) -> None:
        for cursor in self._inputs:
            cursor.close()


@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """All elements of the first input, then all of the second."""

    name: ClassVar[str] = "concatenate"
    depends_on = DependsOn.ANY
    fails = False
    drops_alike = True
    keeps_places = True
    first: Node
    second: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.first, self.second)

    @property
    def cardinality(self) -> int:
        return added(surely(self.first), self.second.cardinality)

    def spec_over(self, *inputs: Any) -> Any:
        return merged_spec(*inputs)

    @property
    def indexable(self) -> bool:
        return self.first.indexable and self.second.indexable

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        length = self.first.cardinality
        if length == INFINITE_CARDINALITY or len(indices) == 0:
            return (yield from self.first.reading(run, epoch, indices))
        if isinstance(indices, range):
            low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
            if high < length:
                return (yield from self._part(run, epoch, self.first, indices))
            if low >= length:
                shifted = range(indices.start - length, indices.stop - length, indices.step)
                return (yield from self._part(run, epoch, self.second, shifted))
        positions = as_positions(indices)
        early, late = np.flatnonzero(positions < length), np.flatnonzero(positions >= length)
        parts = []
        if early.size:
            parts.append((early, (yield from self._part(run, epoch, self.first, positions[early]))))
        if late.size:
            parts.append((late, (yield from self._part(run, epoch, self.second, positions[late] - length))))
        return Block.scattered(parts)

    def _part(self, run: Run, epoch: int, member: Node, indices: Indices) -> Reading:
        return _of_one_kind(run, self, member, (yield from member.reading(run, epoch, indices)))

    def stream(self, run: Run, epoch: int) -> "ConcatenateStream":
        return ConcatenateStream(self, run, epoch)


class ConcatenateStream(OneInputStream):
    """The state is which input is being read, and its state."""

    def __init__(self, node: Concatenate, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._number = 0
        self._input = self._open()

    def _open(self) -> Cursor:
        return self._node.inputs[self._number].cursor(self._run, self._epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None and self._number == 0:
            self._input.close()
            self._number = 1
            self._input = self._open()
            block = self._input.pull(need, allow)
        return block and _of_one_kind(self._run, self._node, self._node.inputs[self._number], block)

    def state(self) -> State:
        return [self._number, self._input.state()]

    def restore(self, state: State) -> None:
        self._input.close()
        self._number, position = state
        self._input = self._open()
        self._input.restore(position)


_AHEAD_ROWS = 64


@dataclass(frozen=True, eq=False)
class Choose(Node):
    """The next element of the dataset whose number `choice` gives; `name` says by which method it was asked for."""

    method: str = field(repr=False)
    members: tuple[Node, ...] = field(repr=False)
    choice: Node
    stop_on_empty_dataset: bool
    draws: bool = field(default=False, repr=False)
    """Whether the choices are drawn, and so never end and leave out no dataset."""

    @property
    def identity(self) -> dict[str, Any]:
        """Here values choose elements: those of the choice, so everything that makes it counts."""
        choosing = [(node.name, node.arguments_by_name) for node in self.choice.walk()]
        return {"stop_on_empty_dataset": self.stop_on_empty_dataset, "choice": choosing}

    @property
    def name(self) -> str:  # type: ignore[override]  # one node serves two methods
        return self.method

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (*self.members, self.choice)

    @property
    def cardinality(self) -> int:
        lengths = [surely(node) for node in self.members]
        if self.choice.cardinality == 0 or not any(lengths):
            return 0
        if all(length == INFINITE_CARDINALITY for length in lengths):
            return surely(self.choice)
        # Draws come to every dataset again and again; other choices may leave one out.
        if self.draws and not self.stop_on_empty_dataset:
            return added(*lengths)
        return UNKNOWN_CARDINALITY

    def spec_over(self, *inputs: Any) -> Any:
        return reduce(merged_spec, inputs)

    @property
    def spec_inputs(self) -> tuple[Node, ...]:
        return self.members

    def stream(self, run: Run, epoch: int) -> "ChooseStream":
        return ChooseStream(self, run, epoch)


class ChooseStream(Stream):
    """The state is that of every input and of the choice, and which inputs have ended.

    What a member leaves out counts at the element for which it was read: a block begins there.
    """

    def __init__(self, node: Choose, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._ahead = all(member.indexable for member in node.inputs)
        # What is only looked up is read a few rows at a time, which the cursor keeps.
        looked_up = self._ahead and not any(below.fails for below in node.walk() if below is not node)
        self._least = _AHEAD_ROWS if looked_up else 1
        self._members: list[Cursor] = []
        self._skips: list[SkipsAhead] = []
        self._left_out: list[list[Noticed]] = [[] for _ in node.members]
        self._before_end: dict[
            int, State
        ] = {}  # of members at whose end something was left out that does not count yet
        for member in node.members:
            own, skips = run.ahead()
            self._members.append(member.cursor(own, epoch))
            self._skips.append(skips)
        self._choice = node.choice.cursor(run, epoch)
        self._ended = [False] * len(self._members)
        self._stopped = False
        # The states of the members as they were asked for last, and the members that have moved on since.
        self._states: list[State] = [None] * len(self._members)
        self._moved = set(range(len(self._members)))

    def pull(self, need: int, allow: int) -> Block | None:
        while not self._stopped and not all(self._ended):
            # Elements of streams are not asked for before they are surely wanted.
            wanted = allow if self._ahead else need
            drawn = self._choice.pull(wanted, wanted)
            if drawn is None:
                break
            block = self._take(self._checked(drawn))
            if block is not None:
                return block
        self._stopped = True
        for skips, left_out in zip(self._skips, self._left_out, strict=True):
            skips.count(left_out)
        self._before_end.clear()
        return None

    def _checked(self, drawn: Block) -> Any:
        numbers = drawn.columns[0] if drawn.structure == LEAF else None
        if numbers is None or numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ElementError(f"{self._node.where()}: the choices must be integers, got {drawn.spec()}")
        wrong = numbers[(numbers < 0) | (numbers >= len(self._members))]
        if len(wrong):
            raise ElementError(
                f"{self._node.where()}: the choice must be from 0 to {len(self._members) - 1}, got {wrong[0]}"
            )
        return numbers

    def _take(self, numbers: Any) -> Block | None:
        """The elements of these draws; draws that cannot be served now are given back."""
        usable = len(numbers)
        pulled: dict[int, Block] = {}
        drawn = _by_member(numbers)
        for number, where in drawn.items():
            self._moved.add(number)
            if self._ended[number]:
                block = before = None
            else:
                # What is read by index leaves nothing out.
                before = self._members[number].state() if where[0] > 0 and not self._ahead else None
                try:
                    block = self._members[number].pull(1, max(len(where), self._least))
                except failures() as error:
                    self._left_out[number] += self._skips[number].taken()
                    if where[0] > 0:  # what was drawn before it comes first
                        self._members[number].withhold(error)
                        usable = min(usable, int(where[0]))
                        continue
                    self._give_back(numbers, pulled)
                    self._skips[number].count(self._left_out[number])
                    raise
            self._left_out[number] += self._skips[number].taken()
            if self._left_out[number] and where[0] > 0:
                usable = min(usable, int(where[0]))
            if block is not None:
                pulled[number] = block
                if len(block) < len(where):
                    usable = min(usable, int(where[len(block)]))
                continue
            self._end(number, before)
            if self._node.stop_on_empty_dataset:
                usable = min(usable, int(where[0]))
        self._count_left_out(numbers, pulled)
        self._choice.give_back(len(numbers) - usable)
        self._stopped = self._node.stop_on_empty_dataset and usable < len(numbers) and self._ended[numbers[usable]]
        return self._merged(pulled, drawn, usable)

    def _merged(self, pulled: dict[int, Block], drawn: dict[int, Any], usable: int) -> Block | None:
        """What was pulled for the first `usable` draws; the rest is given back."""
        parts = []
        for number, block in pulled.items():
            where = drawn[number]
            where = where[: np.searchsorted(where, usable)]
            self._members[number].give_back(len(block) - len(where))
            if where.size:
                _of_one_kind(self._run, self._node, self._node.members[number], block)
                parts.append((where, block.slice(0, where.size)))
        return _in_order(parts)

    def _end(self, number: int, before: State | None) -> None:
        """Note that a member has ended; `before` is its state before that, where draws of others come first."""
        if self._left_out[number] and before is not None:
            self._before_end[number] = before
        self._ended[number] = True

    def _count_left_out(self, numbers: Any, pulled: dict[int, Block]) -> None:
        """Count what was left out before the first of these draws."""
        first = int(numbers[0])
        try:
            self._skips[first].count(self._left_out[first])
        except TooManySkippedError:  # the elements come with the next pull
            self._give_back(numbers, pulled)
            raise
        self._before_end.pop(first, None)

    def _give_back(self, numbers: Any, pulled: dict[int, Block]) -> None:
        for member, rows in pulled.items():
            self._members[member].give_back(len(rows))
        self._choice.give_back(len(numbers))

    def state(self) -> State:
        # A restored stream meets those ends again at which something must still be counted.
        for number in self._moved:
            self._states[number] = self._members[number].state()
        self._moved.clear()
        members, ended = list(self._states), list(self._ended)
        for number, before in self._before_end.items():
            members[number], ended[number] = before, False
        return [[*members, self._choice.state()], ended, self._stopped and not self._before_end]

    def restore(self, state: State) -> None:
        positions, self._ended, self._stopped = state[0], list(state[1]), state[2]
        for cursor, position in zip((*self._members, self._choice), positions, strict=True):
            cursor.restore(position)
        self._moved.update(range(len(self._members)))

    def close(self) -> None:
        for cursor in (*self._members, self._choice):
            cursor.close()


def _by_member(numbers: Any) -> dict[int, Any]:
    """Where each member was drawn, in the order of their numbers."""
    order = np.argsort(numbers, kind="stable")
    members, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(members.tolist(), np.split(order, starts[1:]), strict=True))


def _in_order(parts: list[tuple[Any, Block]]) -> Block | None:
    """Blocks merged by the draws they belong to; draws of ended datasets leave no gap."""
    if not parts:
        return None
    order = np.argsort(np.concatenate([where for where, _ in parts]), kind="stable")
    return Block.concatenate([block for _, block in parts]).take(order)


def merged_spec(first: Any, second: Any) -> Any:
    """The specification that covers the elements of both datasets.

    Raises:
        ElementError: their structures or dtypes differ.
    """
    return map_structure(merged, first, second)


def check_one_kind(call: str, kinds: Sequence[tuple[Node, Any]]) -> None:
    """Raise an InvalidTypeError if the elements of nodes differ in structure or dtype, or surely in the number of axes.

    Args:
        kinds: the nodes, each with what is known or assumed of its elements, or None.
    """
    known = [(node, spec) for node, spec in kinds if spec is not None]
    for node, spec in known[1:]:
        first, merged = known[0]
        try:
            if _assumed(merged) or _assumed(spec):
                merged_spec(_without_axes(merged), _without_axes(spec))
            else:
                merged_spec(merged, spec)
        except ElementError as error:
            raise InvalidTypeError(
                f"{call} needs elements of one kind, got {merged} of {first.where()} and {spec} of {node.where()}: "
                "convert them with map"
            ) from error


def _assumed(spec: Any) -> bool:
    return any(leaf.assumed for leaf in flatten(spec)[0])


def _without_axes(spec: Any) -> Any:
    """The structure and the dtypes alone: one element that was seen does not tell the axes of others."""
    return map_structure(lambda leaf: TensorSpec((), leaf.dtype), spec)


def _of_one_kind(run: Run, node: Node, member: Node, block: Block) -> Block:
    """A block that `member` gave; an ElementError if the elements of another member of `node` differ in kind."""
    dtypes = [dtype_of_rows(column) for column in block.columns]
    first, structure, known = run.agreed(node, (member, block.structure, dtypes))
    if structure != block.structure or not all(map(alike, known, dtypes)):
        kinds = structure.shown(map(str, known)), block.structure.shown(map(str, dtypes))
        raise ElementError(
            f"{node.where()}: elements of one kind are needed, got {kinds[0]} of {first.where()} and {kinds[1]} of "
            f"{member.where()}: convert them with map"
        )
    return block
