"""Operators that call the user's function once per element: map, filter, and the costs of elements."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data import functions
from penstock.data.block import Block, Indices
from penstock.data.functions.answers import truth
from penstock.data.functions.apply import Results, call_rows, checked_rows, map_row, map_rows, note
from penstock.data.functions.at_once import map_at_once, takes_blocks
from penstock.data.functions.in_threads import Calls, Continued, Made, joined
from penstock.data.functions.reads_file import is_file_reader
from penstock.data.node import ByIndex, DependsOn, Run, SomeElements, derived
from penstock.data.operator_streams import FunctionStream, SelectingStream
from penstock.data.origins import source_row
from penstock.data.output_signature import HasOutputSignature
from penstock.data.streams.index_reading import Failure, Making, Outcome, Pending, Reading
from penstock.data.streams.parallel_calls import CallSettings, CallsInOrder
from penstock.data.streams.stream import Stream
from penstock.errors import ElementError
from penstock.options import AUTOTUNE
from penstock.rng import mix
from penstock.row_generators import RowGenerators
from penstock.runtime.callers import Callers
from penstock.runtime.threads import failures, threads_of
from penstock.spec import TensorSpec, describe_mismatch


class Map(HasOutputSignature, ByIndex, name="map"):
    """`function` of every element; with a seed it also gets a generator keyed by (seed, epoch, position)."""

    depends_on = DependsOn.ANY
    keeps_numbers = True
    function: Callable[..., Any]
    num_parallel_calls: int | None = None
    seed: int | None = None
    output_signature: Any = field(default=None, repr=False)
    processes: bool = field(default=False, kw_only=True)
    identity = None  # its function changes neither the number nor the order of elements

    @property
    def reads_files(self) -> bool:  # type: ignore[override]  # it depends on the function
        return is_file_reader(self.function)

    @property
    def mode(self) -> str:
        if not self.overlaps:
            return super().mode
        calls = "a tuned number of calls" if self._tuned else str(threads_of(self.num_parallel_calls))
        where = " in processes" if self.processes else ""
        return f"{super().mode}, {calls} at once{where}"

    @derived
    def varies(self) -> bool:
        return self.seed is not None or self.input.varies

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        return self.input.group_ends

    @property
    def overlaps(self) -> bool:
        """Return whether several calls may run at the same time."""
        return self.num_parallel_calls is not None and (self.processes or self.num_parallel_calls != 1)

    @property
    def _tuned(self) -> bool:
        """Return whether the number of threads is tuned while they work."""
        return self.num_parallel_calls == AUTOTUNE and not self.processes

    def apply(self, run: Run, epoch: int, block: Block, positions: Any) -> Outcome:
        """Return the function's results for a block of input, up to the first row at which it raises."""
        if block.length == 1 and self._calls_alone:
            output, failure = map_row(run, self, self.function, block, self.signature, int(positions[0]))
        else:
            output, failure = self._at_once(run, epoch, block, positions)
        if output is None and failure is None:
            results = self.results(run, epoch, block, positions)
            output, failure = map_rows(run, self, results, len(block), self.signature, int(positions[0]))
        if failure is not None:
            self.note_failure(run, epoch, failure.error, int(positions[failure.row]))
        return output, failure

    def note_failure(self, run: Run, epoch: int, error: BaseException, position: int) -> None:
        """Add the element at which it was raised to an exception of the function."""
        note(error, self, position, source_row(self.input, run, epoch, position))

    @cached_property
    def _calls_alone(self) -> bool:
        """Return whether the result of a row is made by a plain call of the function."""
        return self.seed is None and not self.processes and not takes_blocks(self.function)

    def _at_once(self, run: Run, epoch: int, block: Block, positions: Any) -> Outcome:
        """Return the results by one call; neither a block nor a failure if rows must be called individually."""
        try:
            at_once = map_at_once(self.function, block, self._generators(run, epoch, positions))
        except ElementError as error:
            return None, Failure(0, error)
        if at_once is None or self.signature is None:
            return at_once, None
        fits = describe_mismatch(self.output_signature, at_once.spec()) is None
        return (at_once if fits else None), None

    def results(self, run: Run, epoch: int, block: Block, positions: Any) -> Results:
        """Return the calls of the function for rows of a block of input."""
        if self.processes:
            kind = functions.in_processes.CalledProcesses
            called: functions.in_processes.CalledProcesses = run.called(self, partial(kind, run.threads, self.function))

        def results(start: int, stop: int) -> Iterator[Any]:
            rows, generators = block.slice(start, stop), self._generators(run, epoch, positions[start:stop])
            if self.processes:
                return called.results(rows, generators)
            return call_rows(self.function, rows, generators)

        return results

    def _generators(self, run: Run, epoch: int, positions: Any) -> RowGenerators | None:
        return None if self.seed is None else RowGenerators(mix(run.key(self, self.seed), epoch), positions)

    def _calls(self, run: Run, epoch: int, block: Block, positions: Any) -> Pending:
        """Return the results for a block of input, made by other threads where these are faster."""
        callers = self._callers(run)
        made: list[Block] = []
        # The first result in order determines their layout, so later ones are not made here before it.
        first_is_known = callers.serial or run.known(self) is not None
        while first_is_known and (rows := callers.rows_here(len(block))):
            begun = time.perf_counter()
            output, failure = self.apply(run, epoch, block.slice(0, rows), positions[:rows])
            called = rows if failure is None else failure.row + 1
            callers.note_here(time.perf_counter() - begun, called)
            if failure is not None or rows == len(block):
                return Made(callers, joined(made, output, failure) if made else (output, failure))
            assert output is not None
            made.append(output)
            block, positions = block.slice(rows, len(block)), positions[rows:]
        at_once = partial(self._at_once, run, epoch, block, positions) if takes_blocks(self.function) else None
        results, noted = self.results(run, epoch, block, positions), partial(self.note_failure, run, epoch)
        calls = Calls(run, self, callers, results, positions, self.signature, at_once, noted)
        return Continued(made, calls) if made else calls

    def _callers(self, run: Run) -> Callers:
        assert self.num_parallel_calls is not None
        if self.processes:
            seconds = functions.in_processes.IN_PROCESSES_TASK_SECONDS
            return run.callers(self, threads_of(self.num_parallel_calls), self.function, seconds)
        return run.callers(self, self.num_parallel_calls, self.function)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        block, failure = yield from self.making(run, epoch, indices)
        if failure is not None:
            raise failure.error
        assert block is not None
        return block

    def making(self, run: Run, epoch: int, indices: Indices) -> Making:
        block = yield from self.input.reading(run, epoch, indices)
        if len(block) == 0:
            return block, None
        meter = run.meter(self)
        outcome: Callable[[], Outcome] = partial(self.apply, run, epoch, block, indices)
        if self.overlaps:
            calls = meter.measured(self._calls, run, epoch, block, indices)
            if not isinstance(calls, Made):  # also if they have ended: the first in order determines the layout
                yield calls
            outcome = calls.outcome
        found: list[Outcome] = []

        def block_made() -> Block | None:
            found.append(outcome())
            return found[0][0]

        meter.measured(block_made)  # which counts the rows of what a function returns
        return found[0]

    def stream(self, run: Run, epoch: int) -> Stream:
        if not self.overlaps:
            return MapStream(self, run, epoch)

        def start(block: Block, position: int) -> Pending:
            return self._calls(run, epoch, block, range(position, position + len(block)))

        own, skips = run.ahead()
        work = CallSettings(start, self._callers(run), run.first(self.input), paced=self.input.paced)
        return CallsInOrder(self.input.cursor(own, epoch), work, skips)


