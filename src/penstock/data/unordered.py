"""A function called for several elements at a time, each result given as soon as it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from penstock.data.block import Block
from penstock.data.stream import CountingCursor, OneInputStream, State
from penstock.runtime.threads import Threads

_IN_FLIGHT_PER_THREAD = 2


@dataclass(frozen=True)
class _Element:
    """An element that was read: the place in the input before it, what had been met there, and its position."""

    place: State
    met: int
    position: int


@dataclass(frozen=True)
class _Done:
    """What became of one element."""

    position: int
    value: Any = None
    error: Exception | None = None


class Unordered(OneInputStream):
    """`function(position, row)` of the rows of `input`, in the order in which the calls end.

    The state names the elements that were read but not given, and a place in the input from which to read
    them again.
    """

    _input: CountingCursor

    def __init__(
        self, input: CountingCursor, function: Callable[[int, Block], Any], threads: Threads, parallelism: int
    ) -> None:
        self._input = input
        self._function = function
        self._threads = threads
        self._parallelism = parallelism
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self._ended = False
        self._position = 0
        # The elements in flight, or done but not given, by position.
        self._open: dict[int, _Element] = {}

    def pull(self, need: int, allow: int) -> Block | None:
        # One row at a time: inside of a larger block a state could not tell which rows were given.
        self._fill()
        if not self._open:
            return None
        done = self._done.get()
        del self._open[done.position]
        if done.error is not None:
            raise done.error
        return Block.of_rows([done.value])

    def _fill(self) -> None:
        """Start calls until enough are in flight."""
        while not self._ended and len(self._open) < self._parallelism * _IN_FLIGHT_PER_THREAD:
            place, met = self._input.state(), self._input.met
            row = self._input.pull(1, 1)
            if row is None:
                self._ended = True
                return
            self._start(_Element(place, met, self._position), row)
            self._position += 1

    def _start(self, element: _Element, row: Block) -> None:
        self._open[element.position] = element
        self._threads.submit(partial(self._call, element.position, row), self._parallelism)

    def _call(self, position: int, row: Block) -> None:
        try:
            self._done.put(_Done(position, self._function(position, row)))
        except Exception as error:
            self._done.put(_Done(position, error=error))

    def state(self) -> State:
        elements = sorted(self._open.values(), key=lambda element: element.met)
        place, met = (elements[0].place, elements[0].met) if elements else (self._input.state(), self._input.met)
        return [place, met, self._input.met, self._position, [[e.met, e.position] for e in elements]]

    def restore(self, state: State) -> None:
        place, met, known, self._position, elements = state
        positions = dict(elements)
        self._input.restore_at(place, met, known)
        while self._input.repeating:
            place, met = self._input.state(), self._input.met
            rows = self._input.repeat()
            if rows is None:
                continue
            self._input.give_back(len(rows) - 1)  # a place is needed before every single one
            if met in positions:
                self._start(_Element(place, met, positions[met]), rows.slice(0, 1))
