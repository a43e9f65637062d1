"""batch_by: batches of as many rows as fit into a budget."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.batches.padded import PaddedBatch
from penstock.data.block import Block, Indices
from penstock.data.functions.apply import note
from penstock.data.node import EVERYTHING, Node, Origins, Run, any_number, derived
from penstock.data.operator_streams import OperatorStream
from penstock.data.operators.balance import Balance, slices_alike
from penstock.data.origins import source_row
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import State
from penstock.errors import ElementError
from penstock.positions import as_positions, by_part
from penstock.runtime.threads import Threads, failures
from penstock.sharding import SliceRule

_PIECE: Final = 1 << 20
"""The rows whose sizes are in memory at a time while batches are planned."""


class BatchBy(PaddedBatch, name="batch_by"):
    """Consecutive rows, as many as fit into a budget, padded to one shape.

    The input gives pairs of a row and its size. Where it knows the sizes without reading, and its order is the same in
    every epoch, batches are read by their numbers.
    """

    keeps_numbers = False
    not_in_states = (*PaddedBatch.not_in_states, "slices", "balances", "rule")
    fails = True
    rows_per_batch = 0
    rows = None
    lengths = None
    budget: float = field(kw_only=True)
    multiple_of: int = field(default=1, kw_only=True)
    slices: int | None = field(default=None, kw_only=True)
    balances: bool = field(default=False, repr=False, kw_only=True)
    """Whether the rows of a batch are in an order in which its slices have alike sizes."""
    rule: SliceRule | None = field(default=None, repr=False, kw_only=True)
    """The rule that cuts batches into slices, where it is known and rows are balanced."""

    @property
    def slices_alike(self) -> bool:
        return self.rule is None and super().slices_alike

    @derived
    def indexable(self) -> bool:
        node = self.input
        return node.has_lengths and node.cardinality >= 0 and not (node.varies or node.unseeded)

    @derived
    def cardinality(self) -> int:
        return len(self._begins) - 1 if self.indexable else any_number(self.input)

    @property
    def identity(self) -> dict[str, Any]:
        plan = hashlib.blake2b(self._begins.tobytes(), digest_size=8).hexdigest() if self.indexable else ""
        return {**(super().identity or {}), "plan": plan}

    @cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        """The first row of each batch, and the number of all rows.

        Raises:
            ElementError: a row that is larger than the budget.
        """
        whole, multiple = self.input.cardinality, self.multiple_of
        run, piece, first = Run(self.input, 0, Threads()), -(-_PIECE // multiple) * multiple, 0
        parts = [np.zeros(1, np.int64)]
        while first < whole:
            rows = range(first, min(first + piece, whole))
            groups = np.add.reduceat(self.input.lengths_at(run, 0, rows), range(0, len(rows), multiple))
            edges = np.append(0, np.cumsum(groups))
            ends = np.searchsorted(edges, edges[:-1] + min(int(self.budget), EVERYTHING), side="right") - 1
            ends = np.minimum(ends, np.arange(len(groups)) + self.batch_size // multiple)
            (large,) = np.nonzero(ends == np.arange(len(groups)))
            if len(large):
                group = int(large[0])
                count = min(multiple, len(rows) - group * multiple)
                raise self.too_large(count, int(groups[group]), first + group * multiple, run, 0)
            found, end, following = [], 0, ends.tolist()
            while end < len(following) and (following[end] < len(following) or rows.stop == whole):
                end = following[end]
                found.append(end)
            parts.append(np.minimum(first + np.array(found, np.int64) * multiple, rows.stop))
            first, piece = int(parts[-1][-1]) if found else first, piece if found else piece * 2
        return np.concatenate(parts)

    def too_large(self, rows: int, size: float, first: int, run: Run, epoch: int) -> ElementError:
        """Return the error of rows that are larger than the budget; `first` is the number of the first."""
        what = "a row" if rows == 1 else f"{rows} rows, which are in one batch by multiple_of,"
        error = ElementError(
            f"batch_by: {what} of size {size:g} is more than the budget of {self.budget:g}: raise the budget, or "
            "cut or filter such rows before"
        )
        note(error, self, first, source_row(self.input, run, epoch, first))
        return error

    def arguments(self) -> list[str]:
        most = [f"max_rows={self.batch_size}"] if self.batch_size < EVERYTHING // self.multiple_of else []
        return [*(one for one in super().arguments() if not one.startswith("batch_size=")), *most]

    def spec_over(self, *inputs: Any) -> Any:
        return super().spec_over(inputs[0][0])

    def batches(self, block: Block, size: int) -> Block:
        if self.rule is not None:
            block = block.take(self._order(block.columns[-1], [size] * (len(block) // size)))
        return super().batches(block.without_last(), size)

    def _order(self, sizes: npt.NDArray[Any], batches: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return the rows of batches with these numbers of rows in their order."""
        order = np.arange(len(sizes))
        if self.rule is not None:
            end = 0
            for rows in batches:
                start, end = end, end + rows
                order[start:end] = start + slices_alike(sizes[start:end], self.rule)
        return order

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        if self.indexable:
            begins, counts = self._begins[positions], self._begins[positions + 1] - self._begins[positions]
            first_places = np.cumsum(counts) - counts
            rows = np.arange(counts.sum()) + np.repeat(begins - first_places, counts)
            order = self._order(self.input.lengths_at(run, epoch, rows)[:, None], counts)
            yield self.input, epoch, np.repeat(np.arange(len(positions)), counts), rows[order]

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        if not len(indices):
            return (yield from self._read(run, epoch, 0, range(0), 1))
        numbers = as_positions(indices)
        begins, parts = self._begins[numbers], []
        for rows, which, firsts in by_part(begins, self._begins[numbers + 1] - begins):
            parts.append((which, (yield from self._read(run, epoch, int(numbers[which[0]]), firsts, rows))))
        return Block.in_places(parts)


class BatchByStream(OperatorStream[BatchBy], of=BatchBy):
    """Batches by size. Rows that did not fit any more are kept for the next batch, and the state is that before them.

    A row that fails ends the batch before it.
    """

    def __init__(self, node: BatchBy, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._kept: Block | None = None
        self._before: State = None

    def pull(self, need: int, allow: int) -> Block | None:
        node, copiers = self._node, self._run.copiers
        parts: list[Block] = []
        size = 0.0
        while sum(map(len, parts)) < node.batch_size:
            rows, self._kept = self._kept, None
            if rows is None:
                self._before = self._input.state()
                try:
                    rows = self._input.pull_all(node.multiple_of, copiers)
                except failures() as error:
                    if not parts:
                        raise
                    self._input.withhold(error)
            if rows is None:
                break
            size += float(rows.columns[-1].sum())
            if size > node.budget:
                if not parts:
                    first = self._input.met - len(rows)
                    raise node.too_large(len(rows), size, first, self._run, self._epoch)
                self._kept = rows
                break
            parts.append(rows)
        if not parts:
            return None
        block = Block.concatenate(parts, copiers)
        return node.numbered(block, len(block), self._input.met - len(block))

    def state(self) -> State:
        return self._input.state() if self._kept is None else self._before


def balanced(node: Node, rule: SliceRule) -> Node | None:
    """Return a node that balances slices whose number is not given, with the rule that cuts them; None for others."""
    if isinstance(node, (Balance, BatchBy)) and node.balances and node.slices is None:
        return replace(node, rule=rule)
    return None
