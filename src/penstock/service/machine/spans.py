"""Arithmetic of spans: what is left of some when others are taken out of them."""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from penstock.service.subjects import Span


def count(spans: Iterable[Span]) -> int:
    """How many positions they have."""
    return sum(span.stop - span.start for span in spans)


def without(spans: Iterable[Span], taken: Span) -> list[Span]:
    """What is left of `spans` without the positions of `taken`, and without `taken.skip` elements of its `stop`."""
    left: list[Span] = []
    for span in spans:
        if span.pass_number != taken.pass_number or taken.stop < span.start or span.stop <= taken.start:
            left.append(span)
            continue
        if span.start < taken.start:
            left.append(msgspec.structs.replace(span, stop=taken.start))
        if taken.stop < span.stop:
            keeps_skip = taken.stop == span.start and taken.skip == 0
            skip = span.skip if keeps_skip else taken.skip
            left.append(msgspec.structs.replace(span, start=max(span.start, taken.stop), skip=skip))
    return left


def overlap(spans: Iterable[Span], other: Span) -> list[Span]:
    """The part of `spans` that has positions of `other`."""
    return [
        Span(
            pass_number=span.pass_number,
            start=max(span.start, other.start),
            stop=min(span.stop, other.stop),
            skip=span.skip if span.start >= other.start else 0,
        )
        for span in spans
        if span.pass_number == other.pass_number and max(span.start, other.start) < min(span.stop, other.stop)
    ]


def whole(spans: Iterable[Span]) -> list[Span]:
    """The same positions with all their elements."""
    return [msgspec.structs.replace(span, skip=0) if span.skip else span for span in spans]


def clipped(spans: Iterable[Span], pass_number: int, length: int) -> list[Span]:
    """`spans` without positions of that pass from `length` on."""
    return without(spans, Span(pass_number=pass_number, start=length, stop=1 << 63))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same positions in order, in as few spans as possible."""
    ordered = sorted(spans, key=_place)
    result: list[Span] = []
    for span in ordered:
        last = result[-1] if result else None
        if last is not None and joins(last, span):
            result[-1] = msgspec.structs.replace(last, stop=span.stop)
        else:
            result.append(span)
    return result


def insert(spans: list[Span], span: Span) -> None:
    """Put a span among others that are in order and do not overlap it; spans that touch become one."""
    index = bisect_left(spans, _place(span), key=_place)
    if index < len(spans) and joins(span, spans[index]):
        span = msgspec.structs.replace(span, stop=spans.pop(index).stop)
    if index and joins(spans[index - 1], span):
        spans[index - 1] = msgspec.structs.replace(spans[index - 1], stop=span.stop)
    else:
        spans.insert(index, span)


def _place(span: Span) -> tuple[int, int]:
    return span.pass_number, span.start


def joins(first: Span, second: Span) -> bool:
    """Whether `second` goes on where `first` ends, with nothing left out between."""
    return first.pass_number == second.pass_number and first.stop == second.start and second.skip == 0
