"""Streams: passes over the elements of a node. The top of `node.py` lists the rules that all of them keep."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from penstock.data.block import Block
from penstock.runtime.copying import Copiers
from penstock.runtime.threads import failures
from penstock.statistics.collected import NO_METER, Meter

_logger = logging.getLogger(__name__)

_ANY = 1 << 62

Made = TypeVar("Made")
State = Any
"""Plain data: None, booleans, integers, floats, strings, lists and dictionaries of them."""


class Stream(ABC):
    """A pass over a node's epoch. See the rules at the top of `node.py`.

    Attributes:
        same_rows: whether each row and failure corresponds to one of the input's, and the states are those of the
            cursor that it reads.
        meter: measures each pull.
    """

    same_rows: bool = False
    meter: Meter = NO_METER

    def __init_subclass__(cls, of: Any = None) -> None:
        """Make this the class of the streams of a class of nodes."""
        super().__init_subclass__()
        if of is not None:
            of.stream_class = cls

    @abstractmethod
    def pull(self, need: int, allow: int) -> Block | None:
        """Return the next rows, at least one and about `allow`; None at the end."""

    @abstractmethod
    def state(self) -> State:
        """Return the position after the last block that `pull` returned."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a state; only on a stream that has not been pulled."""

    def fits(self, state: State) -> bool:
        """Return whether `restore` can continue from a state; if not, the rows before it are read again."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Stop everything that runs for this stream and for its inputs."""

    @property
    def at_end(self) -> bool:
        """Return whether it is known, without reading, that no more rows come."""
        return False

    def advanced(self, state: State, rows: int) -> State | None:
        """Return the state `rows` rows after `state`, where that is known without reading them."""
        return None

    def skip(self, rows: int) -> int:
        """Skip up to `rows` rows without reading them, where that is possible; returns how many were skipped."""
        return 0

    def unread(self, rows: int) -> None:  # noqa: B027  # optional: most streams ignore it
        """Note that the last `rows` rows that `pull` returned are not used, and nothing more is pulled."""

    @property
    def inputs(self) -> "tuple[Stream, ...]":
        """The streams below that are read from beginning to end, to which `run_ahead` and `when_drained` apply too."""
        return ()

    def run_ahead(self) -> None:
        """Start the calls below for which there is room, before anything is pulled."""
        for below in self.inputs:
            below.run_ahead()

    def waits_for(self) -> str:
        """Say in words what `pull` waits for: its operator, where it has one."""
        node = getattr(self, "_node", None)
        return "" if node is None else str(node.where())

    def when_drained(self, then: Callable[[], None]) -> None:
        """Let `pull` call `then` when calls below have begun for all remaining rows and there is room for more."""
        for below in self.inputs:
            below.when_drained(then)


