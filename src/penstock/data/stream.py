"""Streams: one pass over the elements of a node. The rules that all of them keep stand at the top of `node.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.data.block import Block
from penstock.options import INFINITE_CARDINALITY

State = Any
"""Plain data: None, booleans, integers, floats, strings, lists and dictionaries of them."""


class Stream(ABC):
    """One pass over a node's epoch. See the rules at the top of `node.py`."""

    @abstractmethod
    def pull(self, need: int, allow: int) -> Block | None:
        """The next rows, at least one and about `allow`; None at the end."""

    @abstractmethod
    def state(self) -> State:
        """The position after the last block that `pull` gave."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a state; only on a stream that has not been pulled."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that runs for this stream and for its inputs."""

    def advanced(self, state: State, rows: int) -> State | None:
        """`state` moved on by `rows` rows, where that can be said without reading them."""
        return None

    def skip(self, rows: int) -> int:
        """Pass over up to `rows` rows without reading them, where that is possible; gives how many were."""
        return 0


class IndexStream(Stream):
    """One pass over what can be read by index: the state is a position.

    Args:
        read: gives the rows at positions.
        length: how many rows there are, or INFINITE_CARDINALITY.
    """

    def __init__(self, read: Callable[[range], Block], length: int) -> None:
        self._read = read
        self._length = length
        self._position = 0
        self._single_until = 0

    def _left(self, rows: int) -> int:
        return rows if self._length == INFINITE_CARDINALITY else min(rows, self._length - self._position)

    def pull(self, need: int, allow: int) -> Block | None:
        # After an error inside a span its rows are read one at a time, so that those before the failing one are
        # delivered first.
        rows = self._left(1 if self._position < self._single_until else allow)
        if rows <= 0:
            return None
        start = self._position
        try:
            block = self._read(range(start, start + rows))
        except Exception:
            if rows == 1:
                self._position += 1
                raise
            self._single_until = start + rows
            return self.pull(need, allow)
        self._position = start + rows
        return block

    def skip(self, rows: int) -> int:
        skipped = max(0, self._left(rows))
        self._position += skipped
        return skipped

    def advanced(self, state: State, rows: int) -> State:
        return int(state) + rows

    def state(self) -> State:
        return self._position

    def restore(self, state: State) -> None:
        self._position = int(state)

    def close(self) -> None:
        """Reading by index leaves nothing running."""


class Cursor(Stream):
    """A stream that can be stopped between any two rows, not only between its blocks.

    The state is [state, rows]: a state of the stream below, taken before the block that is being handed out, and how
    many rows of that block were handed out. `restore` reads those rows again and drops them (over an index stream, it
    only moves the position).
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._before: State = None
        self._block: Block | None = None
        self._offset = 0

    @property
    def _left(self) -> int:
        return 0 if self._block is None else len(self._block) - self._offset

    def pull(self, need: int, allow: int) -> Block | None:
        if self._left == 0:
            self._block = None  # its memory can serve the next one
            before = self._stream.state()
            block = self._stream.pull(need, allow)
            if block is None:
                return None
            self._before, self._block, self._offset = before, block, 0
        assert self._block is not None
        start = self._offset
        self._offset = min(start + allow, len(self._block))
        return self._block.slice(start, self._offset)

    def give_back(self, rows: int) -> None:
        """Put the last `rows` rows of the block that `pull` gave last back in front."""
        self._offset -= rows

    def exactly(self, rows: int) -> Block | None:
        """The next `rows` rows as one block; fewer at the end, None if there are none."""
        blocks: list[Block] = []
        left = rows
        while left > 0:
            block = self.pull(left, left)
            if block is None:
                break
            blocks.append(block)
            left -= len(block)
        return Block.concatenate(blocks) if blocks else None

    def skip(self, rows: int) -> int:
        """Pass over up to `rows` rows, reading them if need be; gives how many there were."""
        done = min(rows, self._left)
        self._offset += done
        if done < rows:
            done += self._stream.skip(rows - done)
        while done < rows:
            block = self.pull(rows - done, rows - done)
            if block is None:
                break
            done += len(block)
        return done

    def state(self) -> State:
        if not self._left:
            return [self._stream.state(), 0]
        moved = self._stream.advanced(self._before, self._offset)
        return [self._before, self._offset] if moved is None else [moved, 0]

    def state_before(self, rows: int) -> State:
        """The state before the last `rows` rows of the block that `pull` gave last."""
        self._offset -= rows
        state = self.state()
        self._offset += rows
        return state

    def restore(self, state: State) -> None:
        position, rows = state
        self._stream.restore(position)
        self.skip(rows)

    def close(self) -> None:
        self._stream.close()
