"""`Report`: what `iterator.report()` gives, as words, as a table, as data and as files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.errors import StorageError
from penstock.report.cause import calls_of, causes
from penstock.report.page import page
from penstock.report.verdict import KEEPS_UP, Verdict, holds_lock, short_name, verdict_of
from penstock.statistics.schema import Snapshot
from penstock.version import VERSION

_SCHEMA: Final = 1


class Report(Struct):
    """Waits of a training, of one process or of all ranks; `print` it.

    Attributes:
        ranks: the statistics of each rank.
        penstock: the version that made it.
        schema: the number of its format.
    """

    ranks: list[Snapshot]
    penstock: str = VERSION
    schema: int = _SCHEMA

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each rank."""
        return [verdict_of(snapshot) for snapshot in self.ranks]

    @property
    def slowest(self) -> int:
        """The place of the rank that waits longest for its input: in synchronous training all others wait for it."""
        seconds = [verdict.waiting * verdict.step for verdict in self.verdicts]
        return max(range(len(seconds)), key=lambda rank: seconds[rank])

    def lines(self) -> list[str]:
        """The verdict in words, a line for each finding."""
        snapshot, verdict = self.ranks[self.slowest], self.verdicts[self.slowest]
        if not verdict.step:
            return ["nothing was measured: take some steps first" if snapshot.operators else "statistics are off"]
        return [
            line for line in (_waiting(snapshot, verdict), *_limit(snapshot, verdict), *self._rest(snapshot)) if line
        ]

    def _rest(self, snapshot: Snapshot) -> Iterator[str]:
        others = [v.waiting for rank, v in enumerate(self.verdicts) if rank != self.slowest]
        own = self.verdicts[self.slowest].waiting
        if others and own > KEEPS_UP and own > 1.5 * max(others):
            often = (
                "in most steps"
                if snapshot.steps.blocked.percentile(50) > snapshot.steps.blocked.mean / 2
                else "at times"
            )
            yield (
                f"slowest: rank {snapshot.rank} (host {snapshot.host}) waits {own:.0%} for its input, {often}; the "
                f"others at most {max(others):.0%}, and they wait for this rank"
            )
        steps = snapshot.steps
        for slow in steps.slowest[:1]:
            name = f" in {short_name(snapshot.operators[slow.operator])}" if slow.operator >= 0 else ""
            rows = slow.rows and f", {slow.rows}"
            yield f"slowest step: number {slow.number} waited {duration(slow.blocked)}{name}{rows}"
        yield (
            f"start: {duration(steps.opening)} to the first request, {duration(steps.first)} for the first element, "
            f"{duration(steps.first_yours)} your first step"
        )
        yield from snapshot.machine

    def table(self) -> str:
        """The operators of the slowest rank, with what each of them costs."""
        snapshot = self.ranks[self.slowest]
        lines = [("operator", "rows", "a row", "works", "waits", "threads", "share of the wait")]
        shares, calls = causes(snapshot), calls_of(snapshot)
        for number, operator in enumerate(snapshot.operators):
            counts = snapshot.of(number)
            elapsed = max(snapshot.elapsed, 1e-9) * (operator.threads or 1)
            made = calls.get(number, counts)
            cells = (
                f"{counts.rows:,}",
                duration(made.seconds / counts.rows) if counts.rows else "",
                f"{made.seconds / elapsed:.0%}",
                f"{counts.waited / elapsed:.0%}",
                str(operator.threads or ""),
                f"{shares.get(number, 0):.0%}",
            )
            lines.append((short_name(operator), *cells))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def __str__(self) -> str:
        return "\n".join([*self.lines(), "", self.table()])

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with the verdict of each rank."""
        return {
            **msgspec.to_builtins(self, str_keys=True),
            "verdicts": msgspec.to_builtins(self.verdicts),
            "words": self.lines(),
        }

    def _repr_html_(self) -> str:
        ranks = list(zip(self.ranks, self.verdicts, strict=True))
        return page(self.lines(), self.table(), ranks, self.slowest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report: as a page if the name ends in .html, which needs no other file, otherwise as JSON.

        Raises:
            StorageError: the file cannot be written; the training is not affected.
        """
        text = self._repr_html_() if str(path).endswith(".html") else msgspec.json.encode(self).decode()
        try:
            new = Path(f"{path}.new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, path)
        except OSError as error:
            raise StorageError(f"the report was not written to '{path}': {error}") from error


def load_report(path: str | os.PathLike[str]) -> Report:
    """Return the report in a JSON file that `Report.save` has written.

    Raises:
        StorageError: it cannot be read, is no report, or one of another version of penstock.
    """
    try:
        data = Path(path).read_bytes()
        schema = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
        if schema == _SCHEMA:
            return msgspec.json.decode(data, type=Report)
    except OSError as error:
        raise StorageError(f"the report '{path}' cannot be read: {error}") from error
    except msgspec.MsgspecError as error:
        raise StorageError(f"'{path}' is no report: {error}; iterator.report().save(...) writes one") from error
    raise StorageError(
        f"'{path}' is a report of format {schema!r}, and penstock {VERSION} reads format {_SCHEMA}: read it with the "
        "version that has written it"
    )


def _waiting(snapshot: Snapshot, verdict: Verdict) -> str:
    steps = snapshot.steps
    at_most = "" if verdict.exact else ", at most"
    longest = duration(steps.blocked.percentile(99))
    step = f"a step takes {duration(verdict.step)}, one wait in a hundred is longer than {longest}"
    if verdict.waiting < KEEPS_UP:
        return (
            f"the input keeps up: waiting {verdict.waiting:.0%} of the step{at_most}; {step}. Your step is the limit."
        )
    without = f"{duration(verdict.step * (1 - verdict.waiting))}, {_faster(verdict.most)}"
    return f"waiting {verdict.waiting:.0%} of the step{at_most}; {step}. Without waiting: {without}."


def _limit(snapshot: Snapshot, verdict: Verdict) -> Iterator[str]:
    if verdict.operator < 0:
        return
    operator = snapshot.operators[verdict.operator]
    calls = calls_of(snapshot).get(verdict.operator)
    counts = calls or snapshot.of(verdict.operator)
    busy = counts.seconds / max(snapshot.elapsed, 1e-9) / max(1, operator.threads)
    threads = f"{operator.threads} threads" if calls and operator.threads > 1 else "one thread"
    lock = ", whose calls keep Python's lock" if calls and holds_lock(snapshot, calls) else ""
    computes = f"it computes in {counts.processor_share:.0%} of that" if counts.sampled else ""
    yield (
        f"limit: {short_name(operator)}, {verdict.share:.0%} of the waits; at work {busy:.0%} of the time of "
        f"{threads}{lock}; {computes}"
    )
    about = "about" if verdict.change.startswith(("add ", "num_parallel_calls")) else "at most"
    gain = f"{about} {_faster(verdict.gain)}" if verdict.gain >= 0.01 else "no gain alone: another operator is as slow"
    yield f"change: {verdict.change}: {gain}"


def _faster(gain: float) -> str:
    """Return a gain in words: +50%, or 3.2 times as fast."""
    return f"+{gain:.0%}" if gain < 1 else f"{1 + gain:.1f} times as fast"


def duration(seconds: float) -> str:
    """Return a time in words."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
