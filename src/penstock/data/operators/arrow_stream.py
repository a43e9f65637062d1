"""from_arrow_stream: the rows of batches of Arrow that come one after the other, of which one at a time is held."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from penstock.data.block import Block, locked_entries
from penstock.data.element_kinds import of_one_kind
from penstock.data.functions.apply import note
from penstock.data.node import Node, Run
from penstock.data.streams.stream import State, Stream
from penstock.formats import tables
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import failures
from penstock.structure import flatten


class ArrowStream(Node, name="from_arrow_stream"):
    """The rows of the stream that a function opens for each epoch."""

    cardinality = UNKNOWN_CARDINALITY
    spec = None
    spec_from_call = True
    make: Callable[[], Any]
    mask_nulls: Any = field(default=None, repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {"make": self.make}

    @property
    def memory(self) -> str:
        return "holds one batch of the stream"

    def stream(self, run: Run, epoch: int) -> "ArrowRowsStream":
        return ArrowRowsStream(self, run)


class ArrowRowsStream(Stream):
    """The state is the number of rows and failures so far; restoring opens the stream again and drops that many."""

    def __init__(self, node: ArrowStream, run: Run) -> None:
        self._node = node
        self._run = run
        self._batches: Any = None
        self._batch: Any = None
        self._taken = 0
        self._ended = False

    def pull(self, need: int, allow: int) -> Block | None:
        try:
            if not self._loaded():
                return None
        except failures() as error:  # nothing can follow
            note(error, self._node, self._taken)
            self._taken, self._ended = self._taken + 1, True
            raise
        rows = min(allow, len(self._batch))
        while True:
            try:
                block = self._rows(self._batch.slice(0, rows))
            except failures() as error:
                if rows == 1:
                    note(error, self._node, self._taken)
                    self._pass(1)
                    raise
                rows //= 2  # the rows before the one that fails come first
            else:
                self._pass(rows)
                return block

    def _loaded(self) -> bool:
        """True if there is a next row, in the batch that is held."""
        if self._batches is None and not self._ended:
            self._batches = tables.arrow_columns.batches_of(self._node.make())
        while not self._ended and not self._batch:
            self._batch = next(self._batches, None)
            self._ended = self._batch is None
        return not self._ended

    def _rows(self, batch: Any) -> Block:
        call = self._node.name
        batch = tables.nulls.masked(batch, self._node.mask_nulls, call)
        columns, structure = flatten(tables.arrow_columns.as_columns(batch, call=call))
        block = Block(tuple(locked_entries(np.asarray(column)) for column in columns), structure, len(batch))
        return of_one_kind(self._run, self._node, block, self._taken)

    def _pass(self, rows: int) -> None:
        self._batch = self._batch.slice(rows)
        self._taken += rows

    def state(self) -> State:
        return self._taken

    def restore(self, state: State) -> None:
        while self._taken < state and self._loaded():
            self._pass(min(state - self._taken, len(self._batch)))

    def close(self) -> None:
        self._batches, self._batch, self._ended = None, None, True
