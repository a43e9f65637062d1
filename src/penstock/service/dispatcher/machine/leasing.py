"""Grants spans of a shared job to consumers, which acknowledge them, give them back, and report that they are alive."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.errors import InvalidArgumentError, LostLeaseError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.service.dispatcher.machine.knowledge import Change, Decision, Knowledge
from penstock.service.dispatcher.machine.passes import losing
from penstock.service.dispatcher.machine.resuming import check_spans
from penstock.service.dispatcher.machine.state import Consumer, Epoch, Ledger
from penstock.service.dispatcher.machine.updates import Consumed, ConsumerGone, Granted, PassEnded, Returned
from penstock.service.dispatcher.machine.volatile import ConsumerHolds
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, Done, Lease, Leased, ReleaseConsumer
from penstock.service.wire.spans import clipped, count, overlap, without
from penstock.service.wire.subjects import Span

_RETRY_SECONDS: Final = 0.2
"""When a consumer that was granted nothing should ask again."""
_RECALL_RETRY_SECONDS: Final = 0.05
"""The same, if other consumers are about to give positions back."""
_STARVING_SECONDS: Final = 1.0
"""How long a consumer that was granted nothing counts as waiting."""
_DOUBT: Final = 1.5
"""If a worker is late by this many heartbeats, the report of a consumer that cannot reach it is trusted."""


def lease_spans(known: Knowledge, message: Lease) -> Decision:
    """Handle acknowledged and returned spans, and grant more.

    Raises:
        LostLeaseError: its positions were given to others.
        InvalidArgumentError: it reads alone, or names an invalid span.
    """
    consumer, epoch = _reader(known, message.consumer_id)
    if not known.state.leased(epoch):
        raise InvalidArgumentError("this consumer does not lease positions: they are all its own, or go by rounds")
    changes, reply = _leased(known, consumer, epoch, message)
    holds = _holds(message, reply)
    changes.append(holds)
    wanted = not message.returned and holds.unread != 0 and _others_starve(known, consumer, epoch)
    near_end = _near_end(known, epoch)
    return changes, replace(reply, wanted=wanted, near_end=near_end) if wanted or near_end else reply


def _leased(known: Knowledge, consumer: Consumer, epoch: Epoch, message: Lease) -> tuple[list[Change], Leased]:
    if message.number and message.number == consumer.answered[0]:
        return [], Leased(spans=consumer.answered[1])
    _check(epoch, [*message.consumed, *message.returned, *message.ended])
    returned = _returned(consumer, message)
    ledgers = _ledgers_after(epoch, returned, message.ended)
    changes: list[Change] = [
        PassEnded(epoch_id=epoch.epoch_id, pass_number=span.pass_number, length=span.stop)
        for span in message.ended
        if epoch.ledgers[span.pass_number].info.length == UNKNOWN_CARDINALITY
    ]
    if message.consumed:
        changes.append(Consumed(consumer_id=consumer.consumer_id, spans=message.consumed))
    if returned:
        changes.append(Returned(consumer_id=consumer.consumer_id, spans=returned))
    if message.positions <= 0:
        return changes, Leased()
    # Positions that an idle consumer has just given back for one that waits must not return to it.
    yields = not message.waiting and _another_starves(known, consumer, epoch)
    spans = [] if yields else _granted(known, consumer, epoch, ledgers, message.positions)
    if not spans and message.waiting and message.unread == 0 and all(ledger.free == 0 for ledger in ledgers):
        recalled = _recalled(known, consumer, epoch, message)
        changes += recalled
        spans = [span for change in recalled for span in change.spans]
    if spans:
        changes.append(Granted(consumer_id=consumer.consumer_id, number=message.number, spans=spans))
        return changes, Leased(spans=spans)
    return changes, _empty_answer(known, consumer, epoch, ledgers)


def _reader(known: Knowledge, consumer_id: int) -> tuple[Consumer, Epoch]:
    consumer = known.state.consumers.get(consumer_id)
    if consumer is None or not consumer.alive:
        raise LostLeaseError(
            f"the dispatcher knows no reader {consumer_id}: it was silent for too long, and the positions that "
            "it had not consumed were given to others, or it reads elsewhere from its state, or the dispatcher was "
            "restarted without a journal (`penstock dispatcher --work-dir`)"
        )
    return consumer, known.state.epochs[consumer.epoch_id]


def _granted(known: Knowledge, consumer: Consumer, epoch: Epoch, ledgers: list[Ledger], wanted: int) -> list[Span]:
    if consumer.owed:
        return _first(consumer.owed, wanted)
    if _waits_for_others(known, epoch):
        return []
    return grant(ledgers, _fair_share(known, epoch, ledgers, wanted))


def _fair_share(known: Knowledge, epoch: Epoch, ledgers: list[Ledger], wanted: int) -> int:
    """Return the number of the wanted positions that one consumer may get now.

    Near the end no consumer of several gets more than half of its share of the free positions, so that all finish
    together.
    """
    free = 0
    for ledger in ledgers:
        if ledger.free is None:
            return wanted
        free += ledger.free
    if wanted <= free // (2 * len(epoch.consumers)):  # there may be hundreds, of which some are gone
        return wanted
    readers = len(known.readers(epoch))
    return min(wanted, max(1, free // (2 * readers)) if readers > 1 else free)


def _recalled(known: Knowledge, consumer: Consumer, epoch: Epoch, message: Lease) -> list[Returned]:
    """Take up to half of the positions owed to the consumer that is owed most, for one that has none.

    A restored consumer leases the positions owed to it as it needs them, perhaps never: no other should wait.
    """
    others = [other for other in known.readers(epoch) if other is not consumer and other.owed]
    if not others:
        return []
    owner = max(others, key=lambda other: count(other.owed))
    owed = owner.owed
    for end in message.ended:
        owed = clipped(owed, end.pass_number, end.stop)
    spans = _first(owed, min(message.positions, -(-count(owed) // 2)))
    return [Returned(consumer_id=owner.consumer_id, spans=spans)] if spans else []


def _waits_for_others(known: Knowledge, epoch: Epoch) -> bool:
    """Return whether other restored consumers may still join this epoch, and claim parts of it."""
    age = known.now - known.volatile.begun_at[epoch.epoch_id]
    return epoch.restored and age < known.config.lease_seconds


def _empty_answer(known: Knowledge, consumer: Consumer, epoch: Epoch, ledgers: list[Ledger]) -> Leased:
    """The answer if nothing can be leased now: the end, or when to ask again."""
    nothing_left = bool(ledgers) and all(ledger.free == 0 for ledger in ledgers)
    others = [other for other in known.readers(epoch) if other is not consumer]
    if nothing_left and not any(_may_give_back(known, other) for other in others):
        return Leased(ended=True)
    recalls = any(known.volatile.consumers[other.consumer_id].unread > 0 for other in others)
    retry = _RECALL_RETRY_SECONDS if recalls else _RETRY_SECONDS
    return Leased(retry_after=min(retry, known.config.lease_seconds / 10))


def _may_give_back(known: Knowledge, other: Consumer) -> bool:
    """Return whether a consumer may still give leases back, because it has not yielded them or may be dead."""
    if not other.leased and not other.owed:
        return False
    unread = known.volatile.consumers[other.consumer_id].unread
    return known.may_be_dead(other.consumer_id) or bool(other.owed) or unread != 0


def _others_starve(known: Knowledge, consumer: Consumer, epoch: Epoch) -> bool:
    """Return whether another consumer has nothing, and nothing is free for it."""
    return _another_starves(known, consumer, epoch) and all(ledger.free == 0 for ledger in epoch.ledgers)


def _another_starves(known: Knowledge, consumer: Consumer, epoch: Epoch) -> bool:
    """Return whether another consumer waits, and was granted nothing when it last asked."""
    now, consumers = known.now, known.volatile.consumers
    if now - known.volatile.starved_at >= _STARVING_SECONDS:  # usually none does, and there may be hundreds
        return False
    return any(
        now - consumers[other.consumer_id].starving_at < _STARVING_SECONDS
        for other in known.readers(epoch)
        if other is not consumer
    )


def _near_end(known: Knowledge, epoch: Epoch) -> bool:
    """Return whether at most as much is free as consumers hold, which they consume in about a second."""
    free = [ledger.free for ledger in epoch.ledgers]
    if not free or None in free:
        return False
    return sum(map(int, filter(None, free))) <= known.volatile.leased[epoch.epoch_id]


def hear_consumer(known: Knowledge, message: ConsumerHeartbeat) -> Decision:
    """Note that a consumer is alive, and answer with the news.

    Raises:
        LostLeaseError: it was considered dead.
    """
    consumer, epoch = _reader(known, message.consumer_id)
    state, volatile = known.state, known.volatile
    believed_after = _DOUBT * known.config.heartbeat_seconds
    lost = {
        worker_id
        for worker_id in message.lost_workers
        if worker_id in state.workers
        and state.workers[worker_id].alive
        and known.worker_silence(worker_id) > believed_after
    }
    unread = volatile.consumers[consumer.consumer_id].unread
    return list(losing(state, lost)), replace(
        volatile.changes.since(message.version, state, epoch),
        stopping=state.stopping == "now",
        wanted=unread != 0 and _others_starve(known, consumer, epoch),
        left=[number for number in message.lost_workers if (gone := state.workers.get(number)) and gone.leaving],
    )


def release_consumer(known: Knowledge, message: ReleaseConsumer) -> Decision:
    """End a consumer that reads no further."""
    consumer = known.state.consumers.get(message.consumer_id)
    if consumer is None or not consumer.alive:
        return [], Done()
    _check(known.state.epochs[consumer.epoch_id], message.consumed)
    changes: list[Change] = []
    if message.consumed:
        changes.append(Consumed(consumer_id=consumer.consumer_id, spans=message.consumed))
    return [*changes, ConsumerGone(consumer_id=consumer.consumer_id)], Done()


def _holds(message: Lease, reply: Leased) -> ConsumerHolds:
    """The number of positions a consumer can give back after this answer, and whether it has nothing to yield."""
    granted = count(reply.spans)
    starving: bool | None = None
    if granted or reply.ended or not message.waiting or message.unread != 0:
        starving = False
    elif message.positions > 0:
        starving = True
    return ConsumerHolds(message.consumer_id, message.unread + granted if message.unread >= 0 else -1, starving)


def _check(epoch: Epoch, spans: list[Span]) -> None:
    check_spans(spans)
    for span in spans:
        if span.pass_number >= len(epoch.ledgers):
            raise InvalidArgumentError(f"the epoch has {len(epoch.ledgers)} passes, got {span!r}")


def _returned(consumer: Consumer, message: Lease) -> list[Span]:
    """The returned spans that the consumer really has, apart from those that it acknowledges."""
    if not message.returned:
        return []
    left = consumer.leased
    for span in message.consumed:
        left = without(left, span)
    returned: list[Span] = []
    for span in message.returned:
        returned += overlap(left, span)
        left = without(left, span)
    return returned


def _ledgers_after(epoch: Epoch, returned: list[Span], ended: list[Span]) -> list[Ledger]:
    """The ledgers as they will be after the returned spans and the ends of passes."""
    changed = {span.pass_number: replace(epoch.ledgers[span.pass_number]) for span in [*returned, *ended]}
    for span in ended:
        changed[span.pass_number].end(span.stop)
    for number, ledger in changed.items():
        ledger.give_back(span for span in returned if span.pass_number == number)
    return [changed.get(number, ledger) for number, ledger in enumerate(epoch.ledgers)] if changed else epoch.ledgers


def grant(ledgers: Sequence[Ledger], wanted: int) -> list[Span]:
    """About `wanted` free positions: first those that were given back, then some of every pass."""
    left = wanted
    spans: list[Span] = []
    for ledger in ledgers:
        for span in ledger.returned:
            if left == 0:
                return spans
            spans.append(first_positions(span, left))
            left = max(0, left - count([spans[-1]]))
    unread = [ledger for ledger in ledgers if ledger.frontier < ledger.bound]
    unread.sort(key=lambda ledger: (ledger.frontier, ledger.info.number))
    for index, ledger in enumerate(unread):
        if left == 0:
            break
        share = -(-left // (len(unread) - index))
        stop = min(ledger.bound, ledger.frontier + share)
        spans.append(Span(pass_number=ledger.info.number, start=ledger.frontier, stop=stop))
        left -= stop - ledger.frontier
    return spans


def first_positions(span: Span, wanted: int) -> Span:
    """The first `wanted` positions; all of a span that skips elements, which may reach over any of its positions."""
    if span.skip or span.stop - span.start <= wanted:
        return span
    return replace(span, stop=span.start + wanted, more=0)


def _first(spans: list[Span], wanted: int) -> list[Span]:
    """The first `wanted` positions."""
    first: list[Span] = []
    for span in spans:
        if wanted > 0:
            first.append(first_positions(span, wanted))
            wanted -= count([first[-1]])
    return first
