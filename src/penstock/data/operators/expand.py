"""Operators that make a dataset of every element: flat_map and interleave."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from penstock.data.block import Block
from penstock.data.functions.apply import call_rows, note
from penstock.data.functions.reads_file import is_file_reader
from penstock.data.node import DependsOn, Node, OneInput, Run, any_number
from penstock.data.streams.ahead import Ahead
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.errors import InvalidTypeError
from penstock.options import INFINITE_CARDINALITY
from penstock.runtime.threads import failures

_ENDLESS: Final = 1 << 62


@dataclass(frozen=True, eq=False)
class Interleave(OneInput):
    """The elements of datasets made of `cycle_length` elements at a time, `block_length` from each in turn.

    A slot whose dataset has ended ends its turn at once, and takes the next element of the input when its turn comes
    again. `flat_map` is the cycle of one slot that is read to its end (`block_length` None).
    """

    depends_on = DependsOn.ANY
    worth_a_worker = True
    dataset_for_each = True
    makes_datasets = True
    varies = True
    unseeded = True
    drops_alike = True
    method: str
    function: Callable[..., Any]
    cycle_length: int = 1
    block_length: int | None = None
    num_parallel_calls: int | None = None
    numbers_known: bool = field(default=True, repr=False, kw_only=True)

    @property
    def reads_files(self) -> bool:  # type: ignore[override]  # a function says whether it does
        return is_file_reader(self.function)

    @property
    def mode(self) -> str:
        return f"{super().mode}, {self.cycle_length} threads" if self.num_parallel_calls else super().mode

    @property
    def identity(self) -> dict[str, Any]:
        return self._arguments_without("num_parallel_calls", "numbers_known")

    @property
    def name(self) -> str:  # type: ignore[override]  # one node serves two methods
        return self.method

    @property
    def cardinality(self) -> int:
        return any_number(self.input)

    def arguments(self) -> list[str]:
        return [argument for argument in super().arguments() if not argument.startswith("method=")]

    @property
    def mixes_rows(self) -> bool:
        return self.cycle_length > 1

    def serial(self) -> "Interleave":
        return replace(self, num_parallel_calls=None)

    def by_row(self, *, numbered: bool) -> "Interleave":
        """Random keys depend on the node's name, which stays."""
        known = numbered and self.numbers_known
        return replace(self, cycle_length=1, block_length=None, numbers_known=known)

    def dataset_of_element(self, element: Block, position: int) -> Node:
        try:
            dataset = next(call_rows(self.function, element))
        except failures() as error:
            note(error, self, position)
            raise
        node = getattr(dataset, "node", None)
        if not isinstance(node, Node):
            raise InvalidTypeError(
                f"{self.where()}: the function must return a ps.Dataset, got {dataset!r:.200}: make one by "
                "ps.Dataset.from_tensor_slices(...)"
            )
        return node

    def stream(self, run: Run, epoch: int) -> "InterleaveStream":
        return InterleaveStream(self, run, epoch)


@dataclass
class _Slot:
    """One open dataset: which element of the input it was made of, and how to make it again."""

    before: State
    position: int
    rows: Cursor
    left: int
    """How many rows are certain to come: 0 where they are not read by index, may fail, or are of another kind."""


