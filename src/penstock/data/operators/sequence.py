"""Operators whose result depends on all elements before: scan, take_while and unique."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from penstock.data.block import Block
from penstock.data.column_builder import ColumnBuilder
from penstock.data.functions.answers import truth
from penstock.data.functions.apply import checked_rows, owned_leaves
from penstock.data.layout import Layout
from penstock.data.node import OneInput, Run, SomeElements
from penstock.data.operator_streams import FunctionStream, OperatorStream
from penstock.data.output_signature import HasOutputSignature
from penstock.data.streams.stream import State
from penstock.errors import InvalidTypeError
from penstock.formats.plain_data import decode_value, encode_value
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.spec import as_leaf
from penstock.structure import map_structure

_NUMBERS: Final = (int, float)


class Scan(HasOutputSignature, OneInput, name="scan"):
    """The outputs of `function(state, element)`, which returns the next state and an output."""

    initial_state: Any = field(repr=False)
    function: Callable[[Any, Any], tuple[Any, Any]]
    output_signature: Any = field(default=None, repr=False)


class ScanStream(FunctionStream[Scan], of=Scan):
    """The carried state cannot be read again, so it is part of this stream's state."""

    def __init__(self, node: Scan, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._carried = owned_leaves(node.initial_state)
        # The state after the last call, which counts when the output of that call was taken.
        self._next = self._carried
        self._layout: Layout | None = None
        self._state_layout: Layout | None = None
        # The type of the states, if they are NumPy numbers.
        self._number: type | None = None

    def _make(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        builder: ColumnBuilder | None = None
        try:
            outputs = self._outputs(block)
            if self._layout is None:
                outputs = self._with_first(outputs, len(block))
            assert self._layout is not None
            rows = min(len(block), self._layout.most_rows)
            builder = ColumnBuilder(self._layout, rows)
            builder.check_each_number()  # the state before one that is refused is lost when the next is asked for
            builder.take(islice(outputs, rows))
        except failures() as error:
            done = 0 if builder is None else builder.row
            self._fail(error, len(block) - done)
        else:
            done = rows
            self._carried = self._next
            self._input.give_back(len(block) - done)
        if builder is None:
            return None
        builder.settle()
        return builder.block(done)

    def _with_first(self, outputs: Iterator[Any], rows: int) -> Iterator[Any]:
        """Yield the same outputs; the very first determines the layout of all."""
        output = next(outputs)
        node, run = self._node, self._run
        if node.signature is None:
            run.settle(node, self._first + self._input.met - rows)
        layout = Layout.of(output, node.signature, like=run.known(node))
        self._layout = run.agreed(node, layout)
        self._layout.check(layout)
        return chain([output], outputs)

    def _outputs(self, block: Block) -> Iterator[Any]:
        """Yield the output for each row."""
        function, carried, number = self._node.function, self._carried, self._number
        for element in block.rows():
            try:
                result: Any = function(carried, element)
            except StopIteration as error:  # it would end the outputs silently
                raise InvalidTypeError("scan(scan_func) raised StopIteration: return a value instead") from error
            if not isinstance(result, tuple) or len(result) != 2:
                raise InvalidTypeError(f"scan(scan_func) must return a pair (new state, output), got {result!r}")
            carried, output = result
            # A NumPy number of the same type as before needs no checks, which would cost as much as the call.
            if type(carried) is not number:
                carried = self._next_state(carried)
                number = self._number
            self._next = carried
            yield as_leaf(output) if type(output) in _NUMBERS and self._node.signature is None else output
            self._carried = carried

    def _next_state(self, value: Any) -> Any:
        """Return a state as NumPy values, with the layout of the one before."""
        carried = map_structure(as_leaf, value)
        if self._state_layout is None:
            self._state_layout = Layout.of(self._carried)
        self._state_layout.check(Layout.of(carried, like=self._state_layout))
        if carried is value and isinstance(value, np.number):
            self._number = type(value)
        return carried

    def state(self) -> State:
        return [self._input.state(), encode_value(self._carried)]

    def restore(self, state: State) -> None:
        position, carried = state
        self._carried = decode_value(carried, like=self._node.initial_state)
        self._input.restore(position)


class TakeWhile(SomeElements, name="take_while"):
    """The elements up to the first for which `predicate` is false."""

    predicate: Callable[..., Any]


class TakeWhileStream(FunctionStream[TakeWhile], of=TakeWhile):
    """The state is the input's, and whether the end was reached."""

    _ended = False
    counts = ("_ended",)

    def _make(self, need: int, allow: int) -> Block | None:
        block = None if self._ended else self._input.pull(need, allow)
        if block is None:
            return None
        taken = 0
        try:
            for value in checked_rows(self._node.predicate, block):
                if not truth("take_while(predicate)", value):
                    self._ended = True
                    break
                taken += 1
        except failures() as error:
            self._fail(error, len(block) - taken)
        else:
            self._input.give_back(len(block) - taken)
        return block.slice(0, taken) if taken else None


class Unique(SomeElements, name="unique"):
    """The elements that have not come before."""

    memory = "remembers every element"


class UniqueStream(OperatorStream[Unique], of=Unique):
    """The state is the number of elements read: restoring reads them again to collect those that have come."""

    def __init__(self, node: Unique, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._begin = self._input.state()
        self._seen: set[Any] = set()

    def pull(self, need: int, allow: int) -> Block | None:
        pace = Pace(allow)  # more at a time while all have come before
        while (block := self._input.pull(need, pace.start())) is not None:
            fresh = self._input.made(block, self._fresh)
            if fresh:
                return block.take(np.array(fresh, dtype=np.int64))
            pace.stop(block.nbytes, len(block))
        return None

    def _fresh(self, block: Block) -> list[int]:
        seen = self._seen
        fresh: dict[Any, int] = {}
        for number, identity in enumerate(_identities(block)):
            if identity not in seen:
                fresh.setdefault(identity, number)
        seen.update(fresh)
        return list(fresh.values())

    def state(self) -> State:
        return self._input.met

    def restore(self, state: State) -> None:
        self._input.restore_at(self._begin, state)
        while self._input.repeating:
            block = self._input.repeat()
            if isinstance(block, Block):
                with suppress(TypeError):  # a row without a hash, which was raised before
                    self._input.made(block, self._fresh)


def _identities(block: Block) -> Iterable[Any]:
    """Return a hashable value for each row, equal for equal rows."""
    columns = [
        # Python's numbers and strings are hashed faster than NumPy's, and equal them.
        column.tolist() if column.ndim == 1 and column.dtype.kind in "biufcUS" else map(_identity, column)
        for column in block.columns
    ]
    if not columns:
        return [()] * len(block)
    return columns[0] if len(columns) == 1 else zip(*columns, strict=True)


def _identity(leaf: Any) -> Any:
    if not isinstance(leaf, (np.ndarray, np.void)):
        return leaf
    if leaf.dtype.names is not None:
        return (leaf.shape, *(_identity(leaf[name]) for name in leaf.dtype.names))
    if leaf.dtype.kind in "OSTU":  # the bytes of equal strings differ
        return leaf.shape, tuple(map(_identity, leaf.flat))
    return leaf.shape, leaf.tobytes()
