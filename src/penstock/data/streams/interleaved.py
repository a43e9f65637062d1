"""Rows of several streams that take turns, in the order of the turns."""

from heapq import heappop, heapreplace

import numpy as np

from penstock.data.block import Block


class InterleavedRows:
    """Blocks of `count` streams that take turns of `length` rows each.

    Turns are numbered; turn `n` belongs to stream `n` modulo `count`. Rows have numbers too, `length` for each turn.

    Args:
        turn: the turn to begin with.
        passed: the number of its rows that were returned before.
    """

    def __init__(self, count: int, length: int, turn: int, passed: int) -> None:
        self._count = count
        self._length = length
        # For each stream the turn of its next row, the earliest first, and the number of earlier rows of that turn.
        self._waiting = list(range(turn, turn + count))
        self._passed = [0] * count
        self._passed[turn % count] = passed
        # The blocks, and for each the turn of its first row and the number of earlier rows of that turn.
        self._blocks: list[Block] = []
        self._turns: list[int] = []
        self._before: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def next(self) -> int | None:
        """The first turn whose rows are incomplete; None where all streams have ended."""
        return self._waiting[0] if self._waiting else None

    def passed(self, turn: int) -> int:
        """Return the number of rows of a stream's next turn that were added here, or returned before."""
        return self._passed[turn % self._count]

    def wanted(self, stop: int) -> int:
        """Return the number of rows that the stream whose turn is next has before turn `stop`."""
        turn = self._waiting[0]
        return self._length * (1 + (stop - 1 - turn) // self._count) - self.passed(turn)

    def add(self, block: Block) -> None:
        """Add the next rows of the stream whose turn is next."""
        turn = self._waiting[0]
        number = turn % self._count
        self._blocks.append(block)
        self._turns.append(turn)
        self._before.append(self._passed[number])
        served, self._passed[number] = divmod(self._passed[number] + len(block), self._length)
        heapreplace(self._waiting, turn + self._count * served)

    def end_turn(self) -> None:
        """End the next turn with the rows added so far."""
        turn = self._waiting[0]
        self._passed[turn % self._count] = 0
        heapreplace(self._waiting, turn + self._count)

    def drop(self) -> None:
        """Remove the stream whose turn is next: it has ended."""
        heappop(self._waiting)

    def in_order(self, stop: int | None) -> tuple[Block, dict[int, int]]:
        """Return the rows in order, up to those of turn `stop` if it is given, and the number left over by stream."""
        if len(self._blocks) == 1 and stop is None:
            return self._blocks[0], {}
        lengths = np.array(list(map(len, self._blocks)))
        block = Block.concatenate(self._blocks)
        begins = np.cumsum(lengths) - lengths
        passed = np.arange(len(block)) + np.repeat(np.array(self._before) - begins, lengths)
        rounds, within = np.divmod(passed, self._length)
        numbers = (np.repeat(self._turns, lengths) + rounds * self._count) * self._length + within
        # The place of each numbered row in `block`. Streams that have ended leave gaps.
        first = int(numbers.min())
        rows = np.full(int(numbers.max()) - first + 1, -1)
        rows[numbers - first] = np.arange(len(block))
        left: dict[int, int] = {}
        if stop is not None:
            end = stop * self._length + self.passed(stop)
            rows = rows[: max(0, end - first)]
            over = np.add.reduceat(numbers >= end, begins, dtype=np.int64)
            left = {self._turns[entry] % self._count: int(over[entry]) for entry in np.flatnonzero(over)}
        gaps = rows < 0
        return block.take(rows[~gaps] if gaps.any() else rows), left
