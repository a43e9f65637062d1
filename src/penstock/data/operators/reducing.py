"""group_by_reducer: elements with equal keys are reduced to one."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.block import Block
from penstock.data.functions.answers import integer
from penstock.data.functions.apply import call_rows, checked_rows, note, owned_leaves
from penstock.data.layout import Layout
from penstock.data.node import AnyNumber, Run
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.stream import RowsBeforeFailure, State
from penstock.errors import InvalidTypeError
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.spec import as_leaf
from penstock.structure import map_structure

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
