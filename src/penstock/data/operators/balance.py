"""balance: rows in an order in which the consecutive slices of each batch cost alike."""

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heapreplace
from operator import add
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.node import DependsOn, Run, SameElements
from penstock.data.operator_streams import OperatorStream
from penstock.data.streams.index_reading import Reading, finished
from penstock.data.streams.stream import State
from penstock.positions import as_positions, by_part
from penstock.runtime.threads import Threads, failures
from penstock.sharding import SliceRule

Costs = npt.NDArray[np.float64]
"""Costs of rows: each has one or several."""


def alike(costs: Costs, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the rows in an order in which consecutive parts of these sizes cost alike; in a part they keep theirs.

    Each row, the costliest first, goes to the part that costs least so far, of those that are not full. Of several
    costs, each as a share of its sum, the largest counts.
    """
    totals = costs.sum(axis=0)
    shares = costs / np.where(totals > 0, totals, 1)
    costliest = np.argsort(-shares.max(axis=1), kind="stable").tolist()
    single = shares.shape[1] == 1
    each = shares[:, 0].tolist() if single else shares.tolist()
    plus, largest = cast(Any, (add, float) if single else (_sums, max))
    loads: list[Any] = [0.0 if single else [0.0] * shares.shape[1]] * len(sizes)  # which are replaced, not changed
    parts: list[list[int]] = [[] for _ in sizes]
    least = [(0.0, number) for number, size in enumerate(sizes) if size]
    for row in costliest:
        number = least[0][1]
        parts[number].append(row)
        if len(parts[number]) == sizes[number]:
            heappop(least)
            continue
        loads[number] = load = plus(loads[number], each[row])
        heapreplace(least, (largest(load), number))
    return np.array([row for part in parts for row in sorted(part)], np.int64)


def slices_alike(costs: Costs, rule: SliceRule) -> npt.NDArray[np.int64]:
    """Return the rows of a batch in an order in which the slices that the rule cuts cost alike."""
    sizes = [stop - start for start, stop in rule.bounds(len(costs))]
    order = alike(costs, sizes)
    if len(set(sizes)) > 1:
        return order
    slices = order.reshape(len(sizes), -1)
    return slices[neighbours_alike(costs[slices].sum(axis=1))].reshape(-1)


def neighbours_alike(costs: Costs) -> npt.NDArray[np.int64]:
    """Return slices in an order in which groups of neighbours cost alike too: the micro-batches of each rank.

    Their number is divided by its prime factors, the smallest first.
    """
    count = len(costs)
    factor = next((number for number in range(2, count) if count % number == 0), count)
    if factor == count:
        return np.arange(count)
    groups = alike(costs, [count // factor] * factor).reshape(factor, -1)
    return np.concatenate([group[neighbours_alike(costs[group])] for group in groups])


def _sums(load: list[float], cost: list[float]) -> list[float]:
    return [one + other for one, other in zip(load, cost, strict=True)]


class Balance(SameElements, name="balance"):
    """The rows of batches in another order: alike in cost are the batches of a window, and the slices of each batch.

    The input gives pairs of `WithCosts`, or of `WithKnownSizes`, whose costs are known without reading rows.
    """

    depends_on = DependsOn.NEIGHBOURS
    balances = True
    not_in_states = ("slices", "rule")  # the order within batches changes no state
    batch_size: int
    slices: int | None = None
    window: int = 1
    rule: SliceRule | None = field(default=None, repr=False, kw_only=True)
    """The rule that cuts batches into slices; None: it is not known here, and batches are not cut."""

    @property
    def priced(self) -> bool:
        """Return whether rows are read to know their costs."""
        return not self.input.has_lengths

    @property
    def memory(self) -> str:
        return f"holds {self.group:,} rows" if self.priced else "moves indices only"

    @property
    def waste(self) -> str:
        if self.rule is None or self.priced or not self.has_lengths or self.cardinality < self.batch_size:
            return ""
        rows = range(min(self.group, self.cardinality) // self.batch_size * self.batch_size)
        costs = self.input.lengths_at(Run(self.input, 0, Threads()), 0, rows).astype(np.float64)[:, None]
        before, now = (self._largest(costs[order, 0]) for order in (np.arange(len(rows)), self.order(costs)))
        return f"the costliest slice of the first batches costs {now:.2f} of the mean, and {before:.2f} before"

    def _largest(self, costs: npt.NDArray[np.float64]) -> float:
        """Return how much the costliest slice of each batch costs, of the mean of all slices."""
        assert self.rule is not None
        starts = [start for start, stop in self.rule.bounds(self.batch_size) if stop > start]
        slices = np.add.reduceat(costs.reshape(-1, self.batch_size), starts, axis=1)
        return float(slices.max(axis=1).mean() / max(slices.mean(), 1e-9))

    @property
    def group(self) -> int:
        """The number of rows that are put in order together."""
        return self.batch_size * self.window

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0][0]

    def order(self, costs: Costs) -> npt.NDArray[np.int64]:
        """Return the rows of a window in their order."""
        batches = [min(self.batch_size, len(costs) - start) for start in range(0, len(costs), self.batch_size)]
        order = alike(costs, batches) if len(batches) > 1 else np.arange(len(costs))
        if self.rule is not None:
            for number, rows in enumerate(batches):
                own = order[number * self.batch_size :][:rows]
                own[:] = own[slices_alike(costs[own], self.rule)]
        return order

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        if self.rule is None and self.window == 1:
            return indices
        found = np.empty(len(indices), np.int64)
        for start, rows, which, positions in self._groups(indices):
            if self.priced:
                costs = finished(self.input.reading(run, epoch, rows), run.bell).columns[-1]
            else:
                costs = self.input.lengths_at(run, epoch, rows).astype(np.float64)[:, None]
            found[which] = self.order(costs)[positions - start] + start
        return found

    def _groups(self, indices: Indices) -> Any:
        """Yield for each window its first row, its rows, and which of the positions are in it, and these."""
        for number, which, positions in by_part(indices, as_positions(indices) // self.group):
            start, length = number * self.group, self.input.cardinality
            stop = start + self.group
            yield start, range(start, min(stop, length) if length >= 0 else stop), which, as_positions(positions)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        if not self.priced or not len(indices):
            return (yield from super().reading(run, epoch, indices)).without_last()
        kept = run.called(self, dict)  # the last window: its batches are read one after the other
        parts = []
        for start, rows, which, positions in self._groups(indices):
            window = kept.get((epoch, start))
            if window is None:
                pairs = yield from self.input.reading(run, epoch, rows)
                window = self.ordered(pairs)
                kept.clear()
                kept[epoch, start] = window
            parts.append((which, window.take(positions - start, run.copiers)))
        return Block.in_places(parts)

    def ordered(self, pairs: Block) -> Block:
        """Return the rows of a window in their order, without their costs."""
        return pairs.take(self.order(pairs.columns[-1])).without_last()


class BalanceStream(OperatorStream[Balance], of=Balance):
    """Windows of a stream. The state is where the window begins in the input, and how many of its rows were given.

    A row that fails divides its window: the rows before it come in their order, then its failure, then those after it.
    """

    def __init__(self, node: Balance, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._begin: State = self._input.state()
        self._rows: Block | None = None
        self._given = 0

    def pull(self, need: int, allow: int) -> Block | None:
        if self._rows is None or self._given == len(self._rows):
            if self._rows is not None:
                self._begin, self._rows, self._given = self._input.state(), None, 0
            self._rows = self._window()
        if self._rows is None:
            return None
        start, self._given = self._given, min(self._given + allow, len(self._rows))
        return self._rows.slice(start, self._given)

    def _window(self) -> Block | None:
        size = self._node.group
        try:
            pairs = self._input.pull_all(size - self._input.met % size)
        except failures():
            self._begin = self._input.state()
            raise
        return None if pairs is None else self._node.ordered(pairs)

    def state(self) -> State:
        ended = self._rows is not None and self._given == len(self._rows)
        return [self._input.state(), 0] if ended else [self._begin, self._given]

    def restore(self, state: State) -> None:
        self._begin, self._given = state
        self._input.restore(self._begin)
