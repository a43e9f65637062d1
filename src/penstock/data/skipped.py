"""The rows that an iteration skipped because they failed: their positions, their number, and each counted once.

A row that failed is identified by its *pass* (one pass over an `ignore_errors`, whose name is the same in an iteration
restored from a state) and by its number there. The state includes how far each pass was counted, so that rows which are
read again, because a state was restored or because two nodes read the same input, count once.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from zlib import crc32

from penstock.errors import (
    BusyError,
    CardinalityError,
    ElementError,
    InvalidTypeError,
    PenstockError,
    PoisonError,
    TooManySkippedError,
)
from penstock.printing import text_of_error
from penstock.runtime.channel import Closed

_logger = logging.getLogger(__name__)

KEPT_ROWS = 100
"""How many skipped rows are kept with their errors; the others are only counted."""
LOGGED_ROWS = 20
"""How many skipped rows of an iteration are logged one by one."""
_NAMED_ROWS = 3
_TEXT_LENGTH = 200
_DIGESTS = 1 << 32
# Only what a restored iterator may read again needs to be known: the passes that failed last.
_KNOWN_PASSES = 1000

MADE_OF = "penstock: made of "
"""Begins a node's note in an exception about the row of a source from which the failing element was made."""
# A node's note in an exception about the row at which it failed.
_NOTE = re.compile(r"penstock: in (?P<node>.+) at (?P<site>.+?:\d+)(?:, element (?P<element>.+))?", re.DOTALL)


@dataclass(frozen=True)
class SkippedRow:
    """A row that was skipped.

    Attributes:
        node: the node whose function or source failed.
        site: the line that added the node, "file.py:12"; "" where that is not known.
        position: the number of the element that failed there, from 0; None where the node does not count them.
        error: the exception's class and message, shortened.
        source: the row of a source from which the element was made, if a shuffle, for instance, has given it another
            number, and its file if that is known; "" otherwise.

    Example:
        >>> import penstock as ps
        >>> iterator = iter(ps.Dataset.range(-1, 2).map(lambda x: 1 / int(x)).ignore_errors(log=False))
        >>> [float(x) for x in iterator], iterator.errors.rows[0].error
        ([-1.0, 1.0], 'ZeroDivisionError: division by zero')
    """

    node: str
    site: str
    position: int | None
    error: str
    source: str = ""
    log: bool = field(default=False, repr=False, compare=False, kw_only=True)
    """Whether the log names it."""

    def __str__(self) -> str:
        where = "" if self.position is None else f"element {self.position} of "
        source = f", made of {self.source}" if self.source else ""
        return f"{where}{self.node}{' at ' + self.site if self.site else ''}{source}: {self.error}"


@dataclass(frozen=True)
class SkippedRows:
    """The rows that an iteration has skipped so far.

    Attributes:
        count: how many rows.
        rows: the first of them, up to 100.
        digest: a number that stands for which rows they were, the same on every worker.

    Example:
        >>> import penstock as ps
        >>> iterator = iter(ps.Dataset.range(3).map(lambda x: 6 // x).ignore_errors(log=False))
        >>> [int(x) for x in iterator], iterator.errors.count, iterator.errors.rows[0].position
        ([6, 3], 1, 0)
    """

    count: int = 0
    rows: tuple[SkippedRow, ...] = ()
    digest: int = field(default=0, repr=False, compare=False)

    def __str__(self) -> str:
        if not self.count:
            return "no rows skipped"
        rows = [f"  {row}" for row in self.rows]
        more = [f"  and {self.count - len(rows)} more"] if self.count > len(rows) else []
        return "\n".join([_rows(self.count) + " skipped", *rows, *more])


