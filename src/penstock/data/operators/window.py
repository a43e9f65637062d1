"""window: datasets of neighbouring elements."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices, object_column
from penstock.data.node import ByIndex, DependsOn, Origins, Run, derived, scaled, spans
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import State
from penstock.positions import as_positions, compact
from penstock.spec import TensorSpec
from penstock.structure import LEAF, map_structure

_TOGETHER = 256
"""The most windows of a stream that are made together, because a block of datasets hides the size of their rows."""


class Window(ByIndex, name="window"):
    """Datasets of `size` elements each, `stride` apart; a new one begins every `shift` elements.

    The rows of many windows are read together, and each window is a view of them.
    """

    depends_on = DependsOn.NEIGHBOURS
    not_in_states = ("dataset_of",)
    fails = False
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    dataset_of: Callable[[Block], Any] = field(repr=False)

    @property
    def span(self) -> int:
        """The number of elements of the input that a full window spans."""
        return (self.size - 1) * self.stride + 1

    @derived
    def cardinality(self) -> int:
        if self.drop_remainder:
            return scaled(self.input.cardinality, lambda n: max(0, (n - self.span) // self.shift + 1))
        return scaled(self.input.cardinality, lambda n: -(-n // self.shift))

    def spec_over(self, *inputs: Any) -> Any:
        return map_structure(lambda leaf: TensorSpec((), object), inputs[0])  # a dataset instead of each leaf

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield spans(self.input, epoch, positions * self.shift, range(0, self.span, self.stride))

    def windows(self, rows: Block, parts: Iterable[Indices]) -> Block:
        """Return the windows of these rows of a block."""
        taken = [rows.take(part) for part in parts]
        leaves = [
            object_column([self.dataset_of(Block((part.columns[number],), LEAF, len(part))) for part in taken])
            for number in range(len(rows.columns))
        ]
        return Block(tuple(leaves), rows.structure, len(taken))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        begins = as_positions(indices) * self.shift
        if not len(begins):
            return self.windows((yield from self.input.reading(run, epoch, range(0))), [])
        _, _, windows, rows = spans(self.input, epoch, begins, range(0, self.span, self.stride))
        wanted, places = np.unique(rows, return_inverse=True)
        block = yield from self.input.reading(run, epoch, compact(wanted))
        edges = np.searchsorted(windows, np.arange(1, len(begins)))
        return self.windows(block, map(compact, np.split(places, edges)))


class WindowStream(OperatorStream[Window], of=Window):
    """The state is the input's where the next window begins: its rows are read again."""

    def __init__(self, node: Window, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        # The rows from the next window on, and their blocks: the input's state before each block, and its number of
        # rows. The first rows of the first block may be dropped already.
        self._rows: Block | None = None
        self._blocks: deque[tuple[State, int]] = deque()
        self._dropped = 0
        # The number of rows between the last row that was read and the next window.
        self._gap = 0

    @property
    def _left(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def pull(self, need: int, allow: int) -> Block | None:
        node, allow = self._node, min(allow, _TOGETHER)
        while self._gap:
            passed = self._input.pull(self._gap, self._gap)
            if passed is None:
                return None
            self._gap -= len(passed)
        while self._left < node.span and self._read((min(need, allow) - 1) * node.shift, (allow - 1) * node.shift):
            pass
        if self._rows is None or (node.drop_remainder and self._left < node.span):
            return None
        full = 1 + (self._left - node.span) // node.shift
        # At the end of the input windows are not full, and each needs a separate block.
        starts = range(0, max(1, min(full, allow)) * node.shift, node.shift)
        parts = [range(start, min(start + node.span, self._left), node.stride) for start in starts]
        windows = node.windows(self._rows, parts)
        self._drop(len(starts) * node.shift)
        return windows

    def _read(self, needed: int, allowed: int) -> bool:
        """Read one window and this many more rows; False at the end of the input."""
        missing = self._node.span - self._left
        before = self._input.state()
        block = self._input.pull(missing + needed, missing + allowed)
        if block is None:
            return False
        self._blocks.append((before, len(block)))
        self._rows = block if self._rows is None else Block.concatenate([self._rows, block])
        return True

    def _drop(self, rows: int) -> None:
        assert self._rows is not None
        self._gap = max(0, rows - self._left)
        self._rows = self._rows.slice(rows, self._left) if rows < self._left else None
        if self._rows is None:
            self._blocks.clear()
            self._dropped = 0
            return
        self._dropped += rows
        while self._dropped >= self._blocks[0][1]:
            self._dropped -= self._blocks.popleft()[1]

    def state(self) -> State:
        if self._blocks:
            return [self._blocks[0][0], self._input.known, self._dropped]
        return [self._input.state(), self._input.known, self._gap]

    def restore(self, state: State) -> None:
        input_state, known, self._gap = state
        self._input.restore_at(input_state, known)
