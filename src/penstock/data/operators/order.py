"""Operators that choose and reorder positions. Over indexable inputs they are arithmetic."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.node import Node, Run, State, Stream, capped, scaled
from penstock.options import INFINITE_CARDINALITY
from penstock.rng import as_positions, mix, permuted
from penstock.spec import TensorSpec
from penstock.structure import LEAF, Structure

_INFINITE_REPEATS = 1 << 32
_PAIR = Structure("tuple", (LEAF, LEAF), (0, 1), leaf_count=2)


@dataclass(frozen=True, eq=False)
class OneInput(Node):
    """What the operators of this file have in common: one input whose elements they do not change."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    @property
    def spec(self) -> Any:
        return self.input.spec

    @property
    def indexable(self) -> bool:
        return self.input.indexable


@dataclass(frozen=True, eq=False)
class Shuffle(OneInput):
    """A random order in which no element comes more than `buffer_size` - 1 places early.

    Shorter inputs than the buffer are permuted as a whole. Longer ones are permuted inside windows of `buffer_size`
    rows; the first window of an epoch is of random length, so that other rows share a window in every epoch. The order
    is a function of (seed, epoch, position), entered anywhere
    at no cost: `docs/design/0002-shuffle-by-windows.md`.
    """

    name: ClassVar[str] = "shuffle"
    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    @property
    def varies(self) -> bool:
        return self.reshuffle_each_iteration or self.input.varies

    @property
    def unseeded(self) -> bool:
        return self.seed is None or self.input.unseeded

    def key(self, run: Run, epoch: int) -> int:
        """The random key of one epoch's order."""
        return mix(run.key(self, self.seed), epoch if self.reshuffle_each_iteration else 0)

    def first_window(self, key: int) -> int:
        """The length of the first window, if the input is longer than the buffer."""
        return 1 + mix(key, 1) % self.buffer_size

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        key = self.key(run, epoch)
        length = self.input.cardinality
        if 0 <= length <= self.buffer_size:
            return self.input.read(run, epoch, permuted(mix(key, 0), length, indices))
        positions = as_positions(indices)
        first = self.first_window(key)
        windows = np.maximum(0, positions - first + self.buffer_size) // self.buffer_size
        sources = np.empty_like(positions)
        for window in np.unique(windows):
            start = 0 if window == 0 else first + (int(window) - 1) * self.buffer_size
            size = first if window == 0 else self.buffer_size
            if length != INFINITE_CARDINALITY:
                size = min(size, length - start)
            inside = windows == window
            sources[inside] = start + permuted(mix(key, 2, int(window)), size, positions[inside] - start)
        return self.input.read(run, epoch, sources)

    def stream(self, run: Run, epoch: int) -> "ShuffleStream":
        return ShuffleStream(self, run, epoch)


