"""Operators that make a dataset of every element: flat_map and interleave."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.data.block import Block
from penstock.data.functions.apply import call_rows, note
from penstock.data.node import DependsOn, Node, OneInput, Run
from penstock.data.streams.ahead import Ahead
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.errors import InvalidTypeError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import failures


@dataclass(frozen=True, eq=False)
class Interleave(OneInput):
    """The elements of datasets made of `cycle_length` elements at a time, `block_length` from each in turn.

    A slot whose dataset has ended ends its turn at once, and takes the next element of the input when its turn comes
    again. `flat_map` is the cycle of one slot that is read to its end (`block_length` None).
    """

    depends_on = DependsOn.ANY
    worth_a_worker = True
    method: str
    function: Callable[..., Any]
    cycle_length: int = 1
    block_length: int | None = None
    num_parallel_calls: int | None = None

    @property
    def mode(self) -> str:
        return f"{super().mode}, {self.cycle_length} threads" if self.num_parallel_calls else super().mode

    @property
    def identity(self) -> dict[str, Any]:
        return self._arguments_without("num_parallel_calls")

    @property
    def name(self) -> str:  # type: ignore[override]  # one node serves two methods
        return self.method

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN_CARDINALITY

    @property
    def varies(self) -> bool:
        return True

    @property
    def unseeded(self) -> bool:
        return True

    @property
    def drops_alike(self) -> bool:
        return True

    def arguments(self) -> list[str]:
        return [argument for argument in super().arguments() if not argument.startswith("method=")]

    def dataset_of(self, element: Block, position: int) -> Node:
        """The dataset that the function makes of the one element in this block."""
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

    def pull(self, need: int, allow: int) -> Block | None:
        while True:
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
            if self._left is not None:
                self._left -= len(block)
                if self._left == 0:
                    self._advance()
            return block

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
        self._slots[self._current] = _Slot(before, position, self._open(element, position))
        return True

    def _open(self, element: Block, position: int) -> Cursor:
        node = self._run.prepare(self._node.dataset_of(element, position))
        run = self._run.inner(self._node, node, self._epoch, position)
        if not self._node.num_parallel_calls:
            return node.cursor(run, self._epoch)
        own, skips = run.ahead()
        return Cursor(Ahead(node.open(own, self._epoch), None, run.threads, skips))

    def state(self) -> State:
        slots = [None if slot is None else [slot.before, slot.position, slot.rows.state()] for slot in self._slots]
        return [self._input.state(), slots, self._current, self._left, self._input_ended]

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
                cursor = self._open(element, ordinal)
                cursor.restore(rows)
                self._slots[number] = _Slot(before, ordinal, cursor)
        self._input.restore(position)

    def close(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot.rows.close()
        self._input.close()
