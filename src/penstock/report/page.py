"""The page of a report: HTML with style and pictures in it, for a notebook, for screens of any size and for print."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from penstock.report.costs import HEADS, costs
from penstock.report.verdict import Verdict, duration, short_name
from penstock.statistics.schema import Snapshot

_PAGE_STYLE: Final = """
:root { color-scheme: light dark }
body { max-width: 64rem; margin: 1rem auto; padding: 0 1rem }
@media print { body { max-width: none } }
"""
# Names begin with a class, so that a notebook keeps its own style.
_STYLE: Final = """
.penstock-report { --work: #3182ce; --wait: #dd6b20; --line: #8884; font: 16px/1.5 system-ui, sans-serif }
.penstock-report h1 { font-size: 1.3rem; line-height: 1.35 }
.penstock-report h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.penstock-report p { margin: .4rem 0; overflow-wrap: anywhere }
.penstock-report table { width: 100%; border-collapse: collapse }
.penstock-report td, .penstock-report th { font-size: .85rem; text-align: left; padding: .25rem .8rem .25rem .3rem }
.penstock-report td, .penstock-report th { border-bottom: 1px solid var(--line); overflow-wrap: break-word }
.penstock-report th, .penstock-report td:not(:first-child):not(:last-child) { white-space: nowrap }
.penstock-report .bar { width: 30%; min-width: 7rem }
.penstock-report .limit { font-weight: 600; background: #dd6b2026; box-shadow: inset .2rem 0 var(--wait) }
.penstock-report p.limit { padding: .3rem .6rem }
.penstock-report svg { width: 100%; height: .9rem; background: var(--line); display: block }
.penstock-report .work { fill: var(--work) } .penstock-report .wait { fill: var(--wait) }
.penstock-report .key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 0 }
.penstock-report .key b { font-weight: 400; white-space: nowrap; margin-right: 1rem }
.penstock-report * { print-color-adjust: exact; -webkit-print-color-adjust: exact }
@media (max-width: 40rem) {
  .penstock-report th { display: none }
  .penstock-report tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line) }
  .penstock-report td { border: 0; padding: .1rem .8rem .1rem .3rem }
  .penstock-report td:empty { display: none }
  .penstock-report td:first-child, .penstock-report .bar { flex-basis: 100% }
  .penstock-report td:not(:first-child):not(.bar)::before { content: attr(data-head) " "; opacity: .7 }
}
"""


_ENDED: Final = "It does not answer any more: this is the last that it has told."
_SCRIPT: Final = """
const now = document.getElementById("now"), ended = document.getElementById("ended");
async function show() {
  try {
    const answer = await fetch("now");
    if (!answer.ok) throw answer.status;
    const text = await answer.text();
    if (getSelection().isCollapsed) now.innerHTML = text;  // what the reader copies stays
    ended.hidden = true;
  } catch { ended.hidden = false }
  setTimeout(show, 1000);
}
setTimeout(show, 1000);
"""


def page(fragment: str) -> str:
    """Return a page with what `shown` has returned."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>penstock report</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_PAGE_STYLE}</style></head>'
        f"<body>{fragment}</body></html>"
    )


def live_page(fragment: str) -> str:
    """Return a page that asks for the present fragment every second, at `now`, until its process has ended."""
    return page(f'<p id="ended" hidden>{_ENDED}</p><div id="now">{fragment}</div><script>{_SCRIPT}</script>')


def shown(lines: Sequence[str], ranks: Sequence[tuple[Snapshot, Verdict]], slowest: int) -> str:
    """Return a report as HTML: its words, its operators, and pictures of the slowest rank and of all."""
    snapshot, verdict = ranks[slowest]
    first, *lines = lines
    words = "".join(f'<p class="{escape(line.split(":")[0])}">{escape(line)}</p>' for line in lines)
    slow = [
        (f"step {one.number:,}", duration(one.blocked), *_named(snapshot, one.operator, one.rows))
        for one in snapshot.steps.slowest
    ]
    parts = [
        f"<h1>{escape(first)}</h1>{words}",
        "<h2>Operators</h2>" + _key() + _plan(snapshot, verdict.operator),
        "<h2>Threads</h2>" + table(("thread", ""), _lanes(snapshot)),
        "<h2>Ranks</h2>" + table(("rank", "waiting", ""), _ranks(ranks)) if len(ranks) > 1 else "",
        "<h2>Start</h2>" + table(("took", "seconds", ""), _start(snapshot)) if snapshot.start else "",
        "<h2>Waits of steps</h2>" + table(("waits", "steps", ""), _waits(snapshot)),
        "<h2>Slowest steps</h2>" + table(("slowest", "waited", "for", "first row"), slow) if slow else "",
    ]
    return framed("".join(parts))


