"""The rows that an iteration left out because they failed: which they were, how many, and that none is counted twice.

A row that failed is known by its *pass* (one pass over an `ignore_errors`, by the name that it has in every iteration
restored from a state) and by its number there. How far each pass was counted is a part of the state, so that rows which
are read again, because a state was restored or because two nodes read the same input, count once.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Protocol
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

# What a node says in an exception of the row at which it failed.
_NOTE = re.compile(r"penstock: in (?P<node>.+) at (?P<site>.+?:\d+)(?:, element (?P<element>.+))?", re.DOTALL)


@dataclass(frozen=True)
class SkippedRow:
    """A row that was left out.

    Attributes:
        node: the node whose function or source failed.
        site: the line that added the node, "file.py:12"; "" where that is not known.
        position: the number of the element that failed there, from 0; None where the node does not count them.
        error: the exception's class and message, shortened.

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

    def __str__(self) -> str:
        where = "" if self.position is None else f"element {self.position} of "
        return f"{where}{self.node}{' at ' + self.site if self.site else ''}: {self.error}"


@dataclass(frozen=True)
class SkippedRows:
    """What an iteration has left out so far.

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


def skipped_row(error: Exception, node: str, site: str) -> SkippedRow:
    """What an exception says of the row it happened at; by default that it came out of a node."""
    found = _noted(error)
    if found is None:
        return SkippedRow(_shortened(node), site, None, _text(error))
    element = found["element"]
    position = int(element) if element and element.isdecimal() else None
    return SkippedRow(_shortened(found["node"]), found["site"], position, _text(error))


def skipped_rows(snapshot: Any) -> SkippedRows:
    """What a snapshot of a `SkipLog` tells."""
    if snapshot is None:
        return SkippedRows()
    rows = tuple(SkippedRow(*row) for row in snapshot["rows"])
    return SkippedRows(snapshot["count"], rows, snapshot.get("digest", 0))


def together(several: Iterable[SkippedRows]) -> SkippedRows:
    """What several iterations have left out together."""
    several = list(several)
    rows = tuple(row for skipped in several for row in skipped.rows)
    digest = sum(skipped.digest for skipped in several) % _DIGESTS
    return SkippedRows(sum(skipped.count for skipped in several), rows[:KEPT_ROWS], digest)


class ProgramError(InvalidTypeError):
    """A mistake of the program that a call of its function shows: every row would fail."""


def belongs_to_row(error: Exception) -> bool:
    """Whether an exception tells of a row, rather than of the program, of other processes or of an iterator's end."""
    if isinstance(error, (BusyError, Closed, CardinalityError, ProgramError)):
        return False
    if not isinstance(error, PenstockError) or isinstance(error, (ElementError, PoisonError)):
        return True
    return _noted(error) is not None


@dataclass(frozen=True)
class SkipNote:
    """A note that rows were left out: one, or all that another process has left out before an element.

    Attributes:
        key: names the pass.
        number: how many rows and failures the pass has met, these included; no two notes have the same.
        rows: what the first of them were, at least one.
        logged: for each of these, whether the log should tell. The last one speaks for those that follow.
        more: how many there are besides.
    """

    key: str
    number: int
    rows: tuple[SkippedRow, ...]
    logged: tuple[bool, ...]
    more: int = 0

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.rows) + self.more


@dataclass(frozen=True)
class ReadFrom:
    """A source was read from a position on: what comes next is made of these rows, or of those after them.

    Attributes:
        position: of the first of them.
    """

    position: int


Noticed = SkipNote | ReadFrom
"""What is noted while rows are read ahead, and counts when they are given."""


class Skips(Protocol):
    """Takes what an iteration leaves out, and where its source was read.

    Attributes:
        limit: the most rows that may be left out; None for any number.
    """

    limit: int | None

    def knows(self, key: str, number: int) -> bool:
        """Whether a pass was counted up to this number already."""

    def add(self, skip: SkipNote) -> None:
        """Count rows, unless the pass was counted up to their number already.

        Raises:
            TooManySkippedError: they are more than the limit.
        """

    def read_from(self, start: ReadFrom) -> None:
        """Note where a source was read; only the source of a span of a data service says so."""


