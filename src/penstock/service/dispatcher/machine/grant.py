"""Which free positions a consumer gets that asks for some."""

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.service.dispatcher.machine.ledger import Ledger
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import Span


def grant(ledgers: Sequence[Ledger], wanted: int, readers: int) -> list[Span]:
    """About `wanted` free positions: first those that were given back, then some of every pass.

    Near the end no consumer of several gets more than half of its share of what is left, so that all finish together.
    """
    left = min(wanted, _fair(ledgers, readers))
    spans: list[Span] = []
    for ledger in ledgers:
        for span in ledger.returned:
            if left == 0:
                return spans
            spans.append(first_positions(span, left))
            left = max(0, left - count([spans[-1]]))
    unread = [ledger for ledger in ledgers if ledger.frontier < ledger.bound]
    unread.sort(key=lambda ledger: (ledger.frontier, ledger.part.number))
    for index, ledger in enumerate(unread):
        if left == 0:
            break
        share = -(-left // (len(unread) - index))
        stop = min(ledger.bound, ledger.frontier + share)
        spans.append(Span(pass_number=ledger.part.number, start=ledger.frontier, stop=stop))
        left -= stop - ledger.frontier
    return spans


def first_positions(span: Span, wanted: int) -> Span:
    """The first `wanted` positions; all of a span that skips, because that may run on over any of its positions."""
    if span.skip or span.stop - span.start <= wanted:
        return span
    return replace(span, stop=span.start + wanted, more=0)


def _fair(ledgers: Sequence[Ledger], readers: int) -> int:
    """The most that one of so many consumers may get now."""
    free = 0
    for ledger in ledgers:
        if ledger.free is None:
            return 1 << 62
        free += ledger.free
    return max(1, free // (2 * readers)) if readers > 1 else free
