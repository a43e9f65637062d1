"""A function called for several elements at a time, each result given as soon as it is there."""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from penstock.data.block import Block
from penstock.data.stream import Cursor, State, Stream
from penstock.runtime.workers import WorkerPool

_IN_FLIGHT_PER_THREAD = 2


@dataclass(frozen=True)
class _Done:
    """What became of one element."""

    number: int
    value: Any = None
    error: Exception | None = None


class Unordered(Stream):
    """`function(number, row)` of the rows of `input`, in the order in which the calls end.

    The state names the elements that were read but not given, by number, and a place in the input from which to read
    them again.
    """

    def __init__(
        self, input: Cursor, function: Callable[[int, Block], Any], pool: WorkerPool, parallelism: int
    ) -> None:
        self._input = input
        self._function = function
        self._pool = pool
        self._parallelism = parallelism
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self._read = 0
        self._ended = False
        # The elements in flight or done but not given, and the place in the input before each.
        self._open: dict[int, State] = {}

    def pull(self, need: int, allow: int) -> Block | None:
        # One row at a time: inside of a larger block a state could not tell which rows were given.
        self._fill()
        if not self._open:
            return None
        done = self._done.get()
        del self._open[done.number]
        if done.error is not None:
            raise done.error
        return Block.of_rows([done.value])

    def _fill(self) -> None:
        """Start calls until enough are in flight."""
        while not self._ended and len(self._open) < self._parallelism * _IN_FLIGHT_PER_THREAD:
            place = self._input.state()
            row = self._input.pull(1, 1)
            if row is None:
                self._ended = True
                return
            self._start(self._read, place, row)
            self._read += 1

    def _start(self, number: int, place: State, row: Block) -> None:
        self._open[number] = place
        self._pool.submit(self._call, self._parallelism, number, row)

    def _call(self, number: int, row: Block) -> None:
        try:
            self._done.put(_Done(number, self._function(number, row)))
        except Exception as error:
            self._done.put(_Done(number, error=error))

    def state(self) -> State:
        numbers = sorted(self._open)
        place = self._open[numbers[0]] if numbers else self._input.state()
        return [place, self._read, numbers]

    def restore(self, state: State) -> None:
        place, self._read, numbers = state
        self._input.restore(place)
        number = numbers[0] if numbers else self._read
        wanted = set(numbers)
        while number < self._read:
            place = self._input.state()
            row = self._input.pull(1, 1)
            assert row is not None
            if number in wanted:
                self._start(number, place, row)
            number += 1

    def close(self) -> None:
        self._input.close()
