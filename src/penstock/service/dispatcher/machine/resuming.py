"""The positions of a consumer that was restored from a state.

The state names the spans that it had consumed. Everything else that it owned or consumed under its name comes back to
it; of the other positions that its state claims, it gets the free ones.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from penstock.errors import InvalidArgumentError, StateMismatchError
from penstock.service.dispatcher.machine.state import Consumer, Epoch, State
from penstock.service.wire.spans import merged, without
from penstock.service.wire.subjects import PassInfo, Span

_MOST_PASSES: Final = 1 << 16
"""An epoch has one pass for each worker that joined while it was read; larger numbers in messages are refused."""


class Resumed(msgspec.Struct, frozen=True):
    """The spans that a consumer begins with, and those that become free."""

    owed: list[Span] = []
    consumed: list[Span] = []
    returned: list[Span] = []


def resume(state: State, epoch: Epoch | None, before: Consumer | None, past: Sequence[Span] | None) -> Resumed:
    """Return the spans of a consumer that had consumed `past`; if `past` is None it has no state.

    Args:
        before: the consumer of the same name that has read the epoch so far.
    """
    if past is None:
        # It has no state, so its last leases did not reach it.
        return Resumed() if before is None else Resumed(consumed=before.consumed, returned=_spans_of(before))
    check_spans(past)
    rest = _left_open(past) if before is None else merged([*before.consumed, *_spans_of(before)])
    for span in past:
        rest = without(rest, span)
    consumed = list(past)
    for span in [] if epoch is None else _spans_of_others(state, epoch, before):
        rest, consumed = without(rest, span), without(consumed, span)
    consumed = merged(span for span in consumed if span.first < span.end)
    # Other consumers that are not known may have had some of the rest, and claim it when they join.
    return (
        Resumed(consumed=consumed, returned=rest) if before is None else Resumed(owed=merged(rest), consumed=consumed)
    )


def check_spans(spans: Sequence[Span]) -> None:
    """Refuse invalid spans.

    Raises:
        InvalidArgumentError: a number is negative or larger than any that was granted, or a span ends before it begins.
    """
    for span in spans:
        if (
            span.pass_number >= _MOST_PASSES
            or span.pass_number < 0
            or span.start < 0
            or span.end < span.first
            or span.skip < 0
            or span.more < 0
            or span.stop >= 1 << 62
        ):
            raise InvalidArgumentError(f"no span of a pass: {span!r}")


def check_past(past: Sequence[Span], passes: Sequence[PassInfo]) -> None:
    """Refuse a past that does not fit these passes.

    Raises:
        StateMismatchError: it has positions that they do not have.
        InvalidArgumentError: as `check_spans`.
    """
    check_spans(past)
    for span in past:
        length = passes[span.pass_number].length if span.pass_number < len(passes) else 0
        if 0 <= length < span.stop or (span.pass_number >= len(passes) and span.first < span.end):
            raise StateMismatchError(
                f"the state says that position {max(0, span.stop - 1)} of pass {span.pass_number} was read, which this "
                f"epoch does not have: it has {len(passes)} passes, and this one {length} positions"
            )


def _left_open(past: Sequence[Span]) -> list[Span]:
    """The rest of positions of which an unknown consumer's state has some elements.

    That rest may reach over any number of positions, up to where the next span of the past begins.
    """
    opened = []
    for span, following in pairwise([*past, None]):
        if span is not None and span.more:
            ends = following is not None and following.pass_number == span.pass_number
            end = following.first if following is not None and ends else (span.stop + 1, 0)
            opened.append(Span.between(span.pass_number, span.end, end))
    return opened


def _spans_of(consumer: Consumer) -> list[Span]:
    return [*consumer.leased, *consumer.owed]


def _spans_of_others(state: State, epoch: Epoch, before: Consumer | None) -> list[Span]:
    """The spans that other consumers own or have consumed."""
    return [
        span
        for number in epoch.consumers
        if before is None or number != before.consumer_id
        for span in [*state.consumers[number].consumed, *_spans_of(state.consumers[number])]
    ]