class Cursor(Stream):
    """A stream that can be stopped between any two rows, not only between its blocks.

    The state is [state, rows, met]: a state of the stream below (None: its beginning), how many rows after it were
    returned, and the total number of rows and failures before it. `restore` reads those rows again and drops them (over
    an index stream, it only moves the position).

    Over a stream with `same_rows`, the state is that of the cursor that this stream reads: so no state depends on
    whether such a stream is in between.

    Ctrl-C may end a pull anywhere: the state is then that before the pull.

    A stream that reads rows a second time when it is restored does so by `restore_at`: a failure that was raised before
    the state was taken is not raised again when the rows around it are read again.

    Attributes:
        met: the number of rows and failures so far, without the rows that were given back.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pull = stream.meter.measuring(stream.pull)
        self._before: State = None
        self._block: Block | None = None
        self._offset = 0
        self._pulling = False
        # Whether the next pull repeats the last one's failure, or None, the end.
        self._withholds = False
        self._withheld: BaseException | None = None
        self._ended = self._closed = False
        # The most results that `made` makes together: few after a failure, because others may be near.
        self._together = _ANY
        self.met, self._known = 0, -1

    @property
    def inputs(self) -> tuple[Stream, ...]:
        return (self._stream,)

    @property
    def ready(self) -> int:
        """The number of rows that were read and not returned."""
        return 0 if self._block is None else self._block.length - self._offset

    @property
    def at_end(self) -> bool:
        return not (self.ready or self._withholds) and (self._ended or self._stream.at_end)

    def pull(self, need: int, allow: int) -> Block | None:
        while True:
            try:
                return self._next(need, allow)
            except failures() as error:
                if self.met > self._known:
                    raise
                _logger.debug("passed over a failure that was raised before: %r", error)

    def _next(self, need: int, allow: int) -> Block | None:
        """Return the next rows, or raise the next failure, also one that was raised before."""
        if self._withholds:
            failure, self._withheld, self._withholds = self._withheld, None, False
            if failure is None:
                return None
            self.met += 1
            raise failure
        block, start = self._block, self._offset
        if block is None or start == block.length:
            if self._ended:  # in a chain of streams, each pulls again at its end
                return None
            block = self._block = None  # its memory can serve the next one
            self._before = self._stream.state()
            self._pulling = True
            try:
                block = self._pull(need, allow)
            except failures():
                self.met += 1
                self._offset, self._pulling = 1, False  # a failure counts as a row, for `state_before`
                raise
            if block is None:
                self._ended, self._pulling = True, False
                return None
            if block.length <= allow:
                self.met += block.length
                self._block, self._offset, self._pulling = block, block.length, False
                return block
            start = 0
        stop = min(start + allow, block.length)
        self.met += stop - start
        self._block, self._offset, self._pulling = block, stop, False
        return block.slice(start, stop)

    def pull_all(self, rows: int, copiers: Copiers | None = None) -> Block | None:
        """Return this many rows; fewer before one that fails, whose failure comes next, or before the end."""
        parts: list[Block] = []
        while rows > 0:
            try:
                block = self.pull(rows, rows)
            except failures() as error:
                if not parts:
                    raise
                self.withhold(error)
                break
            if block is None:
                break
            parts.append(block)
            rows -= len(block)
        return Block.concatenate(parts, copiers) if parts else None

    def give_back(self, rows: int) -> None:
        """Let the next `pull` return the last `rows` rows of the last block again."""
        self._offset -= rows
        self.met -= rows

    def withhold(self, failure: BaseException | None) -> None:
        """Let the next `pull` repeat a failure that `pull` has just raised, or the end."""
        self._withheld, self._withholds = failure, True
        self.met -= failure is not None

    def made(self, rows: Block, make: Callable[[Block], Made], each: int = 1) -> Made:
        """Return the result of `make` for the rows that `pull` returned last, or the first of them.

        The others are given back. Where `make` fails, fewer rows are tried. So a result that fails costs its own rows
        alone: those before it come first, then its failure, then those after it.

        Args:
            rows: at least `each` rows.
            make: makes a result of every `each` rows. When it fails, it has changed nothing.
        """
        count = min(len(rows) // each, self._together)
        while True:
            try:
                made = make(rows.slice(0, count * each))
            except failures():
                self._together = count = count // 2
                if not count:
                    self.give_back(len(rows) - each)
                    self._together = 1
                    raise
            else:
                self.give_back(len(rows) - count * each)
                self._together = min(2 * self._together, _ANY)
                return made

    def skip(self, rows: int) -> int:
        """Skip up to `rows` rows, reading them if need be; returns how many there were."""
        begun = self.met
        ready = min(rows, self.ready)
        self._offset += ready
        self.met += ready
        if ready < rows:
            self.met += self._stream.skip(rows - ready)
        while (left := rows - (self.met - begun)) > 0 and self.pull(left, left) is not None:
            pass
        return self.met - begun

    def state(self) -> State:
        if self._pulling or self._withholds:
            return self._after(self._before, 0, self.met)
        if self._block is not None and self._offset < self._block.length:
            return self._after(self._before, self._offset, self.met)
        state = self._stream.state()
        return state if self._stream.same_rows else [state, 0, self.met]

    def _after(self, before: State, rows: int, met: int) -> State:
        """Return the state `rows` rows after one of the stream below, when `met` rows and failures were met."""
        return self.later(before if self._stream.same_rows else [before, 0, met - rows], rows)

    def later(self, state: State, rows: int) -> State:
        """Return the state `rows` rows after one of this cursor's, if none failed in between."""
        before, passed, met = state
        moved = None if self._stream.same_rows else self._stream.advanced(before, passed + rows)
        return [before, passed + rows, met + rows] if moved is None else [moved, 0, met + rows]

    def state_before(self, rows: int) -> State:
        """Return the state before the last `rows` rows of the last block, or before the failure that `pull` raised."""
        return self._after(self._before, self._offset - rows, self.met - rows) if rows else self.state()

    def restore(self, state: State) -> None:
        position, rows, met = state
        if self._stream.same_rows:
            self._stream.restore(state)
            self.met = met
            return
        if position is not None and not self._stream.fits(position):
            position, rows = None, met
        if position is not None:
            self._stream.restore(position)
        self.met = met - rows
        while self.met < met:
            before = self.met
            try:
                self.skip(met - self.met)
            except failures() as error:
                if position is not None:  # these rows did not fail before
                    raise
                _logger.debug("passed over a failure that was raised before: %r", error)
            if self.met == before:  # the stream has become shorter
                return

    @property
    def known(self) -> int:
        """The number of rows and failures that were met, here or before the state that was restored."""
        return max(self.met, self._known)

    @property
    def repeating(self) -> bool:
        """Return whether the next row or failure was met before."""
        return self.met < self._known

    def repeat(self) -> Block | BaseException:
        """Return the next rows of those that were met before, or the failure of one."""
        left = self._known - self.met
        try:
            block = self._next(left, left)
        except failures() as error:
            _logger.debug("a failure came again: %r", error)
            return error
        assert block is not None
        return block

    def restore_at(self, state: State, known: int) -> None:
        """Continue from a state; rows and failures up to number `known` were met before."""
        self.restore(state)
        self._known = known

    def close(self) -> None:
        if self._closed:  # many streams close their input at its end already
            return
        self._closed = True
        if self.ready:
            self._stream.unread(self.ready)
        self._stream.close()


