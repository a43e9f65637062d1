"""The page of a report: one file of HTML with its style and pictures in it, for screens of any size and for print."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from penstock.report.cause import causes
from penstock.report.verdict import Verdict, short_name
from penstock.statistics.schema import Snapshot

_STYLE: Final = """
:root { color-scheme: light dark; --work: #2b6cb0; --wait: #dd6b20; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
p { margin: .3rem 0 } .limit { font-weight: 600 } .scroll { overflow-x: auto }
pre, td, th { font-size: .85rem; text-align: left } pre { overflow-x: auto }
td, th { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); white-space: nowrap }
svg { width: 100%; height: 1rem; min-width: 8rem; background: var(--line); display: block }
.work { fill: var(--work) } .wait { fill: var(--wait) }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem }
@media print { body { max-width: none } * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""


def page(lines: Sequence[str], table: str, ranks: Sequence[tuple[Snapshot, Verdict]], slowest: int) -> str:
    """Return a report as a page: its words, its table, and pictures of the slowest rank and of all."""
    snapshot = ranks[slowest][0]
    first, *lines = lines
    words = "".join(f'<p class="{line.split(":")[0]}">{escape(line)}</p>' for line in lines)
    slow = (
        (str(one.number), f"{one.blocked:.3g} s", *_named(snapshot, one.operator, one.rows))
        for one in snapshot.steps.slowest
    )
    parts = [
        f"<h1>{escape(first)}</h1>{words}",
        "<h2>Threads</h2>" + _key() + _table(("thread", "at work, waiting, without work"), _lanes(snapshot)),
        "<h2>Ranks</h2>" + _table(("rank", "waiting", ""), _ranks(ranks)) if len(ranks) > 1 else "",
        "<h2>Waits of steps</h2>" + _table(("seconds, at most", "steps", ""), _waits(snapshot)),
        "<h2>Operators</h2>" + f"<pre>{escape(table)}</pre>",
        "<h2>Slowest steps</h2>" + _table(("step", "waited", "operator", "rows"), slow)
        if snapshot.steps.slowest
        else "",
    ]
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>penstock report</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>"
    )


def _named(snapshot: Snapshot, operator: int, rows: str) -> tuple[str, str]:
    return escape(short_name(snapshot.operators[operator])) if operator >= 0 else "", escape(rows)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; the cells are HTML."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>{body}</table></div>'


def _key() -> str:
    colours = (("work", "at work"), ("wait", "waiting for others"), ("line", "without work"))
    return (
        f'<p class="key">{"".join(f"<span style=background:var(--{name})></span>{word}" for name, word in colours)}</p>'
    )


def _bar(work: float, wait: float = 0.0) -> str:
    """Return a bar of two shares of its width."""
    work, wait = min(work, 1.0), min(wait, 1.0 - min(work, 1.0))
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none">'
        f'<rect class="work" width="{work * 100:.1f}" height="10"/>'
        f'<rect class="wait" x="{work * 100:.1f}" width="{wait * 100:.1f}" height="10"/></svg>'
    )


def _lanes(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    """A bar for your step, for each kind of threads, and for the calls of each operator."""
    elapsed = max(snapshot.elapsed, 1e-9)
    steps = snapshot.steps
    yield "your step", _bar(steps.yours.total / elapsed, steps.blocked.total / elapsed)
    shares = causes(snapshot)
    for stage in snapshot.stages:
        for number, counts in stage.operators.items():
            threads = snapshot.operators[number].threads if stage.name == "worker" else 1
            name = f"{stage.name}: {short_name(snapshot.operators[number])}"
            lit = f"<b>{escape(name)}</b>" if shares and shares.get(number) == max(shares.values()) else escape(name)
            yield lit, _bar(*(seconds / elapsed / max(1, threads) for seconds in (counts.seconds, counts.waited)))


def _ranks(ranks: Sequence[tuple[Snapshot, Verdict]]) -> Iterable[tuple[str, str, str]]:
    for snapshot, verdict in ranks:
        yield (
            f"{snapshot.rank} ({escape(snapshot.host)})",
            f"{verdict.waiting:.0%}",
            _bar(1 - verdict.waiting, verdict.waiting),
        )


def _waits(snapshot: Snapshot) -> Iterable[tuple[str, str, str]]:
    blocked = snapshot.steps.blocked
    most = max(blocked.buckets.values(), default=1)
    for upper, count in blocked.by_doubling():
        yield f"{upper:.2g}", f"{count:,}", _bar(0, count / most)
