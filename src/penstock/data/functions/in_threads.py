"""Calls of a user's function for the rows of a block, made by several threads while others read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

from penstock.data.block import Block, own
from penstock.data.column_builder import ColumnBuilder
from penstock.data.functions.apply import Results, fill, map_rows
from penstock.data.node import Node, Run
from penstock.data.output_signature import OutputSignature
from penstock.data.streams.index_reading import Failure, Outcome, Pending
from penstock.runtime.callers import Callers, Work
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures
from penstock.statistics import tracing
from penstock.structure import flatten


class Made(Pending):
    """Results that are complete."""

    done = True

    def __init__(self, callers: Callers, outcome: Outcome) -> None:
        super().__init__(callers)
        self._outcome = outcome

    @property
    def nbytes(self) -> int:
        block = self._outcome[0]
        return 0 if block is None else block.nbytes

    def outcome(self) -> Outcome:
        return self._outcome


class Continued(Pending):
    """Results of which the first are complete.

    Args:
        first: the results of the first rows, in blocks.
        rest: the calls for the other rows.
    """

    def __init__(self, first: Sequence[Block], rest: Pending) -> None:
        super().__init__(rest.callers)
        self._first = first
        self._rest = rest
        self.tasks, self.rows = rest.tasks, rest.rows

    @property
    def done(self) -> bool:  # type: ignore[override]  # a property here
        return self._rest.done

    @property
    def unwanted(self) -> bool:
        return self._rest.unwanted

    @unwanted.setter
    def unwanted(self, unwanted: bool) -> None:
        self._rest.unwanted = unwanted

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._first) + self._rest.nbytes

    def outcome(self) -> Outcome:
        return joined(self._first, *self._rest.outcome())


def joined(first: Sequence[Block], block: Block | None, failure: Failure | None) -> Outcome:
    """Return the outcome for the rows of some blocks and those after them."""
    blocks = [*first] if block is None else [*first, block]
    if failure is not None:
        failure = replace(failure, row=failure.row + sum(map(len, first)))
    return (Block.concatenate(blocks) if blocks else None), failure


@dataclass
class _Returned:
    """Values that the calls for rows start to stop returned, up to the first that raised, and their size."""

    start: int
    stop: int
    found: list[Any] = field(default_factory=list)
    nbytes: int = 0
    error: BaseException | None = None


class Calls(Pending):
    """The results of one function for the rows of one block.

    Results whose layout is unknown are collected first, and the first in order determines the layout: so it does not
    depend on which call ended first whether a result is refused.

    Args:
        node: the node of the function.
        results: yields the results of rows start to stop; called from several threads.
        positions: the positions of the rows, at least one.
        signature: the declared kind of the results.
        at_once: returns the outcome for all rows by one call, if the function supports this.
        note_failure: adds the position at which it was raised to an exception.
    """

    def __init__(
        self,
        run: Run,
        node: Node,
        callers: Callers,
        results: Results,
        positions: Any,
        signature: OutputSignature | None,
        at_once: Callable[[], Outcome] | None,
        note_failure: Callable[[BaseException, int], None],
    ) -> None:
        super().__init__(callers)
        self._run = run
        self._node = node
        self._results = results
        self._positions = positions
        self.rows = rows = len(positions)
        self._signature = signature
        self._note_failure = note_failure
        self._lock = Lock()
        self._outcome: Outcome | None = None
        self._values: list[_Returned] = []
        self._builder: ColumnBuilder | None = None
        self._failures: list[Failure] = []
        self._left = rows
        layout = run.known(node)
        if layout is not None and not callers.know_results:
            callers.results_hold(layout.nbytes)
        chunk = rows if at_once is not None else callers.chunk
        self.tasks = -(-rows // chunk)
        call: Callable[[int, int], None] = self._keep
        if at_once is not None:
            call = partial(self._all_at_once, at_once)
        elif layout is not None and self.tasks == 1:
            call = self._all
        elif layout is not None:
            self._builder = ColumnBuilder(layout, rows)
            self._builder.allocate()
            call = self._fill
        callers.add(Work(partial(self._call, call), rows, together=self.tasks == 1))

    def waits_for(self) -> str:
        """Say in words what its calls wait for: their operator."""
        return str(self._node.where())

    def _call(self, call: Callable[[int, int], None], start: int, stop: int) -> None:
        try:
            if self._run.threads.stopped or self.unwanted:
                raise Closed
            call(start, stop)
        except failures() as error:
            self._outcome = None, Failure(0, error)
        with self._lock:
            self._left -= stop - start
            last = self._left == 0
        if last:
            self.callers.results_hold(self.nbytes // self.rows)
            if tracing.recorder is not None:
                tracing.recorder.put(self)
            self.done = True

    def _all_at_once(self, at_once: Callable[[], Outcome], start: int, stop: int) -> None:
        self._outcome = at_once()
        if self._outcome == (None, None):  # row by row the outcome may differ
            self._all(start, stop)

    def _all(self, start: int, stop: int) -> None:
        self._outcome = self._mapped(self._results)

    def _mapped(self, results: Results) -> Outcome:
        return map_rows(self._run, self._node, results, self.rows, self._signature, int(self._positions[0]))

    def _keep(self, start: int, stop: int) -> None:
        values = _Returned(start, stop)
        with self._lock:
            self._values.append(values)
        try:
            for value in self._results(start, stop):
                values.found.append(owned(value))
                nbytes = sum(getattr(leaf, "nbytes", 0) for leaf in flatten(value)[0])
                values.nbytes += nbytes
                self.callers.results_hold(nbytes)  # before further tasks are made
                if self._run.threads.stopped:  # slow calls would keep its threads alive
                    raise Closed
        except failures() as error:
            values.error = error

    def _fill(self, start: int, stop: int) -> None:
        assert self._builder is not None
        if any(failure.row < start for failure in self._failures):
            return
        failure = fill(self._run.threads, self._builder.part(start), self._results, stop)
        if failure is not None:
            self._failures.append(failure)

    @property
    def nbytes(self) -> int:
        if self._builder is not None:
            return self._builder.nbytes
        if self._outcome is not None:
            return 0 if self._outcome[0] is None else self._outcome[0].nbytes
        return sum(values.nbytes for values in self._values)

    def outcome(self) -> Outcome:
        """Return the block of the results, up to the first row that failed."""
        if tracing.recorder is not None:
            tracing.recorder.take(self)
        block, failure = self._found()
        if failure is not None:
            self._note_failure(failure.error, int(self._positions[failure.row]))
        return block, failure

    def _found(self) -> Outcome:
        if self._outcome is not None:
            return self._outcome
        if self._builder is None:
            self._values.sort(key=lambda values: values.start)
            return self._mapped(self._again)
        failure = min(self._failures, key=lambda failure: failure.row, default=None)
        return self._builder.block(self.rows if failure is None else failure.row), failure

    def _again(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the results of the calls for these rows again, and raise their exception."""
        for values in self._values:
            first = values.start
            yield from values.found[max(0, start - first) : max(0, stop - first)]
            failed = first + len(values.found)
            if failed >= min(stop, values.stop):
                continue
            if values.error is not None and failed >= start:
                raise values.error
            return  # a function that raised StopIteration


def owned(value: Any) -> Any:
    """Return a copy of a result, which the function cannot change afterwards."""
    leaves, structure = flatten(value)
    return structure.unflatten([own(leaf) for leaf in leaves])
