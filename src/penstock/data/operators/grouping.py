"""Elements of equal keys: in windows, or reduced to one element for each key."""

import logging
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import numpy as np

from penstock.data.block import Block, column_of, own
from penstock.data.element_kinds import OneKindStream, of_one_kind
from penstock.data.functions.answers import integer
from penstock.data.functions.apply import call_rows, checked_rows, dataset_node, no_result, note, owned_leaves
from penstock.data.layout import Layout
from penstock.data.node import AnyNumber, DependsOn, Node, Run, describe
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.stream import Cursor, RowsBeforeFailure, State, Stream
from penstock.errors import InvalidTypeError
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.spec import as_leaf
from penstock.structure import map_structure

_FEW_GROUPS: Final = 32
"""The most groups that are all examined after each window."""


class WindowsByKey(AnyNumber):
    """Windows of elements with one key, of which elements are made.

    A full window is returned at once; incomplete windows follow at the end of the input, in the order of their keys.
    """

    depends_on = DependsOn.ANY
    key_function: Callable[..., Any]
    window_size: int | tuple[int, ...] | Callable[[Any], Any]
    """That of all keys, or of keys from 0 on, or a function of the key."""
    memory = "holds one window for each key"

    @property
    def least_size(self) -> int:
        """The size of the smallest window."""
        if callable(self.window_size):
            return 1
        return min(self.window_size) if isinstance(self.window_size, tuple) else self.window_size

    def size_of(self, key: int) -> int:
        """Return the size of the windows of a key."""
        if callable(self.window_size):
            return integer(f"{self.name}(window_size_func), for key {key},", self.window_size(key), low=1)
        return self.window_size[key] if isinstance(self.window_size, tuple) else self.window_size


class GroupByWindow(WindowsByKey, name="group_by_window"):
    """The elements of the datasets that `reduce_function(key, window)` makes of windows of elements with one key."""

    not_in_states = ("dataset_of",)
    varies = True
    unseeded = True
    reduce_function: Callable[..., Any]
    dataset_of: Callable[[Block], Any] = field(repr=False, kw_only=True)

    def arguments(self) -> list[str]:
        return [f"key_func={describe(self.key_function)}", f"window_size={describe(self.window_size)}"]

    def dataset_of_element(self, element: Block, position: int) -> Node:
        """Return the dataset that the function makes of a window of the one element in this block."""
        return self.dataset_of_window(int(next(checked_rows(self.key_function, element))), self.dataset_of(element))

    def dataset_of_window(self, key: int, window: Any) -> Node:
        """Return the dataset that the function makes of a window."""
        return dataset_node(self, lambda: self.reduce_function(np.int64(key), window), f"window of key {key}")


OwnNode = TypeVar("OwnNode", bound=WindowsByKey)


@dataclass
class OpenWindow:
    """Collected rows of one key: their numbers in the input, in order, and their leaves.

    Attributes:
        missing: the number of further rows until it is full.
        entry: the plain data for a state, until the next row.
    """

    key: int
    missing: int
    numbers: list[int] = field(default_factory=list)
    leaves: list[Sequence[Any]] = field(default_factory=list)
    entry: list[Any] | None = None

    def new_entry(self) -> list[Any]:
        """Return plain data for a state, and keep it: most groups do not change between two states."""
        self.entry = [self.key, self.numbers.copy()]
        return self.entry


