"""Elements that a function's iterator gives, each as soon as it is ready: from_generator and from_arrow_stream."""

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import chain, count, islice
from typing import Any

import numpy as np

from penstock.data.block import Block, locked_entries
from penstock.data.column_builder import ColumnBuilder, block_of_row
from penstock.data.element_kinds import of_one_kind
from penstock.data.functions.apply import note
from penstock.data.layout import Layout
from penstock.data.node import Node, Run
from penstock.data.output_signature import GENERATOR, HasOutputSignature
from penstock.data.streams.stream import RowsBeforeFailure, State, Stream
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats import tables
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import failures
from penstock.structure import flatten

_logger = logging.getLogger(__name__)


class Generator(HasOutputSignature, Node, name="from_generator"):
    """The values that a function's iterator yields."""

    source = GENERATOR
    paced = True
    cardinality = UNKNOWN_CARDINALITY
    function: Callable[[], Any]
    output_signature: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"function": self.function}

    def stream(self, run: Run, epoch: int) -> "GeneratorStream":
        return GeneratorStream(self, run)


class GeneratorStream(RowsBeforeFailure):
    """The state is the number of elements taken; restoring runs the generator again and skips those elements."""

    def __init__(self, node: Generator, run: Run) -> None:
        self._node = node
        self._run = run
        self._iterator: Iterator[Any] | None = None
        # The next values: those to be taken again, and then the iterator's.
        self._values: Iterator[Any] = iter(())
        # The layout of all elements, known from the first one on.
        self._layout: Layout | None = None
        self._builder: ColumnBuilder | None = None
        self._taken = 0
        self._ended = False

    def _make(self, need: int, allow: int) -> Block | None:
        values = self._begun()
        if values is None:
            return None
        if self._layout is None or need == 1 or allow == 1:
            return self._only(values)
        wanted = min(need, allow, self._layout.most_rows)
        if self._builder is None:
            self._builder = ColumnBuilder(self._layout, wanted)
        else:
            self._builder.begin(wanted)
        builder = self._builder
        self._failure = self._taken_into(builder, wanted)
        self._taken += builder.row
        if self._failure is not None:
            note(self._failure, self._node, self._taken)
        elif builder.row < wanted:
            self._ended = True
        return builder.block(builder.row)

    def _only(self, values: Iterator[Any]) -> Block | None:
        """Return the next row alone; the first one determines the layout of all."""
        try:
            for value in values:
                layout = self._layout
                if layout is None:
                    layout = self._run.agreed(self._node, Layout.of(value, self._node.signature, GENERATOR))
                block = block_of_row(layout, value)
                self._layout = layout
                self._taken += 1
                return block
        except failures() as error:
            self._failure = error
            note(error, self._node, self._taken)
            return None
        self._ended = True
        return None

    def _taken_into(self, builder: ColumnBuilder, rows: int) -> BaseException | None:
        """Take the next rows, up to the first that fails; returns its failure."""
        failure: BaseException | None = None
        try:
            builder.take(islice(self._values, rows))
        except failures() as error:
            failure = error
        refused = builder.settle()
        if refused is not None or builder.unread:  # take values after a refused number again
            builder.check_each_number()
            later = [] if refused is None or failure is None else [failure]
            self._values = chain(builder.unread, _raising(later), self._values)
        return failure if refused is None else refused

    def _pass_failed_row(self) -> None:
        self._taken += 1

    def _begun(self) -> Iterator[Any] | None:
        """Return the values of the user's iterator; None where it has ended."""
        if self._iterator is None and not self._ended:
            try:
                made = self._node.function()
            except failures() as error:
                note(error, self._node, self._taken)
                self._taken, self._ended = self._taken + 1, True  # there are no further elements
                raise
            self._iterator = self._values = _iterator_of(made)
        return None if self._ended else self._values

    def state(self) -> State:
        return self._taken

    def restore(self, state: State) -> None:
        """Skip the elements that were returned before; only the first is examined, for the layout of all."""
        while self._taken < state and not self._ended:
            try:
                if self._layout is None:
                    self.pull(1, 1)
                else:
                    self._pass_over(state - self._taken)
            except failures() as error:
                _logger.debug("passed over an element that had failed before the state was saved: %r", error)

    def _pass_over(self, rows: int) -> None:
        passed = count()
        try:
            deque(zip(islice(self._values, rows), passed, strict=False), maxlen=0)
        except failures():
            self._taken += next(passed) + 1
            raise
        found = next(passed)
        self._taken += found
        self._ended = found < rows

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        self._values = iter(())
        self._ended = True
        # A generator that still runs, in a thread that was abandoned at the interpreter's exit, ends with the process.
        running = inspect.isgenerator(iterator) and iterator.gi_running
        if hasattr(iterator, "close") and not running:
            iterator.close()  # type: ignore[union-attr]  # generators have it, other iterators may


