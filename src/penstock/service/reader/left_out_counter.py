"""Counts the rows that data workers left out together with those that the trainer itself leaves out."""

from penstock.data.skipped import SkipNote, Skips
from penstock.service.wire.left_out import skipped_row
from penstock.service.wire.worker_messages import LeftOut


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
