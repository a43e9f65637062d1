"""`Report`: what `iterator.report()` gives, as words, as a table, as data and as files."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from penstock.errors import InvalidArgumentError, StorageError
from penstock.paths import local_path
from penstock.printing import in_bytes
from penstock.report.cause import calls_of
from penstock.report.costs import HEADS, costs
from penstock.report.page import page, shown
from penstock.report.verdict import KEEPS_UP, Verdict, duration, holds_lock, short_name, verdict_of
from penstock.statistics.schema import Snapshot
from penstock.version import VERSION

_SCHEMA: Final = 1
_EXAMPLE: Final = "('run.html', 'run.json', metrics=True)"
_logger = logging.getLogger(__name__)


class Report(Struct):
    """Waits of a training, of one process or of all ranks; `print` it.

    Attributes:
        ranks: the statistics of each rank.
        missing: sentences about ranks that were lost, or that have told nothing.
        penstock: the version that made it.
        schema: the number of its format.
    """

    ranks: list[Snapshot]
    missing: list[str] = []
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
            unread = "nothing was read yet" if not snapshot.steps.count else "nothing was measured yet"
            unread = "statistics are off" if snapshot.off else f"{unread}: take some steps first"
            return [*self.missing, unread]
        return [*self.missing, _waiting(snapshot, verdict), *_limit(snapshot, verdict), *self._rest(snapshot)]

    def _rest(self, snapshot: Snapshot) -> Iterator[str]:
        others = [v.waiting for rank, v in enumerate(self.verdicts) if rank != self.slowest]
        own = self.verdicts[self.slowest].waiting
        if others and own > KEEPS_UP and own > 1.5 * max(others):
            always = snapshot.steps.blocked.percentile(50) > snapshot.steps.blocked.mean / 2
            often = "in most steps" if always else "in a few steps"
            yield (
                f"slowest: rank {snapshot.rank} (host {snapshot.host}) waits {own:.0%} for its input, {often}; the "
                f"others at most {max(others):.0%}, and they wait for this rank"
            )
        steps = snapshot.steps
        for slow in steps.slowest[:1]:
            name = f" for {short_name(snapshot.operators[slow.operator])}" if slow.operator >= 0 else ""
            rows = slow.rows and f"; its first row: {slow.rows}"
            yield f"slowest step: step {slow.number} waited {duration(slow.blocked)}{name}{rows}"
        if snapshot.start:
            yield "start: " + ", ".join(f"{name} {duration(seconds)}" for name, seconds in snapshot.start.items())
        if (stores := snapshot.stores).requests:
            yield (
                f"stores: {stores.requests:,} requests for {in_bytes(stores.nbytes)}; {stores.repeats:,} of them were "
                f"repeats after faults, before which threads waited {duration(stores.waited)}"
            )
        yield from (f"{short_name(one)}: {one.waste}" for one in snapshot.operators if one.waste)
        yield from snapshot.machine

    def table(self) -> str:
        """The operators of the slowest rank, with what each of them costs."""
        lines = [HEADS, *(cost.cells for cost in costs(self.ranks[self.slowest]))]
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

    __repr__ = __str__  # at Python's prompt

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with the verdict of each rank."""
        return {
            **msgspec.to_builtins(self, str_keys=True),
            "verdicts": msgspec.to_builtins(self.verdicts),
            "words": self.lines(),
        }

    def html(self) -> str:
        """The report as HTML, to be a part of a page."""
        ranks = list(zip(self.ranks, self.verdicts, strict=True))
        return shown(self.lines(), ranks, self.slowest)

    _repr_html_ = html  # notebooks show it

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report: as a page if the name ends in .html, which needs no other file, otherwise as JSON.

        Raises:
            StorageError: the file cannot be written; the training is not affected.
        """
        text = page(self.html()) if str(path).endswith(".html") else msgspec.json.encode(self).decode()
        new = Path(f"{path}.new")
        try:
            new.write_text(text, encoding="utf-8")
            os.replace(new, path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
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


def slowdown(before: Report, after: Report) -> float:
    """Return by how much longer a step takes than before: 0.05 for 5 %; 0 where one has no steps."""
    old, new = (max(verdict.step for verdict in one.verdicts) for one in (before, after))
    return new / old - 1 if old and new else 0.0


def compared(before: Report, after: Report) -> str:
    """Return the differences of two reports in words: of a step, of waiting, and of each operator's rows."""
    lines = [f"step: {slowdown(before, after):+.1%}"]
    old, new = before.verdicts[before.slowest], after.verdicts[after.slowest]
    lines.append(f"waiting: {old.waiting:.0%} of the step before, {new.waiting:.0%} now")
    seconds = _row_seconds(before.ranks[before.slowest])
    for name, now in _row_seconds(after.ranks[after.slowest]).items():
        was = seconds.pop(name, 0.0)
        change = f"{now / was - 1:+.0%}, {duration(was)} a row before" if was else "it was not there before"
        lines.append(f"{name}: {duration(now)} a row, {change}")
    return "\n".join([*lines, *(f"{name}: it is not there any more" for name in seconds)])


