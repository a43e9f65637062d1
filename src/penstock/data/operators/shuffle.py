"""shuffle: a random order in which reading can begin at any position, by index and over a stream."""

from dataclasses import field
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, Indices, column_of, is_ragged, placed, take_rows
from penstock.data.element_kinds import of_one_kind
from penstock.data.node import EVERYTHING, DependsOn, Run, SameElements, derived
from penstock.data.skipped import Noticed
from penstock.data.streams.stream import OneInputStream, State
from penstock.options import INFINITE_CARDINALITY
from penstock.positions import as_positions, by_part, shifted
from penstock.printing import in_bytes
from penstock.rng import mix, permuted
from penstock.runtime.copying import Copiers
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.structure import Structure

SlotNumbers = npt.NDArray[np.int64]

_SLACK = 32


class Slots:
    """Memory for the rows that are held at a time, and little more."""

    def __init__(self, copiers: Copiers) -> None:
        self._copiers = copiers
        self._columns: list[Column] = []
        self._structure: Structure | None = None
        self._size = 0
        self._free: SlotNumbers = np.empty(0, np.int64)

    def put(self, block: Block) -> SlotNumbers:
        """Copy rows, which are of one kind, to free slots; gives their numbers."""
        if self._structure is None:
            self._structure = block.structure
            self._columns = [np.empty((0, *column.shape[1:]), column.dtype) for column in block.columns]
        slots = self._free_slots(len(block))
        self._columns = [
            placed(kept, slots, column, range(len(kept)))
            for kept, column in zip(self._columns, block.columns, strict=True)
        ]
        return slots

    def _free_slots(self, rows: int) -> SlotNumbers:
        missing = rows - len(self._free)
        if missing > 0:
            size = self._size + max(missing, self._size // _SLACK)
            self._columns = [_resized(column, size) for column in self._columns]
            self._free = np.concatenate([np.arange(self._size, size), self._free])
            self._size = size
        slots, self._free = self._free[len(self._free) - rows :], self._free[: len(self._free) - rows]
        return slots

    def take(self, slots: SlotNumbers) -> Block:
        """The rows in these slots, which are then free."""
        assert self._structure is not None
        columns = tuple(self._taken(column, slots) for column in self._columns)
        self.free(slots)
        return Block(columns, self._structure, len(slots))

    def free(self, slots: SlotNumbers) -> None:
        """Let other rows have these slots."""
        self._free = np.concatenate([self._free, slots])

    def _taken(self, column: Column, slots: SlotNumbers) -> Column:
        if column.dtype != object:
            return take_rows(column, slots, self._copiers)
        rows = column[slots]
        column[slots] = None  # their memory goes with them
        return column_of(list(rows)) if is_ragged(rows) else rows


def _resized(column: Column, size: int) -> Column:
    if column.dtype == object:
        larger = np.empty((size, *column.shape[1:]), object)
        larger[: len(column)] = column
        return larger
    # No one else holds this array: the system moves its pages, and no copy is made.
    column.resize((size, *column.shape[1:]), refcheck=False)
    return column


_PIECES = 32
_FEW = 8
"""At most a 32nd of the buffer of a stream is read and returned at a time, but at least this many rows."""


class Shuffle(SameElements, name="shuffle"):
    """A random order in which no element comes more than `buffer_size` - 1 positions early.

    Shorter inputs than the buffer are permuted as a whole. Longer ones are permuted inside windows of `buffer_size`
    rows; the first window of an epoch is of random length, so that other rows share a window in every epoch. The order
    is a function of (seed, epoch, position), so reading can begin anywhere at no cost. See
    `docs/design/data-shuffle.md`.
    """

    depends_on = DependsOn.ANY
    draws_random = True
    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    @property
    def memory(self) -> str:
        if not self.indexable and self.buffer_size == EVERYTHING:
            return "holds all rows"
        if not self.indexable:
            return f"holds up to {self.buffer_size + max(_FEW, self.buffer_size // _PIECES):,} rows"
        rows = min(self.buffer_size, max(self.cardinality, 0) or self.buffer_size)
        return "moves indices only" + (f", holds {in_bytes(8 * rows)}" if rows <= 1 << 17 else ", holds nothing")

    @derived
    def varies(self) -> bool:
        return (self.reshuffle_each_iteration and self.moves) or self.input.varies

    @property
    def moves(self) -> bool:
        """Return whether any row can change its position: not in windows of one row, nor in a dataset of one row."""
        return self.buffer_size > 1 and self.input.cardinality != 1

    def key(self, run: Run, epoch: int) -> int:
        """Return the random key of one epoch's order."""
        return mix(run.key(self, self.seed), epoch if self.reshuffle_each_iteration else 0)

    def first_window(self, key: int) -> int:
        """Return the length of the first window, if the input is longer than the buffer."""
        return 1 + mix(key, 1) % self.buffer_size

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        if not self.moves:
            return indices
        key = self.key(run, epoch)
        length = self.input.cardinality
        if 0 <= length <= self.buffer_size:
            return permuted(mix(key, 0), length, indices)
        return self._in_windows(key, length, indices)

    def _in_windows(self, key: int, length: int, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the input's positions of the rows at these positions, if the input is longer than the buffer."""
        first, size = self.first_window(key), self.buffer_size
        windows = np.maximum(0, as_positions(indices) - first + size) // size
        sources = np.empty(len(indices), np.int64)
        for window, which, positions in by_part(indices, windows):
            start = 0 if window == 0 else first + (window - 1) * size
            rows = first if window == 0 else size
            if length != INFINITE_CARDINALITY:
                rows = min(rows, length - start)
            sources[which] = permuted(mix(key, 2, window), rows, shifted(positions, -start)) + start
        return sources


class ClumpedShuffle(Shuffle):
    """A random order in which rows that cost little to read together come near each other.

    Groups of rows, such as row groups of Parquet, come in a random order, in clumps of `clump` groups, and the rows of
    a clump in a random order of all of them. So a group is read for one part of the epoch only.
    """

    clump: int = field(kw_only=True)

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The positions after each group; they rise. They are asked for anew where a part of the files is read."""
        ends = self.input.group_ends
        assert ends is not None
        return np.unique(ends[ends > 0])

    @property
    def memory(self) -> str:
        return f"moves indices only, mixes the rows of {self.clump} of {len(self._ends):,} groups of rows at a time"

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        key = self.key(run, epoch)
        shifts, edges = self._order_of(key)
        clump_edges = edges[:: self.clump]
        sources = np.empty(len(indices), np.int64)
        clumps = np.searchsorted(clump_edges, as_positions(indices), side="right") - 1
        for number, which, positions in by_part(indices, clumps):
            start, stop = (int(edges[min(one * self.clump, len(self._ends))]) for one in (number, number + 1))
            mixed = permuted(mix(key, 2, number), stop - start, shifted(positions, -start)) + start
            sources[which] = mixed + shifts[np.searchsorted(edges, mixed, side="right") - 1]
        return sources

    @cached_property
    def _order_of(self) -> Any:
        return lru_cache(maxsize=2)(partial(_order_of_groups, self._ends))


def _order_of_groups(ends: npt.NDArray[np.int64], key: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how far each group is moved, in a random order of the groups, and where each begins, and the end."""
    order = permuted(mix(key, 1), len(ends), range(len(ends)))
    starts = np.append(0, ends)
    edges = np.append(0, np.cumsum(np.diff(starts)[order]))
    return starts[order] - edges[:-1], edges


class ShuffleStream(OneInputStream, of=Shuffle):
    """The same order over a stream.

    While one window is returned, the rows of the next are collected, one for each, so that no pull waits for a whole
    window. Each takes the slot of a row that was returned, so memory holds little more than one window. Rows that were
    skipped among them are counted when the row is returned for which they were read, regardless of the size of blocks.

    The state is where the window begins in the input, its number, and how many of its rows were returned. Restoring
    reads at most two buffers again.
    """

    def __init__(self, node: Shuffle, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._key = node.key(run, epoch)
        self._buffer = node.buffer_size
        self._piece = max(_FEW, self._buffer // _PIECES)
        self._pace = Pace(minimum=_FEW)
        self._first = node.first_window(self._key)
        own, self._skips = run.ahead()
        self._input = node.input.cursor(own, epoch)
        # The rows that were skipped while collecting: the number of rows collected before, and the notes.
        self._skipped: list[tuple[int, list[Noticed]]] = []
        self._slots = Slots(run.copiers)
        self._collected: list[SlotNumbers] = []
        self._collected_begin: State = None
        self._second_begin: State = None
        # The current window: where it begins in the input, its number, whether its rows have been read, and how many of
        # them were returned.
        self._begin = self._input.state()
        self._window = 0
        self._opened = False
        self._given = 0
        # The number of rows of the next window that were collected before the first of this one was returned.
        self._start = 0
        # The slots of the remaining rows of the window, in order.
        self._left: SlotNumbers = np.empty(0, np.int64)
        # A failure while collecting the next window. It is raised when that window begins, so that its position does
        # not depend on how many rows are pulled at a time.
        self._failure: BaseException | None = None
        self._known = 0

    def pull(self, need: int, allow: int) -> Block | None:
        while not len(self._left):
            if not self._advance():
                return None
        rows = min(allow, len(self._left), self._piece)
        first = self._start + self._given
        self._collect(min(self._buffer, first + rows))
        rows = min(rows, self._count_skipped(first))
        block = self._slots.take(self._left[:rows])
        self._left = self._left[rows:]
        self._given += rows
        return block

    def _count_skipped(self, collected: int) -> int:
        """Count the rows skipped before this many were collected; returns the number of rows up to the next ones."""
        while self._skipped and self._skipped[0][0] <= collected:
            self._skips.count(self._skipped[0][1])
            self._skipped.pop(0)
        return self._skipped[0][0] - collected if self._skipped else self._buffer

    def _collect(self, rows: int) -> None:
        """Read until `rows` rows of the next window are collected, or the input has ended."""
        if not self._collected:
            self._collected_begin = self._input.state()
        left = rows - sum(map(len, self._collected))
        while left > 0 and self._failure is None:
            block = None
            try:
                # Bounded also for an infinite buffer: an infinite input may be cut off by an operator above.
                asked = min(left, self._piece, self._pace.start())
                block = self._input.pull(asked, asked)
                if block is not None:
                    self._pace.stop(block.nbytes, len(block), asked)
                    self._collected.append(self._input.made(block, self._put))
            except failures() as error:
                self._failure = error
            if skipped := self._skips.taken():
                self._skipped.append((rows - left, skipped))
            if block is None:
                return
            left -= len(self._collected[-1])

    def _put(self, rows: Block) -> SlotNumbers:
        return self._slots.put(of_one_kind(self._run, self._node, rows, 0))

    def _advance(self) -> bool:
        """Begin to return the window that was collected; False at the end."""
        number = self._window + 1 if self._opened else self._window
        self._collect(self._first if number == 0 else self._buffer)
        if number == 0 and self._failure is None:
            if self._second_begin is None:
                self._second_begin = self._input.state()
            # One row beyond the buffer shows whether the input is longer.
            self._collect(self._buffer + 1)
        self._count_skipped(self._buffer + 1)
        self._known = self._input.known
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._opened:
            self._given = 0
        self._window, self._opened = number, bool(self._collected)
        if not self._collected:
            self._begin, self._given = self._input.state(), 0
            return False
        slots = np.concatenate(self._collected)
        self._begin, self._collected = self._collected_begin, []
        self._start = 0
        key = mix(self._key, 2, number)
        if number == 0 and len(slots) <= self._buffer:
            key = mix(self._key, 0)
        elif number == 0:
            self._collected, self._collected_begin = [slots[self._first :]], self._second_begin
            self._start = len(slots) - self._first
            slots = slots[: self._first]
        slots = slots[permuted(key, len(slots), range(len(slots)))]
        self._slots.free(slots[: self._given])
        self._left = slots[self._given :]
        return True

    def state(self) -> State:
        return [self._begin, self._known, self._window, self._given]

    def restore(self, state: State) -> None:
        self._begin, self._known, self._window, self._given = state
        self._input.restore_at(self._begin, self._known)
