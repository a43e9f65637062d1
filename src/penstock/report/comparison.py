"""Two reports side by side: what has become slower, and by how much."""

from penstock.report.costs import costs
from penstock.report.report import Report
from penstock.report.verdict import duration
from penstock.statistics.schema import Snapshot


def slowdown(before: Report, after: Report) -> float:
    """Return by how much longer a step takes than before: 0.05 for 5 %; 0 where one has no steps."""
    old, new = (max(verdict.step for verdict in one.verdicts) for one in (before, after))
    return new / old - 1 if old and new else 0.0


def compared(before: Report, after: Report) -> str:
    """Return the differences of two reports in words: of a step, of waiting, and of each operator's rows."""
    lines = [f"step: {slowdown(before, after):+.1%}"]
    old, new = before.verdicts[before.slowest], after.verdicts[after.slowest]
    lines.append(f"waiting: {old.waiting:.0%} of the step before, {new.waiting:.0%} now")
    seconds = row_seconds(before.ranks[before.slowest])
    for name, now in row_seconds(after.ranks[after.slowest]).items():
        was = seconds.pop(name, 0.0)
        change = f"{now / was - 1:+.0%}, {duration(was)} a row before" if was else "it was not there before"
        lines.append(f"{name}: {duration(now)} a row, {change}")
    return "\n".join([*lines, *(f"{name}: it is not there any more" for name in seconds)])


def row_seconds(snapshot: Snapshot) -> dict[str, float]:
    """Return how long each operator works for a row, by its name without its line, which changes with the program."""
    found: dict[str, float] = {}
    for number, cost in enumerate(costs(snapshot)):
        if cost.rows:
            name = cost.name.partition(" at ")[0]
            found[name if name not in found else f"{name} {number}"] = cost.row
    return found
