"""The rows that data workers leave out: collected until they are sent with the next element, counted by the reader."""

from collections.abc import Iterable

from penstock.data.skipped import KEPT_ROWS, KnownPasses, ReadFrom, SkipNote, SkippedRow, Skips, too_many
from penstock.data.streams.stream import State
from penstock.service.wire.subjects import LONGEST_NAME
from penstock.service.wire.worker_messages import LeftOut, RowLeftOut


class Noted:
    """Collects the rows that one stream leaves out. The reader counts them, and applies its limit to all of them.

    Args:
        limit: the most rows left out before one element, at which the stream gives up; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._known = KnownPasses()
        self._rows: list[RowLeftOut] = []
        self._count = 0

    def knows(self, key: str, number: int) -> bool:
        """As `Skips.knows`."""
        return self._known.know(key, number)

    def add(self, skip: SkipNote) -> None:
        """As `Skips.add`."""
        if self.knows(skip.key, skip.number):
            return
        self._known.note(skip.key, skip.number)
        self._count += skip.count
        rows = zip(skip.rows, skip.logged, strict=True)
        self._rows += [_row(row, log) for row, log in rows][: KEPT_ROWS - len(self._rows)]
        if self.limit is not None and self._count > self.limit:
            raise too_many(self.limit, [skipped_row(row) for row in self._rows])

    def read_from(self, start: ReadFrom) -> None:
        """As `Skips.read_from`; unused where positions count elements."""

    def take(self) -> LeftOut | None:
        """The rows left out since the last call; None if there were none."""
        if not self._count:
            return None
        left_out = LeftOut(count=self._count, rows=self._rows)
        self._count, self._rows = 0, []
        return left_out

    def state(self) -> State:
        """What a stream that continues from here must not note again."""
        return self._known.snapshot()

    def restore(self, state: State) -> None:
        """Continue as after `state`."""
        self._known = KnownPasses.of(state)


class LeftOutCounter:
    """Counts the rows left out before each element of a reader, once.

    An element has the same number in a restored reader, so rows that are reported again are recognized.

    Args:
        skips: the rows that the iteration has left out.
        key: names the reader in its iteration, and in one that is restored from its state.
    """

    def __init__(self, skips: Skips, key: str) -> None:
        self._skips = skips
        self._key = key
        self._counted = 0

    def count(self, number: int, left_out: LeftOut) -> None:
        """Count the rows left out before the element with this number; they may be reported again.

        Raises:
            TooManySkippedError: more rows were left out than the limit allows.
        """
        met = number + 1  # a pass that has met nothing has the number 0
        if met <= self._counted:
            return
        self._counted = met
        rows = tuple(map(skipped_row, left_out.rows))
        logged = tuple(row.log for row in left_out.rows)
        self._skips.add(SkipNote(self._key, met, rows, logged, left_out.count - len(rows)))


def together(parts: Iterable[LeftOut | None]) -> LeftOut | None:
    """Several counts of left-out rows as one."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    rows = [row for part in there for row in part.rows]
    return LeftOut(count=sum(part.count for part in there), rows=rows[:KEPT_ROWS])


def skipped_row(row: RowLeftOut) -> SkippedRow:
    """A row in a message as a `SkippedRow`."""
    return SkippedRow(row.node, row.site, row.position, row.error)


def _row(row: SkippedRow, log: bool) -> RowLeftOut:
    # The end of a path is its most useful part.
    return RowLeftOut(node=row.node, site=row.site[-LONGEST_NAME:], position=row.position, error=row.error, log=log)
