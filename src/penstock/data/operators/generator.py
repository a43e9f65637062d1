"""from_generator: elements that a function's iterator yields, each at its own pace."""

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any, ClassVar, Final

import numpy as np

from penstock.data.block import Block
from penstock.data.collecting import Collector
from penstock.data.functions.alike import Unlike
from penstock.data.functions.apply import note
from penstock.data.node import Node, Run, derived
from penstock.data.streams.stream import RowsBeforeFailure, State
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import failures
from penstock.spec import alike, as_leaf, describe_mismatch, fitted, of_rows_like, spec_of
from penstock.structure import Structure, flatten, map_structure

_logger = logging.getLogger(__name__)
_OBJECT: Final = np.dtype(object)


@dataclass(frozen=True, eq=False)
class Generator(Node):
    """What a function's iterator yields."""

    name: ClassVar[str] = "from_generator"
    paced = True
    function: Callable[[], Any]
    output_signature: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"function": self.function}

    @derived
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @derived
    def spec(self) -> Any:
        return self.output_signature

    @property
    def spec_from_call(self) -> bool:
        return self.output_signature is None

    def stream(self, run: Run, epoch: int) -> "GeneratorStream":
        return GeneratorStream(self, run)


class GeneratorStream(RowsBeforeFailure):
    """The state is the number of elements taken; restoring runs the generator again and passes over that many."""

    def __init__(self, node: Generator, run: Run) -> None:
        self._node = node
        self._run = run
        self._iterator: Iterator[Any] | None = None
        # What it yields next: values that are looked at again come before those.
        self._values: Iterator[Any] = iter(())
        # Whether each number is looked at before the next is asked for, as after the first that was out of bounds.
        self._looks_at_each = False
        self._collector: Collector | None = None
        self._taken = 0
        self._ended = False

    def _make(self, need: int, allow: int) -> Block | None:
        values = self._begun()
        if values is None:
            return None
        collector = self._collector
        if collector is None:
            return self._first(values)
        if need == 1 or allow == 1:
            return self._only(values, collector)
        wanted = collector.begin(min(need, allow), gathers=not self._looks_at_each)
        block = self._collected(collector, wanted)
        rows = 0 if block is None else block.length
        self._taken += rows
        if self._failure is not None:
            note(self._failure, self._node, self._taken)
        elif rows < wanted:
            self._ended, self._collector = True, None
        return block

    def _only(self, values: Iterator[Any], collector: Collector) -> Block | None:
        """The next row alone."""
        try:
            for value in values:
                block = collector.one(value)
                self._taken += 1
                return block
        except failures() as error:
            self._failure = error
            note(error, self._node, self._taken)
            return None
        self._ended, self._collector = True, None
        return None

    def _collected(self, collector: Collector, wanted: int) -> Block | None:
        """The next rows, up to the first that fails: what that raises is put into `_failure`."""
        try:
            collector.take(islice(self._values, wanted))
        except failures() as error:
            self._failure = error
        try:
            return collector.block()
        except Unlike:
            pass
        # One number may be out of bounds. All rows come again, and each is looked at before the next is taken.
        self._looks_at_each = True
        self._values = chain(collector.raw(), _raising([self._failure] if self._failure else []), self._values)
        self._failure = None
        collector.begin(wanted)
        return self._collected(collector, wanted)

    def _pass_failed_row(self) -> None:
        self._taken += 1

    def _first(self, iterator: Iterator[Any]) -> Block | None:
        """The first row, which shows what the others are like."""
        try:
            for value in iterator:
                leaves = self._checked(value)
                structure = self._run.known(self._node)[0]
                specs = None if self._node.output_signature is None else flatten(self._node.output_signature)[0]
                self._collector = Collector(value, leaves, structure, specs, self._checked)
                self._collector.begin(1)
                self._collector.take(iter([value]))
                self._taken += 1
                return self._collector.block()
        except failures() as error:
            note(error, self._node, self._taken)
            self._taken += 1
            raise
        self._ended = True
        return None

    def _begun(self) -> Iterator[Any] | None:
        """The user's iterator; None where it has ended."""
        if self._iterator is None and not self._ended:
            try:
                made = self._node.function()
            except failures() as error:
                note(error, self._node, self._taken)
                self._taken, self._ended = self._taken + 1, True  # there is nothing to take elements from
                raise
            self._iterator = self._values = _iterator_of(made)
        return None if self._ended else self._values

    def _checked(self, value: Any) -> list[Any]:
        """The leaves of an element, which must be of the kind of all others and fit the signature."""
        signature = self._node.output_signature
        if signature is not None:
            value = map_structure(fitted, signature, value)
            wrong = describe_mismatch(signature, spec_of(value))
            if wrong is not None:
                raise ElementError(f"the generator yielded an element that does not fit output_signature: {wrong}")
        leaves, structure = flatten(value)
        leaves = [as_leaf(leaf) for leaf in leaves]
        known = self._run.known(self._node)
        if known is not None and known[0] == structure:
            leaves = [of_rows_like(leaf, dtype, (0,)) for leaf, dtype in zip(leaves, known[1], strict=True)]
        layout = (structure, [getattr(leaf, "dtype", _OBJECT) for leaf in leaves])
        agreed = self._run.agreed(self._node, layout)
        if layout != agreed and not (structure == agreed[0] and all(map(alike, layout[1], agreed[1]))):
            raise ElementError(
                f"the generator yielded {_shown(layout)} after {_shown(agreed)}; all its elements must be of one kind, "
                "which output_signature can declare"
            )
        return leaves

    def state(self) -> State:
        return self._taken

    def restore(self, state: State) -> None:
        """Elements that were given before are passed over; only the first is looked at, to know what all are like."""
        while self._taken < state and not self._ended:
            try:
                if self._collector is None:
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
        self._ended, self._collector = True, None
        # One that still runs, in a thread that the interpreter's exit waits for no longer, ends with the process.
        running = inspect.isgenerator(iterator) and iterator.gi_running
        if hasattr(iterator, "close") and not running:
            iterator.close()  # type: ignore[union-attr]  # generators have it, other iterators may


def _iterator_of(made: Any) -> Iterator[Any]:
    """An iterator over what the user's function returned."""
    if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
        raise InvalidTypeError(f"the function must return an iterator, got {made!r:.200}: does it lack a `yield`?")
    if inspect.isgenerator(made) and inspect.getgeneratorstate(made) == inspect.GEN_CLOSED:
        raise InvalidArgumentError(
            "the function gave a generator that has ended already, perhaps in an epoch before: it must make a new one "
            "whenever it is called"
        )
    return iter(made)


def _raising(errors: list[BaseException]) -> Iterator[Any]:
    """Raises the error in place of a value, if there is one."""
    while errors:
        raise errors.pop()  # so that it does not refer to itself by this frame
    yield from ()


def _shown(layout: tuple[Structure, list[Any]]) -> str:
    structure, dtypes = layout
    return structure.shown(map(str, dtypes))
