"""ignore_errors: the elements that can be made, without those that fail."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.data.block import Block
from penstock.data.node import DependsOn, Run, SameElements
from penstock.data.skipped import SkipNote, belongs_to_row, skipped_row
from penstock.data.streams.live import LiveStream
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.runtime.channel import Closed


@dataclass(frozen=True, eq=False)
class IgnoreErrors(SameElements):
    """The elements of the input, without those that raise an exception.

    Attributes:
        automatic: whether `Options(on_error="skip")` put it here.
    """

    name: ClassVar[str] = "ignore_errors"
    depends_on = DependsOn.ANY
    leaves_out_failures = True
    indexable = False
    log: bool = False
    automatic: bool = field(default=False, repr=False)

    @property
    def cardinality(self) -> int:
        known = self.input.cardinality
        return known if known in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY

    @property
    def identity(self) -> dict[str, Any]:
        return {}  # neither what is logged nor who inserted it matters

    def arguments(self) -> list[str]:
        return ['on_error="skip"'] if self.automatic else super().arguments()

    def stream(self, run: Run, epoch: int) -> "IgnoreErrorsStream":
        return IgnoreErrorsStream(self, run, epoch)


class IgnoreErrorsStream(Stream):
    """The state is the input's, which counts rows and failures; a live stream counts them itself.

    A block never holds rows from both sides of a failure: all failures before a row count when it is given.
    """

    def __init__(self, node: IgnoreErrors, run: Run, epoch: int) -> None:
        self._node = node
        self._skips = run.skips
        self._threads = run.threads
        self._key = run.name_of(node, epoch)
        stream = node.input.open(run, epoch)
        self._cursor = Cursor(stream)
        # A live stream counts its own rows, and gives whole blocks.
        self._live = stream if isinstance(stream, LiveStream) else None
        self._input = self._live or self._cursor
        # States of a live stream before its last block: before the failures in front of that block, and after them.
        self._before: State = None
        self._first: State = None

    def pull(self, need: int, allow: int) -> Block | None:
        if self._live is not None:
            self._before = self._first = self._live.state()
        while True:
            try:
                block = self._input.pull(need, allow)
            except Exception as error:
                self._skip(error)
                continue
            return block

    def _skip(self, error: Exception) -> None:
        """Leave out the row that failed. An exception that is about something else is raised again."""
        if not belongs_to_row(error):
            raise error
        row = skipped_row(error, self._node.input.label, self._node.input.site)
        if self._live is None:
            number = self._number()
        else:
            self._first, number = self._live.state(), self._live.number
        self._skips.add(SkipNote(self._key, number, (row,), (self._node.log,)))
        if self._threads.stopped:  # nobody waits for a row any more, and no further row may ever come
            raise Closed

    def _number(self) -> int:
        """The number of rows and failures so far; a live stream counts them itself, also after a restore."""
        below, rows, met = self._cursor.state()
        return int(below["number"]) + int(rows) if _is_live(below) else int(met)

    def advanced(self, state: State, rows: int) -> State | None:
        if self._live is None or state != self._before:
            return None
        return self._live.advanced(self._first, rows)

    def state(self) -> State:
        if self._live is not None:
            return self._live.state()
        # The same with a prefetch or a map in between, because the element's number counts. Above another
        # ignore_errors it does not: there what has come is fewer than that.
        below, rows, met = state = self._cursor.state()
        return _moved(below, rows) if _is_live(below) and met == below["number"] + rows else state

    def restore(self, state: State) -> None:
        if self._live is None and _is_live(state):
            state = [state, 0, state["number"]]
        elif self._live is not None and not _is_live(state):  # a map that was in between is gone
            below, rows, _ = state
            state = _moved(below, rows)
        self._input.restore(state)

    def unread(self, rows: int) -> None:
        if self._live is None:
            self._cursor.give_back(rows)
        else:
            self._live.unread(rows)

    def close(self) -> None:
        self._input.close()


def _moved(state: State, rows: int) -> State:
    """The state of a live stream, so many rows later."""
    return {**state, "number": state["number"] + rows}


def _is_live(state: State) -> bool:
    return isinstance(state, dict) and "live" in state
