"""The rows that data workers skip, as messages: they are sent with the next element, and counted by the reader."""

from collections.abc import Iterable

from penstock.data.skipped import KEPT_ROWS, SkipNote, SkippedRow, SkippedRows
from penstock.service.wire.subjects import LONGEST_NAME
from penstock.service.wire.worker_messages import LeftOut, RowLeftOut


def left_out_of(skipped: SkippedRows) -> LeftOut | None:
    """Skipped rows as a message; None if there are none."""
    return LeftOut(count=skipped.count, rows=list(map(_message, skipped.rows))) if skipped.count else None


def note_of(left_out: LeftOut, key: str, number: int) -> SkipNote:
    """The note of a reader about the rows that were skipped before an element.

    An element has the same number in a restored reader, so rows that are reported again count once.

    Args:
        key: names the reader in its iteration, and in one that is restored from its state.
        number: that of the element.
    """
    rows = tuple(
        SkippedRow(row.node, row.site, row.position, row.error, row.source, log=row.log) for row in left_out.rows
    )
    return SkipNote(key, number + 1, rows, left_out.count)  # a pass that has met nothing has the number 0


def together(parts: Iterable[LeftOut | None]) -> LeftOut | None:
    """Several counts of left-out rows as one."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    rows = [row for part in there for row in part.rows]
    return LeftOut(count=sum(part.count for part in there), rows=rows[:KEPT_ROWS])


def _message(row: SkippedRow) -> RowLeftOut:
    # The end of a path is its most useful part.
    site = row.site[-LONGEST_NAME:]
    return RowLeftOut(node=row.node, site=site, position=row.position, error=row.error, source=row.source, log=row.log)
