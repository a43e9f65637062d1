"""Streams of operators over one input, and those of operators that call a user's function for each row, in order."""

from abc import abstractmethod
from typing import Generic, TypeVar

from penstock.data.block import Block
from penstock.data.functions.apply import note
from penstock.data.node import OneInput, Run
from penstock.data.origins import source_row
from penstock.data.streams.stream import OneInputStream, RowsBeforeFailure
from penstock.runtime.pacing import Pace

OwnNode = TypeVar("OwnNode", bound=OneInput)


class OperatorStream(OneInputStream, Generic[OwnNode]):
    """A pass of an operator over its one input."""

    def __init__(self, node: OwnNode, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._epoch = epoch
        self._input = node.input.cursor(run, epoch)


class FunctionStream(RowsBeforeFailure, OperatorStream[OwnNode]):
    """A pass of an operator that calls a function for each row.

    The row at which the function fails and those after it are given back to the input: the function is called once for
    each row.
    """

    def __init__(self, node: OwnNode, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._first = run.first(node.input)

    def _fail(self, failure: BaseException, rows: int) -> None:
        """Note that the function failed at the first of the last `rows` rows that were pulled."""
        self._input.give_back(rows)
        position = self._first + self._input.met
        note(failure, self._node, position, source_row(self._node.input, self._run, self._epoch, position))
        self._failure = failure

    def _pass_failed_row(self) -> None:
        self._input.skip(1)


class SelectingStream(FunctionStream[OwnNode]):
    """A pass of an operator that selects rows by a function."""

    def _make(self, need: int, allow: int) -> Block | None:
        pace = Pace(allow, demand=self._run.demand)  # more at a time while none is selected
        while self._failure is None:
            block = self._input.pull(need, pace.start())
            if block is None:
                return None
            selected = self._selected(block)
            if selected is not None:
                return selected
            pace.stop(block.nbytes, len(block))
        return None

    @abstractmethod
    def _selected(self, block: Block) -> Block | None:
        """Return the selected rows, up to the first at which the function fails; None if there are none."""