class RowsBeforeFailure(Stream):
    """A stream that makes several rows at a time: where one fails, the rows before it are returned first.

    The failure comes with the next pull. Until then the state is that before the failing row, so an iteration that is
    restored from it meets the failure again.
    """

    _failure: BaseException | None = None

    def pull(self, need: int, allow: int) -> Block | None:
        if self._failure is None:
            block = self._make(need, allow)
            if block is not None or self._failure is None:
                return block
        failure, self._failure = self._failure, None
        self._pass_failed_row()
        raise failure

    @abstractmethod
    def _make(self, need: int, allow: int) -> Block | None:
        """Return the next rows, up to the first that fails: its exception is put into `_failure`."""

    @abstractmethod
    def _pass_failed_row(self) -> None:
        """Move to the row after the one that failed: its failure is about to be raised."""


class OneInputStream(Stream):
    """A stream over one input, whose rows it takes by a cursor; its state is that cursor's, unless it has more.

    Attributes:
        counts: the names of its attributes, numbers or truth values, that are in its state beside that of the input.
    """

    counts: ClassVar[tuple[str, ...]] = ()
    _input: Cursor

    @property
    def inputs(self) -> tuple[Stream, ...]:
        return (self._input,)

    def state(self) -> State:
        position = self._input.state()
        return [position, *(getattr(self, name) for name in self.counts)] if self.counts else position

    def restore(self, state: State) -> None:
        if self.counts:
            state, *found = state
            for name, value in zip(self.counts, found, strict=True):
                setattr(self, name, value)
        self._input.restore(state)

    def close(self) -> None:
        self._input.close()