class InterleaveStream(Stream):
    """The state holds, for each open slot, the input's state before its element and the state of its dataset."""

    def __init__(self, node: Interleave, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._input = node.input.cursor(run, epoch)
        self._first = run.first(node.input)
        self._slots: list[_Slot | None] = [None] * node.cycle_length
        self._current = 0
        self._left = node.block_length
        self._input_ended = False
        # The states of the slots as they were asked for last, and the slots that have moved on since.
        self._states: list[State] = [None] * node.cycle_length
        self._moved: set[int] = set()
        # The specification of the datasets whose turns are read together.
        self._spec: Any = None

    def pull(self, need: int, allow: int) -> Block | None:
        if allow > 1 and self._left is not None and (turns := self._sure_turns(allow)):
            return self._together(turns)
        while True:
            self._moved.add(self._current)
            slot = self._slots[self._current]
            if slot is None:
                if self._input_ended and not any(self._slots):
                    return None
                if self._input_ended or not self._fill():
                    self._advance()
                continue
            block = slot.rows.pull(self._turn(need), self._turn(allow))
            if block is None:
                slot.rows.close()
                self._slots[self._current] = None
                self._advance()
                continue
            slot.left = max(0, slot.left - len(block))
            if self._left is not None:
                self._left -= len(block)
                if self._left == 0:
                    self._advance()
            return block

    def _sure_turns(self, allow: int) -> list[tuple[list[int], int, int]]:
        """The next turns of slots whose rows surely come, about `allow` rows: (slots, rows, rounds) of each part.

        They end before a slot that has ended or must be filled.
        """
        turns: list[tuple[list[int], int, int]] = []
        length = self._node.block_length
        assert length is not None
        assert self._left is not None
        while allow > 0:
            rounds = self._rounds(length, allow)
            if rounds:
                turns.append((self._cycle(), length, rounds))
                allow -= rounds * length * len(self._slots)
                continue
            slot = self._slots[self._current]
            rows = min(self._left, allow, 0 if slot is None else slot.left)
            if slot is None or rows == 0:
                break
            turns.append(([self._current], rows, 1))
            slot.left -= rows
            allow -= rows
            self._left -= rows
            if self._left == 0:
                self._advance()
        return turns

    def _cycle(self) -> list[int]:
        count = len(self._slots)
        return [(self._current + number) % count for number in range(count)]

    def _rounds(self, length: int, allow: int) -> int:
        """How many whole rounds, each a turn of every slot, are certain to come; they are subtracted from the slots."""
        most = allow // (length * len(self._slots))
        if most == 0 or self._left != length:
            return 0
        for slot in self._slots:
            most = min(most, 0 if slot is None else slot.left // length)
            if most == 0:
                return 0
        for slot in self._slots:
            assert slot is not None
            slot.left -= most * length
        return most

    def _together(self, turns: list[tuple[list[int], int, int]]) -> Block:
        """The rows of turns as one block."""
        numbers = np.concatenate([np.tile(np.repeat(slots, rows), rounds) for slots, rows, rounds in turns])
        order = np.argsort(numbers, kind="stable")
        used, counts = np.unique(numbers, return_counts=True)
        blocks = []
        for number, count in zip(used.tolist(), counts.tolist(), strict=True):
            slot = self._slots[number]
            assert slot is not None
            block = slot.rows.exactly(count)
            assert block is not None
            assert len(block) == count
            blocks.append(block)
            self._moved.add(number)
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return Block.concatenate(blocks).take(inverse)

    def _turn(self, rows: int) -> int:
        return rows if self._left is None else min(rows, self._left)

    def _advance(self) -> None:
        self._current = (self._current + 1) % len(self._slots)
        self._left = self._node.block_length

    def _fill(self) -> bool:
        """Put the dataset of the next element of the input into the current slot; False if there is none."""
        before = self._input.state()
        position = self._first + self._input.met
        element = self._input.pull(1, 1)
        if element is None:
            self._input_ended = True
            return False
        self._slots[self._current] = self._open(element, before, position)
        return True

    def _open(self, element: Block, before: State, position: int) -> _Slot:
        node = self._run.prepare(self._node.dataset_of_element(element, position))
        run = self._run.inner(self._node, node, self._epoch, position)
        if not self._node.num_parallel_calls:
            return _Slot(before, position, node.cursor(run, self._epoch), self._sure_rows(node))
        own, skips = run.ahead()
        return _Slot(before, position, Cursor(Ahead(node.open(own, self._epoch), None, run.threads, skips)), 0)

    def _sure_rows(self, node: Node) -> int:
        if self._node.block_length is None or not node.indexable or node.spec is None:
            return 0
        if self._spec is None:
            self._spec = node.spec
        if node.spec != self._spec or any(below.fails for below in node.walk()):
            return 0
        return _ENDLESS if node.cardinality == INFINITE_CARDINALITY else node.cardinality

    def state(self) -> State:
        for number in self._moved:
            slot = self._slots[number]
            self._states[number] = None if slot is None else [slot.before, slot.position, slot.rows.state()]
        self._moved.clear()
        return [self._input.state(), list(self._states), self._current, self._left, self._input_ended]

    def restore(self, state: State) -> None:
        position, slots, self._current, self._left, self._input_ended = state
        for number, saved in enumerate(slots):
            if saved is not None:
                before, ordinal, rows = saved
                source = self._node.input.cursor(self._run, self._epoch)
                source.restore(before)
                element = source.pull(1, 1)
                source.close()
                assert element is not None
                slot = self._slots[number] = self._open(element, before, ordinal)
                slot.rows.restore(rows)
                slot.left = max(0, slot.left - slot.rows.met)
                self._moved.add(number)
        self._input.restore(position)

    def close(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot.rows.close()
        self._input.close()
