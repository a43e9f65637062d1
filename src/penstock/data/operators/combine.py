"""Operators with several inputs: zip and concatenate."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Indices
from penstock.data.node import DependsOn, Node, Run, added, surely
from penstock.data.one_kind import merged_spec, of_one_kind
from penstock.data.streams.reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State, Stream
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.rng import as_positions
from penstock.runtime.threads import failures
from penstock.structure import Structure


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
        return of_one_kind(run, self, member, (yield from member.reading(run, epoch, indices)))

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
        return block and of_one_kind(self._run, self._node, self._node.inputs[self._number], block)

    def state(self) -> State:
        return [self._number, self._input.state()]

    def restore(self, state: State) -> None:
        self._input.close()
        self._number, position = state
        self._input = self._open()
        self._input.restore(position)
