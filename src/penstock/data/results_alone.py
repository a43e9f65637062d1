"""Results of a function given one by one as it returns them: large ones, and those of rows that come one by one.

Where the consumer takes elements, a block of large arrays costs two copies of each byte: into the block, and out of a
cache that it does not fit into. A block of one number costs twenty times what the number does. So the function is
called for each element when that is asked for.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from time import perf_counter
from typing import Any, Final

from penstock.data.block import Block
from penstock.data.collecting import Collector
from penstock.data.functions.alike import Unlike
from penstock.data.functions.apply import note
from penstock.data.functions.at_once import takes_blocks
from penstock.data.functions.layout import Layout
from penstock.data.functions.output import Results, first_result, no_result
from penstock.data.functions.promise import Promise
from penstock.data.functions.stream import FunctionStream
from penstock.data.node import OneInput, Run
from penstock.data.streams.stream import Cursor, State
from penstock.runtime.callers import Callers
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.spec import as_leaf

_LARGE_BYTES: Final = 1024
"""From this size on, copying an array costs more than giving an element alone."""


class AloneResults:
    """Makes an element of each result of a function, without a block.

    Attributes:
        alone: the element of a result; raises `Unlike` if `looked_at` must make it.
    """

    def __init__(self, node: OneInput, run: Run) -> None:
        self._node: Any = node
        self._run = run
        self._collector: Collector | None = None
        self.alone: Callable[[Any], Any] = _unlike

    @property
    def large(self) -> bool | None:
        """Whether results are so large that they should come alone; None if they cannot, or nobody knows them yet."""
        function, layout = self._node.function, self._run.known(self._node)
        if takes_blocks(function) or hasattr(function, "_call_in_place") or self._run.live:
            return None
        if layout is None:  # the first result shows what all are like
            return None
        sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True))
        return max(sizes, default=0) >= _LARGE_BYTES

    def looked_at(self, value: Any) -> Any:
        """A result that is not like the one before, as an element."""
        if self._collector is None:
            promise: Promise | None = self._node.promise
            specs = None if promise is None else promise.leaves
            leaves, structure = self._checked(value), self._run.known(self._node).structure
            self._collector = Collector(value, leaves, structure, specs, self._checked)
            self.alone = self._collector.alone
            with suppress(Unlike):
                return self.alone(value)
        return self._collector.checked_alone(value)

    def _checked(self, value: Any) -> list[Any]:
        """The leaves of a result, which must be of the kind of all others and as promised."""
        promise: Promise | None = self._node.promise
        kept = value if promise is None else promise.kept(value)
        layout = self._run.known(self._node)
        layout.check(Layout.of(kept, like=layout))
        return layout.typed([as_leaf(leaf) for leaf in layout.structure.flatten_like(kept)])  # type: ignore[no-any-return]

    def of_rows(
        self, calls: Iterator[Callable[[Any], Any]], rows: Iterator[Any], input: Cursor, first: int, cursor: Cursor
    ) -> Iterator[Any]:
        """The elements made of rows that come one by one: see `Stream.elements`.

        Args:
            calls: what to call for each row. They may end before the rows do, but not before the first.
            input: counts the rows.
            first: the position of its first row.
        """
        calling = given = False
        alone = self.alone
        try:
            for call, row in zip(calls, rows, strict=False):  # in this order: no row is read without a call for it
                calling = True
                value = call(row)
                try:
                    element = alone(value)
                except Unlike:
                    element = self.looked_at(value)
                    alone = self.alone
                calling = False
                cursor.met += 1
                given = True
                yield element
                given = False
                row = value = element = None  # the function may use their memory again
        except BaseException as error:
            if given or not isinstance(error, failures()):  # `given`: the consumer wants no more
                raise
            stopped = no_result() if calling and isinstance(error, StopIteration) else None
            if calling:
                note(stopped or error, self._node, first + input.met - 1)
            cursor.met += 1
            if stopped is not None:
                raise stopped from None
            raise

    def of_blocks(self, rows: "PulledRows", cursor: Cursor, callers: Callers | None = None) -> Iterator[Any]:
        """The elements made of rows that come in blocks: see `Stream.elements`.

        Args:
            rows: pulls them.
            callers: notes how long calls take, and decides whether this thread makes the next; by default it makes all.
        """
        given = False
        try:
            while (results := rows.next_results(cursor)) is not None:
                alone = self.alone
                for value in results if callers is None else _Noted(callers, results):
                    try:
                        element = alone(value)
                    except Unlike:
                        element = self.looked_at(value)
                    cursor.met += 1
                    given = True
                    yield element
                    given = False
                    value = element = None  # the function may use their memory again
                if rows.left:
                    if callers is not None and not callers.serial:
                        return
                    first_result(iter(()))  # the function has raised StopIteration
                results = None  # its rows need not stay while others are read
        except BaseException as error:
            if given or not isinstance(error, failures()):  # `given`: the consumer wants no more
                raise
            if rows.left:
                note(error, self._node, rows.position)
            else:
                rows.pass_failure_of_input()
            cursor.met += 1
            raise


class PulledRows:
    """Rows that were pulled for results that are given one by one. Those without one go back to the input.

    Args:
        input: what they are pulled from.
        first: the position of its first row.
        results: gives what calls the function for rows of a block that begins at a position.
    """

    def __init__(self, input: Cursor, first: int, results: Callable[[Block, range], Results]) -> None:
        self._input = input
        self._first = first
        self._results = results
        self._rows: Block | None = None
        # What counts the results that were given, and its count after the last of the rows.
        self._cursor: Cursor | None = None
        self._end = 0
        self._pace = Pace()

    @property
    def left(self) -> int:
        """How many rows were pulled whose results were not given."""
        return 0 if self._cursor is None else self._end - self._cursor.met

    @property
    def position(self) -> int:
        """The position of the first of these."""
        return self._first + self._input.met - self.left

    def next_results(self, cursor: Cursor) -> Iterator[Any] | None:
        """Results of the rows that are left, or of the next ones, each made when it is asked for; None at the end."""
        if self.left == 0:
            self._rows = None
            self._rows = self._input.pull(1, self._pace.start())
            if self._rows is None:
                return None
            self._pace.stop(self._rows.nbytes, len(self._rows))
            self._cursor, self._end = cursor, cursor.met + len(self._rows)
        assert self._rows is not None
        rows, end = len(self._rows), self._first + self._input.met
        return self._results(self._rows, range(end - rows, end))(rows - self.left, rows)

    def pass_failure_of_input(self) -> None:
        """Note that the input has raised in place of a row, which counts as one."""
        self._end += 1

    def give_back(self) -> None:
        """Give the input the rows back whose results were not given."""
        self._input.give_back(self.left)
        self._cursor = self._rows = None

    def state(self) -> State:
        """The state of the input before them."""
        return self._input.state_before(self.left)


class ResultsAlone(FunctionStream):
    """One pass of an operator that gives a function's results, each for one row of its input.

    Args:
        node: has the function, and the `promise` of what it returns.
    """

    def __init__(self, node: OneInput, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._epoch = epoch
        self._alone = AloneResults(node, run)
        self._rows = PulledRows(self._input, self._first, self.results)

    @abstractmethod
    def results(self, block: Block, positions: range) -> Results:
        """What calls the function for rows of a block."""

    @abstractmethod
    def call_of_rows(self) -> Callable[[Any], Any] | None:
        """What calls the function for a row alone, from the next one on; None if it is not known what rows are like."""

    def elements(self, cursor: Cursor) -> Iterator[Any] | None:
        large = self._alone.large
        if large is None or self._failure is not None:
            return None
        rows = None if self._rows.left else self._input.remaining_elements()
        call = None if rows is None else self.call_of_rows()
        if rows is not None and call is not None:
            self.give_back_rows()  # none are left, and what comes alone must not be counted as theirs
            return self._alone.of_rows(repeat(call), rows, self._input, self._first, cursor)
        return self._alone.of_blocks(self._rows, cursor) if large else None

    def give_back_rows(self) -> None:
        """Give the input the rows back whose results were not given."""
        self._rows.give_back()

    def state(self) -> State:
        return self._rows.state()

    def close(self) -> None:
        self.give_back_rows()
        super().close()


def calls_here(callers: Callers, call: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
    """The function that the reading thread calls for each row that comes alone, while it makes the calls."""

    def timed(row: Any) -> Any:
        begun = perf_counter()
        try:
            return call(row)
        finally:
            callers.note_here(perf_counter() - begun, 1)

    while callers.serial:
        yield timed


class _Noted(Iterator[Any]):
    """Results as long as the reading thread makes the calls; how long each takes is noted."""

    def __init__(self, callers: Callers, results: Iterator[Any]) -> None:
        self._callers = callers
        self._results = results

    def __next__(self) -> Any:
        if not self._callers.serial:
            raise StopIteration
        begun = perf_counter()
        try:
            return next(self._results)
        finally:
            self._callers.note_here(perf_counter() - begun, 1)


def _unlike(value: Any) -> Any:
    """Stands for `Collector.alone` before there is a collector."""
    raise Unlike
