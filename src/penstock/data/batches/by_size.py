"""batch_by: batches of as many rows as fit into a budget."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.batches.padded import PaddedBatch
from penstock.data.block import Block
from penstock.data.functions.apply import note
from penstock.data.node import EVERYTHING, Origins, Run, any_number, derived
from penstock.data.operator_streams import OperatorStream
from penstock.data.origins import source_row
from penstock.data.streams.stream import State
from penstock.errors import ElementError
from penstock.runtime.threads import failures


class BatchBy(PaddedBatch, name="batch_by"):
    """Consecutive rows, as many as fit into a budget, padded to one shape. The input gives pairs of `WithCosts`."""

    keeps_numbers = False
    indexable = False
    fails = True
    rows_per_batch = 0
    rows = None
    lengths = None
    budget: float = field(kw_only=True)
    multiple_of: int = field(default=1, kw_only=True)

    @derived
    def cardinality(self) -> int:
        return any_number(self.input)

    def arguments(self) -> list[str]:
        most = [f"max_rows={self.batch_size}"] if self.batch_size < EVERYTHING // self.multiple_of else []
        return [*(one for one in super().arguments() if not one.startswith("batch_size=")), *most]

    def spec_over(self, *inputs: Any) -> Any:
        return self.spec_of_batches(inputs[0][0])

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield from ()


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
                    raise self._too_large(rows, size)
                self._kept = rows
                break
            parts.append(rows)
        if not parts:
            return None
        block = Block.concatenate(parts, copiers).without_last()
        return node.numbered(block, len(block), self._input.met - len(block))

    def _too_large(self, rows: Block, size: float) -> ElementError:
        first = self._input.met - len(rows)
        what = "a row" if len(rows) == 1 else f"{len(rows)} rows, which are in one batch by multiple_of,"
        error = ElementError(
            f"batch_by: {what} of size {size:g} is more than the budget of {self._node.budget:g}: raise the budget, or "
            "cut or filter such rows before"
        )
        note(error, self._node, first, source_row(self._node.input, self._run, self._epoch, first))
        return error

    def state(self) -> State:
        return self._input.state() if self._kept is None else self._before