class KnownPasses:
    """How far each pass was counted, of those that failed last."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def know(self, key: str, number: int) -> bool:
        """Whether a pass was counted up to this number already."""
        return number <= self._numbers.get(key, 0)

    def note(self, key: str, number: int) -> None:
        """A pass is counted up to this number."""
        self._numbers[key] = number
        self._numbers.move_to_end(key)
        while len(self._numbers) > _KNOWN_PASSES:
            self._numbers.popitem(last=False)

    def snapshot(self) -> dict[str, int]:
        """How far they were counted, as plain data."""
        return dict(self._numbers)

    @staticmethod
    def of(snapshot: Any) -> "KnownPasses":
        """What a snapshot tells."""
        known = KnownPasses()
        known._numbers.update((str(key), int(number)) for key, number in snapshot.items())
        return known


class SkipLog:
    """What one iteration has left out.

    Args:
        limit: the most rows that may be left out; None for any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._lock = RLock()  # a signal handler may ask for the state in the middle of any method
        self._count = self._digest = 0
        self._rows: list[SkippedRow] = []
        self._passes = KnownPasses()
        self._logged = 0
        self._untold = 0
        self._snapshot: Any = None

    @property
    def rows(self) -> SkippedRows:
        """What was left out so far."""
        with self._lock:
            return SkippedRows(self._count, tuple(self._rows))

    def knows(self, key: str, number: int) -> bool:
        """Whether a pass was counted up to this number already."""
        return self._passes.know(key, number)

    def add(self, skip: SkipNote) -> None:
        """Count rows, unless the pass was counted up to their number already.

        Raises:
            TooManySkippedError: they are more than the limit.
        """
        with self._lock:
            if self.knows(skip.key, skip.number):
                return
            self._passes.note(skip.key, skip.number)
            self._count += skip.count
            # A sum, because passes that are read in turns may note their rows in any order.
            self._digest = (self._digest + crc32(f"{skip.number} of {skip.key}".encode())) % _DIGESTS
            self._rows.extend(skip.rows[: KEPT_ROWS - len(self._rows)])
            self._snapshot = None
        self._tell(skip)
        if self.limit is not None and self._count > self.limit:
            raise too_many(self.limit, self._rows)

    def read_from(self, start: ReadFrom) -> None:
        """Nobody asks an iteration of this process."""

    def _tell(self, skip: SkipNote) -> None:
        for row, log in zip(skip.rows, skip.logged, strict=True):
            if log:
                self._tell_of(row)
        if skip.logged[-1]:
            self._logged += skip.more
            self._untold += skip.more

    def _tell_of(self, row: SkippedRow) -> None:
        self._logged += 1
        if self._logged <= LOGGED_ROWS:
            _logger.warning("skipped %s", row)
        else:
            self._untold += 1
        if self._logged == LOGGED_ROWS:
            _logger.warning("the next rows that are skipped are only counted: the iterator's `errors` names the first")

    def sum_up(self) -> None:
        """Say in the log how many rows it has not told of; once."""
        untold, self._untold = self._untold, 0
        if untold:
            _logger.warning("skipped %s in this iteration, %d of them without a line here", _rows(self._count), untold)

    def snapshot(self) -> Any:
        """What was left out, as plain data for a state; None if nothing was."""
        if not self._count:
            return None
        with self._lock:
            if self._snapshot is None and self._count:
                rows = [[row.node, row.site, row.position, row.error] for row in self._rows]
                passes = self._passes.snapshot()
                self._snapshot = {"count": self._count, "rows": rows, "passes": passes, "digest": self._digest}
            return self._snapshot

    def restore(self, snapshot: Any) -> None:
        """Continue from a snapshot."""
        self._count, self._digest = int(snapshot["count"]), int(snapshot.get("digest", 0))
        self._rows = [SkippedRow(*row) for row in snapshot["rows"]]
        self._passes = KnownPasses.of(snapshot["passes"])
        self._logged = self._count


class SkipsAhead:
    """What is left out by whatever reads ahead, and where it reads. It counts when the consumer has come there."""

    def __init__(self, consumer: Skips) -> None:
        self._consumer = consumer
        self._pending: list[Noticed] = []
        self.limit: int | None = consumer.limit

    def knows(self, key: str, number: int) -> bool:
        """Whether a pass was counted up to this number already."""
        return self._consumer.knows(key, number)

    def add(self, skip: SkipNote) -> None:
        """Note rows, unless the pass was counted up to their number already.

        Raises:
            TooManySkippedError: the rows since the last `taken` alone are more than the limit.
        """
        if self.knows(skip.key, skip.number):
            return
        self._pending.append(skip)
        if self.limit is None:
            return
        skips = [entry for entry in self._pending if isinstance(entry, SkipNote)]
        if sum(skip.count for skip in skips) > self.limit:
            raise too_many(self.limit, [row for skip in skips for row in skip.rows])

    def read_from(self, start: ReadFrom) -> None:
        """Note where a source was read."""
        self._pending.append(start)

    def taken(self) -> list[Noticed]:
        """What was noted since this was called last."""
        pending, self._pending = self._pending, []
        return pending

    def count(self, noticed: list[Noticed]) -> None:
        """The consumer has come to these: they count, and leave the list.

        Raises:
            TooManySkippedError: they are more than the limit.
        """
        while noticed:
            entry = noticed.pop(0)
            if isinstance(entry, ReadFrom):
                self._consumer.read_from(entry)
            else:
                self._consumer.add(entry)


def too_many(limit: int, rows: list[SkippedRow]) -> TooManySkippedError:
    """The error of an iteration that skips more than it may."""
    named = "".join(f"\n  {row}" for row in rows[:_NAMED_ROWS])
    return TooManySkippedError(
        f"more rows failed than Options(max_errors={limit}) allows; the first were{named}\n"
        "mend the data or the functions named here, or raise max_errors"
    )


def _noted(error: Exception) -> re.Match[str] | None:
    """What the node that an exception happened in says of itself in its notes."""
    for note in getattr(error, "__notes__", ()):
        found = _NOTE.fullmatch(str(note))
        if found is not None:
            return found
    return None


def _text(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # a class of the user's that cannot be shown
        text = ""
    return _shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else text[: _TEXT_LENGTH - 1] + "…"


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