class ShuffleStream(Stream):
    """The same order over a stream.

    While one window is handed out, the rows of the next are collected, so that none has to be waited for.

    The state is where the window begins in the input, its number, and how many of its rows were handed out: at most two
    buffers are read again.
    """

    _PIECES = 16

    def __init__(self, node: Shuffle, run: Run, epoch: int) -> None:
        self._key = node.key(run, epoch)
        self._buffer = node.buffer_size
        self._first = node.first_window(self._key)
        self._input = node.input.cursor(run, epoch)
        self._collected: list[Block] = []
        self._collected_begin: State = None
        self._second_begin: State = None
        self._begin: State = self._input.state()
        self._window = -1
        self._pieces: list[Block] = []
        self._given = 0
        self._skip = 0

    def pull(self, need: int, allow: int) -> Block | None:
        while not self._pieces:
            if not self._advance():
                return None
        piece = self._pieces[0]
        rows = min(allow, len(piece))
        self._collect(min(self._buffer, sum(map(len, self._collected)) + rows))
        if rows == len(piece):
            self._pieces.pop(0)
        else:
            self._pieces[0] = piece.slice(rows, len(piece))
        self._given += rows
        return piece.slice(0, rows)

    def _collect(self, rows: int) -> None:
        """Read until `rows` rows of the next window are there, or the input has ended."""
        if not self._collected:
            self._collected_begin = self._input.state()
        left = rows - sum(map(len, self._collected))
        while left > 0:
            block = self._input.pull(left, left)
            if block is None:
                return
            self._collected.append(block)
            left -= len(block)

    def _advance(self) -> bool:
        """Make what was collected the window that is handed out; False at the end."""
        self._collect(self._first if self._window < 0 else self._buffer)
        if self._window < 0:
            if self._second_begin is None:
                self._second_begin = self._input.state()
            # One row more than fits tells whether the input is longer than the buffer.
            self._collect(self._buffer + 1)
        if not self._collected:
            self._begin, self._given = self._input.state(), 0
            return False
        rows = Block.concatenate(self._collected)
        self._begin, self._collected, self._window = self._collected_begin, [], self._window + 1
        key = mix(self._key, 2, self._window)
        if self._window == 0 and len(rows) <= self._buffer:
            key = mix(self._key, 0)
        elif self._window == 0:
            self._collected, self._collected_begin = [rows.slice(self._first, len(rows))], self._second_begin
            rows = rows.slice(0, self._first)
        order = permuted(key, len(rows), np.arange(len(rows)))[self._skip :]
        self._given, self._skip = self._skip, 0
        # In pieces, so that the memory of a window goes as its rows go.
        size = max(1, -(-len(rows) // self._PIECES))
        self._pieces = [rows.take(order[start : start + size]) for start in range(0, len(order), size)]
        return True

    def state(self) -> State:
        return [self._begin, self._window, self._given]

    def restore(self, state: State) -> None:
        self._begin, window, self._given = state
        self._input.restore(self._begin)
        self._window = max(-1, window - 1)
        self._skip = self._given

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Repeat(OneInput):
    """The epochs of the input one after the other, `count` times or for ever (None)."""

    name: ClassVar[str] = "repeat"
    count: int | None

    @property
    def cardinality(self) -> int:
        if self.input.cardinality == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE_CARDINALITY
        return scaled(self.input.cardinality, lambda n: n * (self.count or 0))

    def first_epoch(self, epoch: int) -> int:
        """The number of the input's epoch with which this node's `epoch` begins."""
        return epoch * (_INFINITE_REPEATS if self.count is None else self.count)

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        length = self.input.cardinality
        first_epoch = self.first_epoch(epoch)
        if length == INFINITE_CARDINALITY:
            return self.input.read(run, first_epoch, indices)
        if isinstance(indices, range) and indices and indices[0] // length == indices[-1] // length:
            number = indices[0] // length
            shifted = range(indices.start - number * length, indices.stop - number * length, indices.step)
            return self.input.read(run, first_epoch + number, shifted)
        positions = as_positions(indices)
        if not self.input.varies:
            return self.input.read(run, first_epoch, positions % length)
        epochs = positions // length
        parts = []
        for number in np.unique(epochs):
            where = np.flatnonzero(epochs == number)
            parts.append((where, self.input.read(run, first_epoch + int(number), positions[where] - number * length)))
        return Block.scattered(parts) if parts else self.input.read(run, first_epoch, positions)

    def stream(self, run: Run, epoch: int) -> "RepeatStream":
        return RepeatStream(self, run, epoch)


class RepeatStream(Stream):
    """The state is the number of the repetition and the input's own state."""

    def __init__(self, node: Repeat, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._first_epoch = node.first_epoch(epoch)
        self._number = 0
        self._empty = True
        self._input = node.input.cursor(run, self._first_epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        while self._node.count is None or self._number < self._node.count:
            block = self._input.pull(need, allow)
            if block is not None:
                self._empty = False
                return block
            if self._empty:  # an input without elements would be repeated for ever
                return None
            self._input.close()
            self._number += 1
            self._empty = True
            self._input = self._node.input.cursor(self._run, self._first_epoch + self._number)
        return None

    def state(self) -> State:
        return [self._number, self._empty, self._input.state()]

    def restore(self, state: State) -> None:
        self._number, self._empty, position = state
        self._input.close()
        self._input = self._node.input.cursor(self._run, self._first_epoch + self._number)
        self._input.restore(position)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Take(OneInput):
    """The first `count` elements."""

    name: ClassVar[str] = "take"
    count: int

    @property
    def cardinality(self) -> int:
        return capped(self.input.cardinality, self.count)

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return self.input.read(run, epoch, indices)

    def stream(self, run: Run, epoch: int) -> "TakeStream":
        return TakeStream(self, run, epoch)


class TakeStream(Stream):
    """The state is the input's, and how many elements were given."""

    def __init__(self, node: Take, run: Run, epoch: int) -> None:
        self._left = node.count
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        if self._left == 0:
            return None
        try:
            block = self._input.pull(min(need, self._left), min(allow, self._left))
        except Exception:
            self._left -= 1  # an element that failed counts: those after it keep their places
            raise
        self._left -= 0 if block is None else len(block)
        return block

    def state(self) -> State:
        return [self._input.state(), self._left]

    def restore(self, state: State) -> None:
        position, self._left = state
        self._input.restore(position)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Skip(OneInput):
    """All elements but the first `count`."""

    name: ClassVar[str] = "skip"
    count: int

    @property
    def cardinality(self) -> int:
        return scaled(self.input.cardinality, lambda n: max(0, n - self.count))

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return self.input.read(run, epoch, shifted(indices, self.count))

    def stream(self, run: Run, epoch: int) -> "SkipStream":
        return SkipStream(self, run, epoch)


class SkipStream(Stream):
    """The state is the input's, and how many elements are still to be passed over."""

    def __init__(self, node: Skip, run: Run, epoch: int) -> None:
        self._left = node.count
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        while self._left:
            try:
                block = self._input.pull(self._left, self._left)
            except Exception:
                self._left -= 1
                raise
            if block is None:
                return None
            self._left -= len(block)
        return self._input.pull(need, allow)

    def state(self) -> State:
        return [self._input.state(), self._left]

    def restore(self, state: State) -> None:
        position, self._left = state
        self._input.restore(position)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Shard(OneInput):
    """Every `num_shards`-th element, beginning with element `index`."""

    name: ClassVar[str] = "shard"
    num_shards: int
    index: int

    @property
    def cardinality(self) -> int:
        return scaled(self.input.cardinality, lambda n: len(range(self.index, n, self.num_shards)))

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        if isinstance(indices, range):
            start = indices.start * self.num_shards + self.index
            step = indices.step * self.num_shards
            return self.input.read(run, epoch, range(start, start + len(indices) * step, step))
        return self.input.read(run, epoch, indices * self.num_shards + self.index)

    def stream(self, run: Run, epoch: int) -> "ShardStream":
        return ShardStream(self, run, epoch)


class ShardStream(Stream):
    """The state is the input's, and the position there modulo the number of shards."""

    def __init__(self, node: Shard, run: Run, epoch: int) -> None:
        self._node = node
        self._phase = 0
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        count, index = self._node.num_shards, self._node.index
        while True:
            # Up to and including the wanted element, and no further.
            ahead = (index - self._phase) % count + 1
            block = self._input.pull((need - 1) * count + ahead, (allow - 1) * count + ahead)
            if block is None:
                return None
            self._phase = (self._phase + len(block)) % count
            wanted = range(ahead - 1, len(block), count)
            if len(wanted):
                return block.take(wanted)

    def state(self) -> State:
        return [self._input.state(), self._phase]

    def restore(self, state: State) -> None:
        position, self._phase = state
        self._input.restore(position)

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True, eq=False)
class Enumerate(OneInput):
    """(start + position, element) for every element."""

    name: ClassVar[str] = "enumerate"
    start: int = 0

    @property
    def spec(self) -> Any:
        return None if self.input.spec is None else (TensorSpec((), np.int64), self.input.spec)

    def numbered(self, block: Block, numbers: npt.NDArray[np.int64]) -> Block:
        """The block with its positions as a leading leaf."""
        return Block((numbers + self.start, *block.columns), _PAIR.nested([LEAF, block.structure]), len(block))

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return self.numbered(self.input.read(run, epoch, indices), as_positions(indices))

    def stream(self, run: Run, epoch: int) -> "EnumerateStream":
        return EnumerateStream(self, run, epoch)


class EnumerateStream(Stream):
    """The state is the input's, and the position."""

    def __init__(self, node: Enumerate, run: Run, epoch: int) -> None:
        self._node = node
        self._position = 0
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        start, self._position = self._position, self._position + len(block)
        return self._node.numbered(block, np.arange(start, self._position))

    def state(self) -> State:
        return [self._input.state(), self._position]

    def restore(self, state: State) -> None:
        position, self._position = state
        self._input.restore(position)

    def close(self) -> None:
        self._input.close()


def shifted(indices: Indices, by: int) -> Indices:
    """Every position moved by the same distance."""
    if isinstance(indices, range):
        return range(indices.start + by, indices.stop + by, indices.step)
    return indices + by