def skipped_row(error: BaseException, node: str, site: str, *, log: bool = False) -> SkippedRow:
    """Return the row of an exception by its notes; without them, a row of this node at an unknown position."""
    found = _noted(error)
    if found is None:
        return SkippedRow(_shortened(node), site, None, _shortened(text_of_error(error)), log=log)
    element = found["element"]
    position = int(element) if element and element.isdecimal() else None
    source = next((str(one) for one in error.__notes__ if str(one).startswith(MADE_OF)), MADE_OF)
    source = _shortened(source.removeprefix(MADE_OF))
    return SkippedRow(
        _shortened(found["node"]), found["site"], position, _shortened(text_of_error(error)), source, log=log
    )


def skipped_rows(snapshot: Any) -> SkippedRows:
    """Return the rows of a snapshot of a `SkipLog`."""
    if snapshot is None:
        return SkippedRows()
    rows = tuple(SkippedRow(*row) for row in snapshot["rows"])
    return SkippedRows(snapshot["count"], rows, snapshot.get("digest", 0))


def together(several: Iterable[SkippedRows]) -> SkippedRows:
    """Return the rows that several iterations have skipped, together."""
    several = list(several)
    rows = tuple(chain.from_iterable(skipped.rows for skipped in several))
    digest = sum(skipped.digest for skipped in several) % _DIGESTS
    return SkippedRows(sum(skipped.count for skipped in several), rows[:KEPT_ROWS], digest)


_ALSO_OF_A_ROW: Final = {("asyncio.exceptions", "CancelledError"), ("pyo3_runtime", "PanicException")}
"""Raised by a call for one row without being an `Exception`: a cancelled request, a panic of Rust code."""


class ProgramError(InvalidTypeError):
    """A mistake in the program, found in a call of its function: every row would fail."""


def belongs_to_row(error: BaseException) -> bool:
    """Return whether an exception is about a row, not about the program, other processes or an iterator's end."""
    if not isinstance(error, Exception):
        return any((kind.__module__, kind.__name__) in _ALSO_OF_A_ROW for kind in type(error).__mro__)
    if isinstance(error, (BusyError, Closed, CardinalityError, ProgramError)):
        return False
    if not isinstance(error, PenstockError) or isinstance(error, (ElementError, PoisonError)):
        return True
    return _noted(error) is not None


@dataclass(frozen=True)
class SkipNote:
    """A note that rows were skipped: one, or all that another process has skipped before an element.

    Attributes:
        key: names the pass.
        number: how many rows and failures the pass has met, these included; no two notes have the same.
        rows: the first of them, at least one. The last one stands for those that are not here.
        count: how many there are.
    """

    key: str
    number: int
    rows: tuple[SkippedRow, ...]
    count: int = 1

    @property
    def digest(self) -> int:
        """A number that stands for the note."""
        return crc32(f"{self.number} of {self.key}".encode())


Noticed = SkipNote | int
"""A note taken while rows are read ahead, which counts when they are given: skipped rows, or the place of a source."""