def _row_seconds(snapshot: Snapshot) -> dict[str, float]:
    """Return how long each operator works for a row, by its name without its line, which changes with the program."""
    found: dict[str, float] = {}
    for number, cost in enumerate(costs(snapshot)):
        if cost.rows:
            name = cost.name.partition(" at ")[0]
            found[name if name not in found else f"{name} {number}"] = cost.row
    return found


def _waiting(snapshot: Snapshot, verdict: Verdict) -> str:
    waiting = f"{verdict.waiting:.0%}" if verdict.exact else f"up to {verdict.waiting:.0%}"
    if verdict.waiting < KEEPS_UP:
        return f"the input keeps up: your step is the limit, it takes {duration(verdict.step)}, {waiting} of it waiting"
    without = f"{duration(verdict.step * (1 - verdict.waiting))}, {_faster(verdict.most)}"
    return f"waiting: {waiting} of each step. A step takes {duration(verdict.step)}; without waiting {without}."


def _limit(snapshot: Snapshot, verdict: Verdict) -> Iterator[str]:
    if verdict.operator < 0:
        return
    operator = snapshot.operators[verdict.operator]
    calls = calls_of(snapshot).get(verdict.operator)
    counts = calls or snapshot.of(verdict.operator)
    busy = counts.seconds / max(snapshot.elapsed, 1e-9) / max(1, operator.threads)
    threads = f"{operator.threads} threads" if calls and operator.threads > 1 else "one thread"
    lock = ", and its calls hold Python's lock" if calls and holds_lock(snapshot, calls) else ""
    computes = f", and computes in {counts.processor_share:.0%} of that time" if counts.sampled and not lock else ""
    yield (
        f"limit: {short_name(operator)} causes {verdict.share:.0%} of the waits; it keeps {threads} busy {busy:.0%} of "
        f"the time{computes}{lock}"
    )
    about = "about" if verdict.change.startswith(("add ", "num_parallel_calls")) else "at most"
    gain = f"{about} {_faster(verdict.gain)}" if verdict.gain >= 0.01 else "no gain alone: another operator is as slow"
    yield f"change: {verdict.change}. Gain: {gain}."


def _faster(gain: float) -> str:
    """Return a gain in words: 50% faster, or 3.2 times as fast."""
    return f"{gain:.0%} faster" if gain < 1 else f"{1 + gain:.1f} times as fast"


class Reporting(Protocol):
    """An input of a training, which tells of itself."""

    def report(self) -> Report: ...
    def metrics(self) -> dict[str, float]: ...


class ReportWriter:
    """The part of a callback that writes reports, and gives the numbers that go into the logs of a framework.

    Args:
        paths: the files, as `Report.save` writes them.
        metrics: whether there are numbers for the logs.

    Raises:
        InvalidArgumentError: neither is given.
    """

    def __init__(self, *paths: str | os.PathLike[str], metrics: bool = False) -> None:
        super().__init__()
        if not paths and not metrics:
            own = type(self).__name__
            raise InvalidArgumentError(f"{own}() has nothing to write: {own}{_EXAMPLE} names files, and asks for logs")
        self._paths = [local_path(path) for path in paths]
        self._metrics = metrics

    def _write(self, source: Reporting) -> dict[str, float]:
        """Write the report, and return the numbers for the logs; a fault of that must not stop the training."""
        try:
            report = source.report()
            for path in self._paths:
                report.save(path)
            return source.metrics() if self._metrics else {}
        except Exception as error:
            _logger.error("%s has written nothing: %s", type(self).__name__, error)
            return {}
