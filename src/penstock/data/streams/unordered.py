"""A function called for several elements at a time, each result given as soon as it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from penstock.data.block import Block
from penstock.data.streams.stream import CountingCursor, OneInputStream, State
from penstock.runtime.channel import Closed
from penstock.runtime.threads import Threads, failures

_IN_FLIGHT_PER_THREAD = 2


@dataclass(frozen=True)
class _Element:
    """An element that was read: the place in the input before it, its number there, and its position."""

    place: State
    number: int
    position: int


@dataclass(frozen=True)
class _Done:
    """What became of one element."""

    position: int
    value: Any = None
    error: BaseException | None = None


class Unordered(OneInputStream):
    """`function(position, row)` of the rows of `input`, in the order in which the calls end.

    The state names the elements that were read but not given, and a place in the input from which to read
    them again.

    Args:
        in_order: give the results in the order of the elements all the same: after what a state names, if it was
            restored from one.
    """

    _input: CountingCursor

    def __init__(
        self,
        input: CountingCursor,
        function: Callable[[int, Block], Any],
        threads: Threads,
        parallelism: int,
        *,
        in_order: bool = False,
    ) -> None:
        self._input = input
        self._function = function
        self._threads = threads
        self._parallelism = parallelism
        self._in_order = in_order
        self._done: SimpleQueue[_Done] = SimpleQueue()
        # Done, but not their turn yet, by position.
        self._early: dict[int, _Done] = {}
        self._ended = False
        self._position = 0
        # The elements in flight, or done but not given, by position.
        self._open: dict[int, _Element] = {}

    def pull(self, need: int, allow: int) -> Block | None:
        # One row at a time: inside of a larger block a state could not tell which rows were given.
        self._fill()
        if not self._open:
            return None
        done = self._next_done()
        del self._open[done.position]
        if done.error is not None:
            raise done.error
        return Block.of_rows([done.value])

    def _next_done(self) -> _Done:
        if not self._in_order:
            return self._done.get()
        wanted = next(iter(self._open))
        while wanted not in self._early:
            done = self._done.get()
            self._early[done.position] = done
        return self._early.pop(wanted)

    def _fill(self) -> None:
        """Start calls until enough are in flight."""
        while not self._ended and len(self._open) < self._parallelism * _IN_FLIGHT_PER_THREAD:
            place, number = self._input.state(), self._input.met
            row = self._input.pull(1, 1)
            if row is None:
                self._ended = True
                return
            self._start(_Element(place, number, self._position), row)
            self._position += 1

    def _start(self, element: _Element, row: Block) -> None:
        self._open[element.position] = element
        self._threads.submit(partial(self._call, element.position, row), self._parallelism)

    def _call(self, position: int, row: Block) -> None:
        try:
            if self._threads.stopped:  # many calls may be waiting
                raise Closed
            self._done.put(_Done(position, self._function(position, row)))
        except failures() as error:
            self._done.put(_Done(position, error=error))

    def state(self) -> State:
        elements = sorted(self._open.values(), key=lambda element: element.number)
        place = elements[0].place if elements else self._input.state()
        return [place, self._input.known, self._position, [[e.number, e.position] for e in elements]]

    def restore(self, state: State) -> None:
        place, known, self._position, elements = state
        positions = dict(elements)
        self._input.restore_at(place, known)
        while self._input.repeating:
            place, number = self._input.state(), self._input.met
            rows = self._input.repeat()
            if rows is None:
                continue
            self._input.give_back(len(rows) - 1)  # a place is needed before every single one
            if number in positions:
                self._start(_Element(place, number, positions[number]), rows.slice(0, 1))
