"""The costs of operators: a line of the table for each."""

from typing import Final, NamedTuple

from penstock.report.cause import calls_of, causes
from penstock.report.verdict import duration, short_name
from penstock.statistics.schema import Snapshot

HEADS: Final = ("operator", "rows", "a row", "works", "waits", "threads", "share of the wait")


class Cost(NamedTuple):
    """Cost of an operator.

    Attributes:
        name: the operator, its function and the user's line.
        rows: how many rows it made.
        row: the seconds of its work for a row.
        works: the share of the time of its threads in which it works.
        waits: the share in which it waits for others.
        threads: how many calls of its function may run at a time; 0 where the reading thread makes them.
        share: its share of the consumer's waits.
    """

    name: str
    rows: int
    row: float
    works: float
    waits: float
    threads: int
    share: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The cost in words, as in `HEADS`."""
        rows, row = (f"{self.rows:,}", duration(self.row)) if self.rows else ("", "")
        return (
            self.name,
            rows,
            row,
            f"{self.works:.0%}",
            f"{self.waits:.0%}",
            str(self.threads or ""),
            f"{self.share:.0%}",
        )


def costs(snapshot: Snapshot) -> list[Cost]:
    """Return the cost of each operator, by its number."""
    shares, calls = causes(snapshot), calls_of(snapshot)
    found = []
    for number, operator in enumerate(snapshot.operators):
        counts = snapshot.of(number)
        elapsed = max(snapshot.elapsed, 1e-9) * (operator.threads or 1)
        seconds = calls.get(number, counts).seconds
        share = shares.get(number, 0.0)
        name, waits = short_name(operator), counts.waited / elapsed
        found.append(
            Cost(name, counts.rows, seconds / max(1, counts.rows), seconds / elapsed, waits, operator.threads, share)
        )
    return found