class Skips:
    """The rows that were skipped, each counted once though it may be read again, or in two places.

    Args:
        limit: the most rows that may be skipped; None for any number.

    Attributes:
        rows: the rows skipped so far, or since `take`.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.rows = SkippedRows()
        # How far each pass was counted.
        self._passes: OrderedDict[str, int] = OrderedDict()
        self._refused = 0

    def knows(self, note: SkipNote) -> bool:
        """Return whether a note was counted already."""
        return note.number <= self._passes.get(note.key, 0)

    def add(self, note: SkipNote) -> bool:
        """Count the rows of a note; False if they were counted already."""
        if self.knows(note):
            return False
        self._passes[note.key] = note.number
        self._passes.move_to_end(note.key)
        while len(self._passes) > _KNOWN_PASSES:
            self._passes.popitem(last=False)
        self._add_rows(note)
        return True

    def _add_rows(self, note: SkipNote) -> None:
        self.rows = together([self.rows, SkippedRows(note.count, note.rows, note.digest)])

    def read_from(self, position: int) -> None:
        """Note that a source was read from a position on: the next rows are made of rows there, or after it."""

    def check(self) -> None:
        """Raise an error if too many rows were skipped; once, until there are more.

        Raises:
            TooManySkippedError: they are more than the limit.
        """
        if self.limit is None or self.rows.count <= max(self.limit, self._refused):
            return
        self._refused = self.rows.count
        named = "".join(f"\n  {row}" for row in self.rows.rows[:_NAMED_ROWS])
        raise TooManySkippedError(
            f"more rows failed than Options(max_errors={self.limit}) allows; the first were{named}\n"
            "mend the data or the functions named here, or raise max_errors"
        )

    def take(self) -> SkippedRows:
        """Return the rows skipped since the last call."""
        rows, self.rows, self._refused = self.rows, SkippedRows(), 0
        return rows

    def passes(self) -> dict[str, int]:
        """Return how far each pass was counted, as plain data."""
        return dict(self._passes)

    def restore_passes(self, passes: dict[str, int]) -> None:
        """Continue as one that had counted these passes."""
        self._passes = OrderedDict((str(key), int(number)) for key, number in passes.items())


class SkipsAhead(Skips):
    """The rows skipped while reading ahead, and the place of reading. They count when the consumer reaches them."""

    def __init__(self, consumer: Skips) -> None:
        super().__init__(consumer.limit)
        self._consumer = consumer
        self._noticed: list[Noticed] = []

    def knows(self, note: SkipNote) -> bool:
        return self._consumer.knows(note)

    def add(self, note: SkipNote) -> bool:
        new = not self.knows(note)
        if new:
            self._noticed.append(note)
            self._add_rows(note)
        return new

    def read_from(self, position: int) -> None:
        self._noticed.append(position)

    def taken(self) -> list[Noticed]:
        """Return the notes since the last call."""
        self.take()
        noticed, self._noticed = self._noticed, []
        return noticed

    def count(self, noticed: Iterable[Noticed]) -> None:
        """Count notes that the consumer has reached."""
        for entry in noticed:
            if isinstance(entry, SkipNote):
                self._consumer.add(entry)
            else:
                self._consumer.read_from(entry)


class SkipLog(Skips):
    """The rows that one iteration has skipped, for the log and for the state."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        self._logged = 0
        self._untold = 0
        self._snapshot: Any = None

    def add(self, note: SkipNote) -> bool:
        new = super().add(note)
        if new:
            self._snapshot = None
            for row in note.rows:
                if row.log:
                    self._tell_of(row)
            if note.rows[-1].log:
                self._logged += note.count - len(note.rows)
                self._untold += note.count - len(note.rows)
        return new

    def _tell_of(self, row: SkippedRow) -> None:
        self._logged += 1
        if self._logged <= LOGGED_ROWS:
            _logger.warning("skipped %s", row)
        else:
            self._untold += 1
        if self._logged == LOGGED_ROWS:
            _logger.warning("the next rows that are skipped are only counted: the iterator's `errors` names the first")

    def sum_up(self) -> None:
        """Log the number of rows that were not logged one by one; once."""
        untold, self._untold = self._untold, 0
        if untold:
            _logger.warning(
                "skipped %s in this iteration, %d of them without a line here", _rows(self.rows.count), untold
            )

    def snapshot(self) -> Any:
        """Return the skipped rows as plain data for a state; None if there are none."""
        if self._snapshot is None and self.rows.count:
            rows = [[row.node, row.site, row.position, row.error, row.source] for row in self.rows.rows]
            counts = {"count": self.rows.count, "digest": self.rows.digest}
            self._snapshot = {**counts, "rows": rows, "passes": self.passes()}
        return self._snapshot

    def restore(self, snapshot: Any) -> None:
        """Continue from a snapshot."""
        self.rows = skipped_rows(snapshot)
        self.restore_passes(snapshot["passes"])
        self._logged = self._refused = self.rows.count


def _noted(error: BaseException) -> re.Match[str] | None:
    """Return the note about the node in which an exception was raised, if it has one."""
    for note in getattr(error, "__notes__", ()):
        found = _NOTE.fullmatch(str(note))
        if found is not None:
            return found
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else text[: _TEXT_LENGTH - 1] + "…"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
