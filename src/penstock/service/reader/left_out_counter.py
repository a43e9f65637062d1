"""What data workers have left out, counted where the trainer's own rows are that were left out."""

from penstock.data.skipped import SkippedPlace, Skips
from penstock.service.wire.left_out import skipped_row
from penstock.service.wire.worker_messages import LeftOut


class LeftOutCounter:
    """Counts what was left out before each element of a reader, once.

    The number of an element is the same in a reader that is restored, so what comes again is known.

    Args:
        skips: what the iteration has left out.
        key: names the reader in an iteration, and again in one that is restored from its state.
    """

    def __init__(self, skips: Skips, key: str) -> None:
        self._skips = skips
        self._key = key
        self._counted = 0

    def count(self, number: int, left_out: LeftOut) -> None:
        """Count what was left out before the element with this number; it may be told again.

        Raises:
            TooManySkippedError: it is more than the limit.
        """
        place = number + 1  # passes are counted from 1
        if place <= self._counted:
            return
        self._counted = place
        rows = tuple(map(skipped_row, left_out.rows))
        logged = tuple(row.log for row in left_out.rows)
        self._skips.add(SkippedPlace(self._key, place, rows, logged, left_out.count - len(rows)))
