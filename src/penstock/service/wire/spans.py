"""Set arithmetic of spans.

Offsets are compared as pairs of numbers. How many elements a position has is not known here, so two different pairs may
mean the same offset; but a span and the one that follows it use the same pair for their border.
"""

from bisect import bisect_left
from collections.abc import Iterable

from penstock.service.wire.subjects import PassOffset, Span


def count(spans: Iterable[Span]) -> int:
    """The number of positions that the spans touch, except those that an earlier span begins."""
    return sum(span.stop - span.start + (span.more > 0) for span in spans)


def without(spans: Iterable[Span], taken: Span) -> list[Span]:
    """The parts of `spans` outside `taken`."""
    left: list[Span] = []
    first, end = taken.first, taken.end
    for span in spans:
        if span.pass_number != taken.pass_number or end <= span.first or span.end <= first:
            left.append(span)
            continue
        if span.first < first:
            left.append(Span.between(span.pass_number, span.first, first))
        if end < span.end:
            left.append(Span.between(span.pass_number, end, span.end))
    return left


def overlap(spans: Iterable[Span], other: Span) -> list[Span]:
    """The part of `spans` that is also in `other`."""
    first, end = other.first, other.end
    return [
        Span.between(span.pass_number, max(span.first, first), min(span.end, end))
        for span in spans
        if span.pass_number == other.pass_number and max(span.first, first) < min(span.end, end)
    ]


def clipped(spans: Iterable[Span], pass_number: int, length: int) -> list[Span]:
    """`spans` without the positions of a pass from `length` on."""
    return without(spans, Span(pass_number=pass_number, start=length, stop=1 << 63))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same elements in order, in as few spans as possible."""
    ordered = sorted(spans, key=_start)
    result: list[Span] = []
    for span in ordered:
        last = result[-1] if result else None
        if last is not None and joins(last, span):
            result[-1] = Span.between(span.pass_number, last.first, span.end)
        else:
            result.append(span)
    return result


def insert(spans: list[Span], span: Span) -> None:
    """Insert a span into sorted ones that do not overlap it; adjacent spans are joined."""
    start = stop = bisect_left(spans, _start(span), key=_start)
    if stop < len(spans) and joins(span, spans[stop]):
        span = Span.between(span.pass_number, span.first, spans[stop].end)
        stop += 1
    if start and joins(spans[start - 1], span):
        start -= 1
        span = Span.between(span.pass_number, spans[start].first, span.end)
    spans[start:stop] = [span]  # at once: a signal handler may need them after any call


def _start(span: Span) -> tuple[int, PassOffset]:
    return span.pass_number, span.first


def joins(first: Span, second: Span) -> bool:
    """Return whether `second` begins exactly where `first` ends."""
    return first.pass_number == second.pass_number and first.end == second.first
