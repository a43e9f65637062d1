"""Operators with several inputs: zip and concatenate."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.element_kinds import OneKindStream
from penstock.data.node import DependsOn, Origins, Run, added, derived, surely
from penstock.data.picked_elements import OneOfSeveral, Picked, SeveralInputs
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State, Stream
from penstock.errors import StateMismatchError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions, by_part, shifted
from penstock.runtime.threads import failures
from penstock.structure import Structure


class Zip(SeveralInputs, name="zip"):
    """Tuples of one element of each input; as many as the shortest input has."""

    structure: Structure = field(repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {}

    @derived
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

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        for member in self.members:
            yield member, epoch, np.arange(len(positions)), positions

    def together(self, blocks: list[Block]) -> Block:
        """Return one block with the columns of several blocks of equal length."""
        columns = tuple(column for block in blocks for column in block.columns)
        return Block(columns, self.structure.nested([block.structure for block in blocks]), len(blocks[0]))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        blocks = []
        for node in self.members:
            blocks.append((yield from node.reading(run, epoch, indices)))  # noqa: PERF401  # a list cannot wait
        return self.together(blocks)


class ZipStream(Stream, of=Zip):
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
                        with suppress(Exception):  # one failure is enough for the pair
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


class Concatenate(OneOfSeveral, name="concatenate"):
    """All elements of the first input, then all of the second, and so on.

    A chain of them is one node, which goes through all inputs in a loop, however many there are.
    """

    depends_on = DependsOn.ANY

    @derived
    def cardinality(self) -> int:
        *others, last = self.members
        return added(last.cardinality, *map(surely, others))

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        ends = [node.group_ends for node in self.members]
        starts = [0, *self._ends]
        if any(own is None for own in ends):
            return None
        return np.concatenate([own + start for own, start in zip(ends, starts, strict=False)])

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The position after the last element of each input, up to the first infinite one."""
        lengths = [node.cardinality for node in self.members]
        infinite = lengths.index(INFINITE_CARDINALITY) if INFINITE_CARDINALITY in lengths else len(lengths)
        return np.cumsum(lengths[:infinite], dtype=np.int64)

    def picked(self, run: Run, epoch: int, indices: Indices) -> Iterator[Picked]:
        for number, places, rows in by_part(indices, np.searchsorted(self._ends, as_positions(indices), side="right")):
            before = int(self._ends[number - 1]) if number else 0
            yield self.members[number], epoch, places, shifted(rows, -before)


class ConcatenateStream(OneInputStream, of=Concatenate):
    """The state is the number of the input that is being read, its state, and the number of inputs.

    A chain with a map or a cache in between has the same identity, but other nodes: its rows are read again.
    """

    def __init__(self, node: Concatenate, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._number = 0
        self._input = self._open()

    def _open(self) -> Cursor:
        member = self._node.members[self._number]
        stream = member.open(self._run, self._epoch)
        return Cursor(OneKindStream(self._run, self._node, member, stream, self._number))

    def pull(self, need: int, allow: int) -> Block | None:
        while (block := self._input.pull(need, allow)) is None:
            if self._number == len(self._node.members) - 1:
                return None
            self._input.close()
            self._number += 1
            self._input = self._open()
        return block

    def state(self) -> State:
        return [self._number, self._input.state(), len(self._node.members)]

    def fits(self, state: State) -> bool:
        fits = bool(state[2] == len(self._node.members))
        if not fits and self._run.live:
            raise StateMismatchError(
                "the state was saved with other operators between two concatenate: elements of a shared job cannot be "
                "read again, so restore it in a dataset with the same map and cache there"
            )
        return fits

    def restore(self, state: State) -> None:
        number, position, _ = state
        if number != self._number:
            self._input.close()
            self._number = number
            self._input = self._open()
        self._input.restore(position)