def framed(content: str) -> str:
    """Return HTML in the style of reports."""
    return f'<div class="penstock-report"><style>{_STYLE}</style>{content}</div>'


def _plan(snapshot: Snapshot, limit: int) -> str:
    """Return the table of operators with a bar for each, and the limit lit."""
    rows = [
        (escape(name), bar(cost.works, cost.waits), *rest) for cost in costs(snapshot) for name, *rest in [cost.cells]
    ]
    return table((HEADS[0], "", *HEADS[1:]), rows, limit)


def _named(snapshot: Snapshot, operator: int, rows: str) -> tuple[str, str]:
    return escape(short_name(snapshot.operators[operator])) if operator >= 0 else "", escape(rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], lit: int = -1) -> str:
    """Return a table; the cells are HTML, those without a head are bars."""
    body = "".join(
        f"<tr{' class=limit' if number == lit else ''}>{''.join(map(_cell, heads, row))}</tr>"
        for number, row in enumerate(rows)
    )
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{body}</table>"


def _cell(head: str, cell: str) -> str:
    return f'<td data-head="{head}">{cell}</td>' if head else f'<td class="bar">{cell}</td>'


def _key() -> str:
    colours = (("work", "at work"), ("wait", "waiting for others"), ("line", "nothing to do"))
    words = "".join(f"<b><span style=background:var(--{name})></span>{word}</b>" for name, word in colours)
    return f'<p class="key">{words}</p>'


def bar(work: float, wait: float = 0.0) -> str:
    """Return a bar of two shares of its width."""
    work, wait = min(work, 1.0), min(wait, 1.0 - min(work, 1.0))
    return (
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none">'
        f'<rect class="work" width="{work * 100:.1f}" height="10"/>'
        f'<rect class="wait" x="{work * 100:.1f}" width="{wait * 100:.1f}" height="10"/></svg>'
    )


def _lanes(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    """A bar for your loop, and for each kind of threads."""
    elapsed = max(snapshot.elapsed, 1e-9)
    steps = snapshot.steps
    yield "your loop", bar(steps.yours.total / elapsed, steps.blocked.total / elapsed)
    for stage in snapshot.stages:
        if stage.name != "consumer":  # which is at work while your loop waits
            owner = short_name(snapshot.operators[stage.owner]) if stage.owner >= 0 else stage.name
            name = "calls of functions" if stage.name == "worker" else escape(owner)
            time = elapsed * max(1, stage.threads)
            threads = f"{stage.threads:,} threads" if stage.threads > 1 else "1 thread"
            yield f"{name}: {threads}", bar(stage.busy / time, stage.waited / time)


def _ranks(ranks: Sequence[tuple[Snapshot, Verdict]]) -> Iterable[tuple[str, str, str]]:
    for snapshot, verdict in ranks:
        yield (
            f"{snapshot.rank} ({escape(snapshot.host)})",
            f"{verdict.waiting:.0%}",
            bar(1 - verdict.waiting, verdict.waiting),
        )


def _start(snapshot: Snapshot) -> Iterable[tuple[str, str, str]]:
    whole = max(sum(snapshot.start.values()), 1e-9)
    for name, seconds in snapshot.start.items():
        yield escape(name), duration(seconds), bar(0, seconds / whole)


def _waits(snapshot: Snapshot) -> Iterable[tuple[str, str, str]]:
    waits = snapshot.steps.blocked.by_doubling()
    most = max((count for _, count in waits), default=1)
    for upper, count in waits:
        yield f"up to {duration(upper)}", f"{count:,}", bar(0, count / most)