def _iterator_of(made: Any) -> Iterator[Any]:
    """Return an iterator over the value that the user's function returned."""
    if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
        raise InvalidTypeError(f"the function must return an iterator, got {made!r:.200}: does it lack a `yield`?")
    if inspect.isgenerator(made) and inspect.getgeneratorstate(made) == inspect.GEN_CLOSED:
        raise InvalidArgumentError(
            "the function gave a generator that has ended already, perhaps in an epoch before: it must make a new one "
            "whenever it is called"
        )
    return iter(made)


def _raising(errors: list[BaseException]) -> Iterator[Any]:
    """Raise the error instead of yielding a value, if there is one."""
    while errors:
        raise errors.pop()  # so that it does not refer to itself by this frame
    yield from ()


class ArrowStream(Node, name="from_arrow_stream"):
    """The rows of the stream that a function opens for each epoch."""

    cardinality = UNKNOWN_CARDINALITY
    spec = None
    spec_from_call = True
    make: Callable[[], Any]
    mask_nulls: Any = field(default=None, repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {"make": self.make}

    @property
    def memory(self) -> str:
        return "holds one batch of the stream"

    def stream(self, run: Run, epoch: int) -> "ArrowRowsStream":
        return ArrowRowsStream(self, run)


class ArrowRowsStream(Stream):
    """The state is the number of rows and failures so far; restoring opens the stream again and drops that many."""

    def __init__(self, node: ArrowStream, run: Run) -> None:
        self._node = node
        self._run = run
        self._batches: Any = None
        self._batch: Any = None
        self._taken = 0
        self._ended = False

    def pull(self, need: int, allow: int) -> Block | None:
        try:
            if not self._loaded():
                return None
        except failures() as error:  # nothing can follow
            note(error, self._node, self._taken)
            self._taken, self._ended = self._taken + 1, True
            raise
        rows = min(allow, len(self._batch))
        while True:
            try:
                block = self._rows(self._batch.slice(0, rows))
            except failures() as error:
                if rows == 1:
                    note(error, self._node, self._taken)
                    self._pass(1)
                    raise
                rows //= 2  # the rows before the one that fails come first
            else:
                self._pass(rows)
                return block

    def _loaded(self) -> bool:
        """True if there is a next row, in the batch that is held."""
        if self._batches is None and not self._ended:
            self._batches = tables.arrow_columns.batches_of(self._node.make())
        while not self._ended and not self._batch:
            self._batch = next(self._batches, None)
            self._ended = self._batch is None
        return not self._ended

    def _rows(self, batch: Any) -> Block:
        call = self._node.name
        batch = tables.nulls.masked(batch, self._node.mask_nulls, call)
        columns, structure = flatten(tables.arrow_columns.as_columns(batch, call=call))
        block = Block(tuple(locked_entries(np.asarray(column)) for column in columns), structure, len(batch))
        return of_one_kind(self._run, self._node, block, self._taken)

    def _pass(self, rows: int) -> None:
        self._batch = self._batch.slice(rows)
        self._taken += rows

    def state(self) -> State:
        return self._taken

    def restore(self, state: State) -> None:
        while self._taken < state and self._loaded():
            self._pass(min(state - self._taken, len(self._batch)))

    def close(self) -> None:
        self._batches, self._batch, self._ended = None, None, True