class WithCosts(Map):
    """Pairs of an element and what the function says that it costs: a number, or several."""

    spec_from_call = False
    call: str = field(default="", repr=False, kw_only=True)
    """The argument that is this function, for errors."""
    divides: bool = field(default=False, repr=False, kw_only=True)
    """Whether costs decide which rows are in a batch, so that a state is one of this function only."""

    @property
    def identity(self) -> dict[str, Any] | None:  # type: ignore[override]  # that of `map` is None
        return {"function": self.function} if self.divides else None

    @property
    def name(self) -> str:  # type: ignore[override]  # elsewhere it is that of a class
        return self.call.partition("(")[0]

    @derived
    def spec(self) -> Any:
        return None if self.input.spec is None else self.spec_over(self.input.spec)

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0], TensorSpec((None,), np.float64)

    def apply(self, run: Run, epoch: int, block: Block, positions: Any) -> Outcome:
        costs: list[Any] = []
        failure = None
        try:
            costs.extend(checked_rows(self.function, block))
        except failures() as error:  # those before it are in the list
            failure = Failure(len(costs), error)
        found = _as_costs(costs)
        if found is None:
            row = bisect_left(range(len(costs)), True, key=lambda row: _as_costs(costs[: row + 1]) is None)
            refused = ElementError(
                f"{self.call} must return a finite number of at least 0, or as many of them for each row, got "
                f"{costs[row]!r:.200}: correct the function, or filter such rows out before"
            )
            failure, found = Failure(row, refused), _as_costs(costs[:row])
        if failure is not None:
            self.note_failure(run, epoch, failure.error, int(positions[failure.row]))
        if found is None or not len(found):
            return None, failure
        return block.slice(0, len(found)).beside(found), failure


def _as_costs(costs: list[Any]) -> npt.NDArray[np.float64] | None:
    """Return costs of rows along a second axis; None if they are not as many finite numbers of at least 0 for each."""
    try:
        found = np.array(costs, np.float64).reshape(len(costs), -1 if costs else 1)
    except (TypeError, ValueError):
        return None
    return found if found.shape[1] and ((found >= 0) & (found < np.inf)).all() else None


class MapStream(FunctionStream[Map]):
    """map over a stream. The state never passes a failure that has not been raised yet: it is met again."""

    same_rows = True

    def _make(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        end = self._first + self._input.met
        output, failed = self._node.apply(self._run, self._epoch, block, range(end - len(block), end))
        if failed is not None:
            self._failure = failed.error
            self._input.give_back(len(block) - failed.row)
        return output


class Filter(SomeElements, name="filter"):
    """The elements for which `predicate` is true."""

    depends_on = DependsOn.ANY
    predicate: Callable[..., Any]


class FilterStream(SelectingStream[Filter], of=Filter):
    """The state is the input's: rejected rows need no memory."""

    def _selected(self, block: Block) -> Block | None:
        kept: list[int] = []
        asked = 0
        try:
            for value in checked_rows(self._node.predicate, block):
                if value if type(value) is bool else truth("filter(predicate)", value):
                    kept.append(asked)
                asked += 1
        except failures() as error:
            self._fail(error, len(block) - asked)
        if len(kept) == len(block):
            return block
        return block.take(np.array(kept, np.int64)) if kept else None