class WindowsStream(Stream, Generic[OwnNode]):
    """A pass that collects rows in windows.

    The state holds the numbers of the collected rows, and a state of the input from which to read them again.
    """

    def __init__(self, node: OwnNode, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._input = node.input.cursor(run, epoch)
        self._pace = Pace(demand=run.demand)
        # States of the input, with the number of the next row, from the oldest that a collected row needs.
        self._input_states: list[tuple[int, State]] = []
        self._groups: dict[int, OpenWindow] = {}
        # The number of rows that are needed before a window can be full.
        self._sure = node.least_size
        self._entries: list[Any] | None = None  # of the groups, until these change
        # When the input has ended: the groups that were not returned yet, the next one last.
        self._left: list[OpenWindow] | None = None
        self._structure: Any = None
        # The remaining rows of the input's last block, with their keys, and the number of the first.
        self._rows: Iterator[tuple[Sequence[Any], Any]] | None = None
        self._number = 0
        # 1 if windows were returned before this stream was restored.
        self._before = 0
        # The state, until more is pulled.
        self._state: State = None
        # The window of which there are several elements, and the pass over these.
        self._window: OpenWindow | None = None
        self._output: Cursor | None = None

    def pull(self, need: int, allow: int) -> Block | None:
        self._state = None
        while True:
            if self._output is not None:
                block = self._output.pull(need, allow)
                if block is not None:
                    return block
                self._output.close()
                self._output = self._window = None
            window = self._next_window()
            if window is None:
                return None
            block = self._element_of(window)
            if block is not None:
                return block

    @abstractmethod
    def _key(self, value: Any, leaves: Sequence[Any]) -> int:
        """Return the key of an element with these leaves, from the key function's result."""

    @abstractmethod
    def _element_of(self, window: OpenWindow) -> Block | None:
        """Return the element of a window if it is one; of several, `_output` begins to read them."""

    @property
    def _taken(self) -> int:
        """The number of the input's next row to put into a group."""
        return self._input.met if self._rows is None else self._number

    def _next_window(self) -> OpenWindow | None:
        """Read until a window is full, or the input has ended and one remains; None when there is none."""
        while True:
            window = None if self._rows is None else self._collect(self._rows)
            if window is not None:
                return window
            allowed = max(self._sure, self._pace.start())
            block = self._input.pull(self._sure, allowed)
            if block is None:
                if self._left is None:
                    self._left = self._ordered()
                return self._left.pop() if self._left else None
            rows = len(block)
            if rows >= allowed:  # fewer are as many whatever is allowed
                self._pace.stop(block.nbytes, rows)
            self._number = self._input.met - rows
            self._input_states.append((self._number, self._input.state_before(rows)))
            self._structure = block.structure
            # In this order, the key function is not called after the last row.
            keys = call_rows(self._node.key_function, block)
            self._rows = zip(_leaves_of_rows(block), keys, strict=False)

    def _ordered(self) -> list[OpenWindow]:
        """Return the groups in the order of their keys, the first one last."""
        return sorted(self._groups.values(), key=lambda group: group.key, reverse=True)

    def _soonest(self) -> int:
        """Return the number of rows that are needed before a window can be full; 1 if finding it takes long."""
        if len(self._groups) > _FEW_GROUPS:
            return 1
        return min([self._node.least_size, *[group.missing for group in self._groups.values()]])

    def _collect(self, rows: Iterator[tuple[Sequence[Any], Any]]) -> OpenWindow | None:
        """Put rows, each with its key, into groups until one is full; the others wait for the next window."""
        groups, key_of = self._groups, self._key
        full: OpenWindow | None = None
        number, sure = self._number, self._sure
        self._entries = None
        try:
            for leaves, value in rows:
                key = key_of(value, leaves)
                group = groups.get(key) or self._begin_group(key)
                group.numbers.append(number)
                group.leaves.append(leaves)
                group.entry = None
                missing = group.missing = group.missing - 1
                number += 1
                if missing < sure:
                    sure = missing
                    if not missing:
                        full = group
                        break
            else:
                if number < self._input.met:
                    raise no_result()
                self._rows = None
        except failures() as error:
            note(error, self._node, number)
            self._rows, self._sure = None, self._soonest()
            self._input.give_back(self._input.met - number - 1)
            raise
        self._number, self._sure = number, sure
        if full is not None:
            del self._groups[full.key]
            self._sure = self._soonest()
        return full

    def _begin_group(self, key: int) -> OpenWindow:
        return self._groups.setdefault(key, OpenWindow(key, self._node.size_of(key)))

    def _rows_of(self, window: OpenWindow) -> Block:
        """Return the rows of a window, which gives them up."""
        leaves, window.leaves = window.leaves, []
        return Block(tuple(map(column_of, zip(*leaves, strict=True))), self._structure, len(leaves))

    def _forget_input_states(self) -> None:
        """Remove the states that no collected row needs. Numbers increase within a group, and from group to group."""
        held = next(iter(self._groups.values())).numbers[0] if self._groups else self._taken
        first = held if self._window is None else min(held, self._window.numbers[0])
        unneeded = bisect_right(self._input_states, first, key=itemgetter(0)) - 1
        del self._input_states[: max(0, unneeded)]

    def state(self) -> State:
        if self._state is None:
            self._state = self._state_now()
        return self._state

    def _state_now(self) -> State:
        waiting = self._input.met - self._taken
        self._forget_input_states()
        if self._groups or self._window is not None:
            _, input_state = self._input_states[0]
        else:
            input_state = self._input.state_before(waiting)
        if self._entries is None:
            self._entries = [group.entry or group.new_entry() for group in self._groups.values()]
        window = None
        if self._window is not None and self._output is not None:
            window = [*(self._window.entry or self._window.new_entry()), self._output.state()]
        given = 0 if self._left is None else len(self._groups) - len(self._left)
        return [input_state, self._input.known - waiting, self._entries, window, given]

    def restore(self, state: State) -> None:
        self._state, self._entries, self._before = None, None, 1
        input_state, known, groups, window, given = state
        self._input.restore_at(input_state, known)
        wanted = {number for _, numbers in groups for number in numbers} | set(window[1] if window else ())
        found: dict[int, list[Any]] = {}
        while self._input.repeating:
            input_state, met = self._input.state(), self._input.met
            block = self._input.repeat()
            if isinstance(block, BaseException):
                continue
            self._input_states.append((met, input_state))
            self._structure = block.structure
            for number in wanted.intersection(range(met, met + len(block))):
                found[number] = [own(column[number - met]) for column in block.columns]
        for key, numbers in groups:
            self._restore_group(self._begin_group(key), numbers, found)
        self._sure = self._soonest()
        if given:
            self._left = self._ordered()[:-given]
        if window is not None:
            key, numbers, _ = window
            self._window = self._restore_group(OpenWindow(key, len(numbers)), numbers, found)

    @staticmethod
    def _restore_group(group: OpenWindow, numbers: list[int], found: dict[int, list[Any]]) -> OpenWindow:
        group.numbers.extend(numbers)
        group.missing -= len(numbers)
        group.leaves.extend([found[number] for number in numbers])
        return group

    def close(self) -> None:
        if self._output is not None:
            self._output.close()
        self._input.give_back(self._input.met - self._taken)
        self._rows = None
        self._input.close()


def _leaves_of_rows(block: Block) -> Iterator[Sequence[Any]]:
    """Yield copies of the leaves of each row, so that a row does not keep its whole block alive."""
    if not block.columns:
        return repeat((), len(block))
    # NumPy's scalars are copies.
    scalars = [column.ndim == 1 and column.dtype.kind != "O" for column in block.columns]
    leaves = [column if copied else map(own, column) for column, copied in zip(block.columns, scalars, strict=True)]
    return zip(*leaves, strict=True)


class GroupByWindowStream(WindowsStream[GroupByWindow], of=GroupByWindow):
    """The state of a window that is being read is that of its dataset."""

    def _key(self, value: Any, leaves: Sequence[Any]) -> int:
        return int(value) if type(value) is np.int64 else integer("group_by_window(key_func)", value)

    def _element_of(self, window: OpenWindow) -> Block | None:
        node, run = self._dataset(window)
        if node.indexable and node.cardinality == 1 and not run.live:  # at a fraction of the cost of a pass
            return of_one_kind(self._run, self._node, node.read(run, self._epoch, range(1)), self._before, node)
        self._window, self._output = window, self._opened(node, run)
        return None

    def _opened(self, node: Node, run: Run) -> Cursor:
        """Open the dataset of a window."""
        return Cursor(OneKindStream(self._run, self._node, node, node.open(run, self._epoch), self._before))

    def _dataset(self, window: OpenWindow) -> tuple[Node, Run]:
        """Return the dataset of a window, and the run in which to read it."""
        made = self._node.dataset_of_window(window.key, self._node.dataset_of(self._rows_of(window)))
        node = self._run.prepare(made)
        return node, self._run.inner(self._node, node, self._epoch, window.numbers[0])

    def restore(self, state: State) -> None:
        super().restore(state)
        if self._window is not None:
            self._output = self._opened(*self._dataset(self._window))
            self._output.restore(state[3][2])


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reducer:
    """Three functions that reduce many elements to one result, for `group_by_reducer`.

    Args:
        init_func: the first state for a key: numbers, arrays or strings in any structure.
        reduce_func: the next state of (state, element).
        finalize_func: the result of the last state; a tuple is unpacked into its arguments.

    Raises:
        InvalidTypeError: an argument is not a function.

    Example:
        >>> import penstock as ps
        >>> mean = ps.Reducer(lambda key: (0, 0), lambda state, x: (state[0] + x, state[1] + 1), lambda s, n: s / n)
        >>> [float(x) for x in ps.Dataset.range(10).group_by_reducer(lambda x: x % 2, mean)]
        [4.0, 5.0]
    """

    init_func: Callable[[Any], Any]
    reduce_func: Callable[[Any, Any], Any]
    finalize_func: Callable[..., Any]

    def __post_init__(self) -> None:
        for name in ("init_func", "reduce_func", "finalize_func"):
            if not callable(getattr(self, name)):
                raise InvalidTypeError(f"Reducer({name}=...) takes a function, got {getattr(self, name)!r}")


class GroupByReducer(AnyNumber, name="group_by_reducer"):
    """For each key, in the order of the keys, the result of `finalize_function` on the reduced elements."""

    key_function: Callable[..., Any]
    init_function: Callable[[Any], Any]
    reduce_function: Callable[[Any, Any], Any]
    finalize_function: Callable[..., Any]
    memory = "holds one state for each key"

    @property
    def identity(self) -> dict[str, Any]:
        """The key function alone, because restoring a state reads the elements again."""
        return {"key_function": self.key_function}


class GroupByReducerStream(RowsBeforeFailure, OperatorStream[GroupByReducer], of=GroupByReducer):
    """The state is the number of elements read and of results returned: restoring reads the elements again."""

    def __init__(self, node: GroupByReducer, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._begin = self._input.state()
        self._pace = Pace()
        self._reduced: dict[int, Any] = {}
        self._keys: list[int] | None = None
        self._given = 0

    def _make(self, need: int, allow: int) -> Block | None:
        while True:
            met = self._input.met
            block = self._input.pull(1, self._pace.start())
            if block is None:
                return self._results(allow)
            self._pace.stop(block.nbytes, len(block))
            self._reduce(block, met)

    def _reduce(self, block: Block, first: int) -> None:
        """Reduce rows; `first` is the number of the first of them."""
        keys = checked_rows(self._node.key_function, block)
        for number, element in enumerate(block.rows()):
            try:
                self._add(next(keys), element)
            except failures() as error:
                note(error, self._node, first + number)
                self._input.give_back(len(block) - number - 1)
                raise

    def _add(self, found: Any, element: Any) -> None:
        node = self._node
        key = integer(f"{node.name}(key_func)", found)
        before = self._reduced[key] if key in self._reduced else owned_leaves(node.init_function(np.int64(key)))
        after = map_structure(as_leaf, node.reduce_function(before, element))
        Layout.of(before).check(Layout.of(after))
        # Copied if needed, so that it does not keep the whole block of an element alive.
        self._reduced[key] = owned_leaves(after)

    def _results(self, count: int) -> Block | None:
        """Return the results of the next keys."""
        if self._keys is None:
            self._keys = sorted(self._reduced)
        results: list[Any] = []
        for key in self._keys[self._given : self._given + count]:
            state = Block.of_rows([self._reduced[key]])
            try:
                result = owned_leaves(next(call_rows(self._node.finalize_function, state)))
                layout = Layout.of(result)
                self._run.agreed(self._node, layout).check(layout)
            except failures() as error:
                note(error, self._node, f"the result of key {key}")
                self._failure = error
                break
            results.append(result)
        self._given += len(results)
        return Block.of_rows(results) if results else None

    def _pass_failed_row(self) -> None:
        self._given += 1

    def state(self) -> State:
        return [self._input.met, self._given]

    def restore(self, state: State) -> None:
        met, self._given = state
        self._input.restore_at(self._begin, met)
        while self._input.repeating:
            first = self._input.met
            block = self._input.repeat()
            if isinstance(block, BaseException):
                continue
            for number in range(len(block)):
                try:
                    self._reduce(block.slice(number, number + 1), first + number)
                except failures() as error:
                    _logger.debug("passed over a failure that was raised before: %r", error)
