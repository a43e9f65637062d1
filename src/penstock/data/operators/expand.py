"""Operators that make a dataset of every element: flat_map and interleave."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.data.block import Block
from penstock.data.element_kinds import OneKindStream
from penstock.data.functions.apply import call_rows, dataset_node
from penstock.data.functions.reads_file import is_file_reader
from penstock.data.node import AnyNumber, ByMethod, DependsOn, Node, Run
from penstock.data.streams.interleaved import InterleavedRows
from penstock.data.streams.live_streams import from_beginning
from penstock.data.streams.prefetched import PrefetchedStream
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures

_ENDLESS: Final = 1 << 62
"""The length of a turn that ends with the dataset."""


class Interleave(ByMethod, AnyNumber):
    """The elements of datasets made of `cycle_length` elements at a time, `block_length` from each in turn.

    A slot whose dataset has ended ends its turn at once, and takes the next element of the input when its turn comes
    again. `flat_map` is the cycle of one slot that is read to its end (`block_length` None).
    """

    depends_on = DependsOn.ANY
    not_in_states = ("num_parallel_calls", "numbers_known")
    varies = True
    unseeded = True
    function: Callable[..., Any]
    cycle_length: int = 1
    block_length: int | None = None
    num_parallel_calls: int | None = None
    numbers_known: bool = field(default=True, repr=False, kw_only=True)

    @property
    def reads_files(self) -> bool:  # type: ignore[override]  # it depends on the function
        return is_file_reader(self.function)

    @property
    def mode(self) -> str:
        return f"{super().mode}, {self.cycle_length} threads" if self.num_parallel_calls else super().mode

    def by_row(self, *, numbered: bool) -> "Interleave":
        """Return this node with the elements of one dataset after the other; its random keys are the same."""
        known = numbered and self.numbers_known
        return replace(self, cycle_length=1, block_length=None, numbers_known=known)

    def dataset_of_element(self, element: Block, position: int) -> Node:
        """Return the dataset that the function makes of the one element in this block."""
        return dataset_node(self, lambda: next(call_rows(self.function, element)), position)


@dataclass
class _Slot:
    """An open dataset, and the element of the input from which to make it again.

    Attributes:
        before: the state of the input before the element.
        position: the position of the element.
        alone: whether it is read for its own turn only, because it shows how far it is read.
    """

    before: State
    position: int
    rows: Cursor
    alone: bool


class InterleaveStream(Stream, of=Interleave):
    """The state holds, for each open slot, the input's state before its element and the state of its dataset.

    A slot also names the live streams that the input has reached since: making its element again may read them.

    The rows of many turns are read together, slot by slot, and put into order. Rows of a slot that were read and not
    returned stay in its cursor.
    """

    def __init__(self, node: Interleave, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._input = node.input.cursor(run, epoch)
        self._input_alone = node.input.shows_reading
        self._first = run.first(node.input)
        self._slots: list[_Slot | None] = [None] * node.cycle_length
        self._current = 0
        self._length = self._left = node.block_length or _ENDLESS
        self._input_ended = False
        self._alone = 0
        # The rows of several rounds that may be read together beyond `allow`: no more than were returned so far.
        self._pace = Pace(readings=node.cycle_length)
        self._met = 0
        # The function's failure at the next element of the input, raised after the rows before it.
        self._failure: BaseException | None = None
        # The last known states of the slots, and the slots that have changed since.
        self._states: list[State] = [None] * node.cycle_length
        self._moved: set[int] = set()

    def pull(self, need: int, allow: int) -> Block | None:
        while (block := self._next(need, allow)) is None:
            if self._input_ended and not any(self._slots):
                return None
        return block

    def _next(self, need: int, allow: int) -> Block | None:
        """Return the rows of the next turns; None where a turn had none."""
        more = self._turns_ahead(allow)
        stop = self._current + 1 + more
        turns = InterleavedRows(len(self._slots), self._length, self._current, self._length - self._left)
        try:
            while (more or not turns) and (turn := turns.next) is not None and turn < stop:
                rows = turns.wanted(stop) if more else min(allow, turns.wanted(stop))
                if not self._take(turns, turn % len(self._slots), 1 if turns else min(need, rows), rows):
                    break
        finally:
            turn = stop if turns.next is None else min(turns.next, stop)
            self._current = turn % len(self._slots)
            self._left = self._length - turns.passed(turn)
        if not turns:
            return None
        made, left_over = turns.in_order(turn if more and turn < stop else None)
        for number, rows in left_over.items():
            slot = self._slots[number]
            assert slot is not None
            slot.rows.give_back(rows)
        if more:
            self._met += len(made)
            self._pace.stop(made.nbytes, len(made))
        return made

    def _take(self, turns: InterleavedRows, number: int, need: int, rows: int) -> bool:
        """Take rows of the slot whose turn is next, or fill it; False if earlier rows must be returned first."""
        slot = self._slots[number]
        if slot is None:
            return self._fill(turns, number)
        self._moved.add(number)
        try:
            block = slot.rows.pull(need, rows)
        except failures() as error:
            if not turns:
                raise
            slot.rows.withhold(error)
            return False
        if block is None:
            slot.rows.close()
            self._alone -= slot.alone
            self._slots[number] = None
            turns.end_turn()
        else:
            turns.add(block)
        return True

    def _turns_ahead(self, allow: int) -> int:
        """Return the number of turns after this one to read together.

        With many slots, `allow` permits few rows of each, and a read would cost more than its rows. So a few rounds are
        read ahead, but no more rows than were returned before.
        """
        if self._alone or allow <= self._left:
            return 0
        rows = max(allow, min(self._met, self._pace.start()))
        turns = (rows - self._left) // self._length
        if not self._input_ended:
            return turns
        return turns * len(self._slots) // max(1, sum(slot is not None for slot in self._slots))

    def _fill(self, turns: InterleavedRows, number: int) -> bool:
        """Put the dataset of the next element of the input into a slot, which has no more turns if there is none.

        Returns False if earlier rows must be returned first.
        """
        if turns and (self._failure is not None or self._input_alone):
            return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._input.skip(1)
            raise failure
        before = None if self._input_ended else self._input.state()
        position = self._first + self._input.met
        try:
            element = None if self._input_ended else self._input.pull(1, 1)
        except failures() as error:
            if not turns:
                raise
            self._input.withhold(error)
            return False
        if element is None:
            self._input_ended = True
            turns.drop()
            return True
        try:
            self._slots[number] = self._open(element, before, position)
        except failures() as error:
            if not turns:
                raise
            self._input.give_back(1)
            self._failure = error
            return False
        self._moved.add(number)
        return not self._alone

    def _open(self, element: Block, before: State, position: int) -> _Slot:
        node = self._run.prepare(self._node.dataset_of_element(element, position))
        run = self._run.inner(self._node, node, self._epoch, position)
        alone = node.shows_reading
        self._alone += alone
        if self._node.num_parallel_calls:
            own, skips = run.ahead()
            stream: Stream = PrefetchedStream(node.open(own, self._epoch), None, run.threads, skips)
        else:
            stream = node.open(run, self._epoch)
        return _Slot(before, position, Cursor(OneKindStream(self._run, self._node, node, stream, position)), alone)

    def state(self) -> State:
        for number in self._moved:
            slot = self._slots[number]
            self._states[number] = None if slot is None else [slot.before, slot.position, slot.rows.state()]
        self._moved.clear()
        position, slots = self._input.state(), list(self._states)
        if self._run.live:
            slots = [saved and [*saved, *from_beginning(position, saved[0])] for saved in slots]
        return [position, slots, self._current, self._left, self._input_ended]

    def restore(self, state: State) -> None:
        position, slots, self._current, self._left, self._input_ended = state
        reached = False
        for number, saved in enumerate(slots):
            if saved is not None:
                before, ordinal, rows = saved[:3]
                if before[2] + 1 == position[2] and not self._run.live:  # the input is directly after this element
                    reached, element = True, self._element_at(self._input, before)
                else:
                    source = self._node.input.cursor(self._run.reading_again(), self._epoch)
                    try:
                        element = self._element_at(source, before)
                    finally:
                        source.close()
                slot = self._slots[number] = self._open(element, before, ordinal)
                slot.rows.restore(rows)
                self._moved.add(number)
        if not reached:
            self._input.restore(position)

    @staticmethod
    def _element_at(source: Cursor, state: State) -> Block:
        """Return the element after a state of the input."""
        source.restore(state)
        element = source.pull(1, 1)
        assert element is not None
        return element

    def close(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot.rows.close()
        self._input.close()
