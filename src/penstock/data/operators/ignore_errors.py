"""ignore_errors: the elements of the input, without those that fail."""

from dataclasses import field
from typing import Any

from penstock.data.block import Block
from penstock.data.node import DependsOn, Run, SameElements, derived
from penstock.data.skipped import SkipNote, belongs_to_row, skipped_row
from penstock.data.streams.live_streams import LiveStream
from penstock.data.streams.stream import Cursor, OneInputStream, State
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures


class IgnoreErrors(SameElements, name="ignore_errors"):
    """The elements of the input, without those that raise an exception.

    Attributes:
        automatic: whether `Options(on_error="skip")` inserted it.
    """

    depends_on = DependsOn.ANY
    leaves_out_failures = True
    indexable = False
    log: bool = False
    automatic: bool = field(default=False, repr=False)

    @derived
    def cardinality(self) -> int:
        known = self.input.cardinality
        return known if known in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY

    @property
    def identity(self) -> dict[str, Any]:
        return {}  # neither `log` nor `automatic` changes elements

    def arguments(self) -> list[str]:
        return ['on_error="skip"'] if self.automatic else super().arguments()


class IgnoreErrorsStream(OneInputStream, of=IgnoreErrors):
    """The state is the input's, which counts rows and failures; above a live stream it is that stream's own.

    A block never holds rows from both sides of a failure: all failures before a row count when it is returned.
    """

    def __init__(self, node: IgnoreErrors, run: Run, epoch: int) -> None:
        self._node = node
        self._skips = run.skips
        self._threads = run.threads
        self._key = run.name_of(node, epoch)
        stream = node.input.open(run, epoch)
        self._above_live = isinstance(stream, LiveStream)
        self._input = Cursor(stream)
        # The states before the failures ahead of the last block, and after them.
        self._before = self._first = self._input.state()

    def pull(self, need: int, allow: int) -> Block | None:
        self._first = self._input.state()
        self._before = self._bare(self._first)
        while True:
            try:
                return self._input.pull(need, allow)
            except failures() as error:
                self._skip(error)
            self._first = self._input.state()

    def _skip(self, error: BaseException) -> None:
        """Skip the row that failed; raise an exception that does not belong to a row."""
        if not belongs_to_row(error):
            raise error
        row = skipped_row(error, self._node.input.label, self._node.input.site, log=self._node.log)
        below, rows, met = self._input.state()
        # A live stream counts rows and failures itself, also after a restore.
        self._skips.add(SkipNote(self._key, below["number"] + rows if _is_live(below) else met, (row,)))
        self._skips.check()
        if self._threads.stopped:  # the consumer has stopped, and there may be no further row
            raise Closed

    def advanced(self, state: State, rows: int) -> State | None:
        return self._bare(self._input.later(self._first, rows)) if state == self._before else None

    def state(self) -> State:
        return self._bare(self._input.state())

    def _bare(self, state: State) -> State:
        """Return a state of the cursor; above a live stream the one of that stream, which holds the next number.

        It is the same with a prefetch or a map in between, as long as elements have the same numbers there.
        """
        below, rows, met = state
        if not _is_live(below) or not (self._above_live or met == below["number"] + rows):
            return state
        return {**below, "number": below["number"] + rows}

    def restore(self, state: State) -> None:
        self._input.restore([state, 0, state["number"]] if _is_live(state) else state)

    def unread(self, rows: int) -> None:
        self._input.give_back(rows)


def _is_live(state: State) -> bool:
    return isinstance(state, dict) and "live" in state
