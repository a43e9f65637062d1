"""Consumers of a shared job: what they are granted, acknowledge and give back, and that they are alive."""

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.errors import InvalidArgumentError, LostLeaseError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.opening import check_spans, suspicious_seconds
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import Consumer, Epoch, Ledger, State
from penstock.service.dispatcher.machine.updates import Consumed, ConsumerGone, Granted, PassEnded, Returned, Update
from penstock.service.dispatcher.machine.workers import losing
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    ConsumerNews,
    Done,
    Lease,
    Leased,
    ReleaseConsumer,
)
from penstock.service.wire.spans import count, overlap, without
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


_RETRY_SECONDS = 0.2
_RECALL_RETRY_SECONDS = 0.05
"""The same where others are about to give positions back."""
_STARVING_SECONDS = 1.0
"""For how long a reader that asked and got nothing is taken to be waiting still."""
_DOUBT = 1.5
"""How many heartbeats a worker may be late before a reader that cannot reach it is believed."""


def lease(
    state: State, signs: Signs, config: DispatcherConfig, message: Lease, now: float
) -> tuple[list[Update], Leased]:
    """A consumer acknowledges, gives back, and asks for more.

    Raises:
        LostLeaseError: what it had was given to others.
        InvalidArgumentError: it reads alone, or names what is no span of its epoch.
    """
    consumer, epoch = _reader(state, message.consumer_id)
    if not state.leased(epoch):
        raise InvalidArgumentError("this consumer does not lease positions: they are all its own, or go by rounds")
    updates, reply = _leased(state, signs, config, consumer, epoch, message, now)
    _note(signs, message, reply, now)
    wanted = not message.returned and _is_wanted(state, signs, consumer, epoch, now)
    return updates, replace(reply, wanted=wanted, near_end=_near_end(state, epoch))


def _leased(
    state: State,
    signs: Signs,
    config: DispatcherConfig,
    consumer: Consumer,
    epoch: Epoch,
    message: Lease,
    now: float,
) -> tuple[list[Update], Leased]:
    if message.number and message.number == consumer.answered[0]:
        return [], Leased(spans=consumer.answered[1])
    for spans in (message.consumed, message.returned, message.ended):
        _check(epoch, spans)
    returned = _returned(consumer, message)
    ledgers = _afterwards(epoch, returned, message.ended)
    updates: list[Update] = [
        PassEnded(epoch_id=epoch.epoch_id, pass_number=span.pass_number, length=span.stop)
        for span in message.ended
        if epoch.ledgers[span.pass_number].part.length == -2
    ]
    if message.consumed:
        updates.append(Consumed(consumer_id=consumer.consumer_id, spans=message.consumed))
    if returned:
        updates.append(Returned(consumer_id=consumer.consumer_id, spans=returned))
    if message.positions <= 0:
        return updates, Leased()
    spans = _granted(state, signs, config, consumer, epoch, ledgers, message.positions, now)
    if spans:
        updates.append(Granted(consumer_id=consumer.consumer_id, number=message.number, spans=spans))
        return updates, Leased(spans=spans)
    return updates, _nothing(state, signs, config, consumer, epoch, ledgers, now)


def _reader(state: State, consumer_id: int) -> tuple[Consumer, Epoch]:
    consumer = state.consumers.get(consumer_id)
    if consumer is None or not consumer.alive:
        raise LostLeaseError(
            f"the dispatcher knows no reader {consumer_id}: it was not heard of for too long, and what it had not "
            "consumed was given to others, or it reads elsewhere from its state, or the dispatcher was started anew "
            "without a journal (`penstock dispatcher --work-dir`)"
        )
    return consumer, state.epochs[consumer.epoch_id]


def _check(epoch: Epoch, spans: list[Span]) -> None:
    check_spans(spans)
    for span in spans:
        if span.pass_number >= len(epoch.ledgers):
            raise InvalidArgumentError(f"the epoch has {len(epoch.ledgers)} passes, got {span!r}")


def _returned(consumer: Consumer, message: Lease) -> list[Span]:
    """What is given back of what is the consumer's own, after what it acknowledges."""
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


def _afterwards(epoch: Epoch, returned: list[Span], ended: list[Span]) -> list[Ledger]:
    """The ledgers, as they will be when the positions are given back and the passes have ended."""
    changed = {span.pass_number: epoch.ledgers[span.pass_number].copy() for span in [*returned, *ended]}
    for span in ended:
        changed[span.pass_number].end(span.stop)
    for span in returned:
        changed[span.pass_number].give_back(span)
    return [changed.get(number, ledger) for number, ledger in enumerate(epoch.ledgers)] if changed else epoch.ledgers


def _granted(
    state: State,
    signs: Signs,
    config: DispatcherConfig,
    consumer: Consumer,
    epoch: Epoch,
    ledgers: list[Ledger],
    wanted: int,
    now: float,
) -> list[Span]:
    if consumer.owed:
        return _first(consumer.owed, wanted)
    if _waits_for_others(signs, config, epoch, now):
        return []
    return grant(ledgers, wanted, len(state.readers(epoch)))


def _first(spans: list[Span], wanted: int) -> list[Span]:
    """The first `wanted` positions."""
    first: list[Span] = []
    for span in spans:
        if wanted > 0:
            first.append(first_positions(span, wanted))
            wanted -= count([first[-1]])
    return first


def _waits_for_others(signs: Signs, config: DispatcherConfig, epoch: Epoch, now: float) -> bool:
    """Whether other readers may still come back from their states, and say what of this epoch is theirs."""
    return epoch.restored and now - signs.begun.setdefault(epoch.epoch_id, now) < config.lease_seconds


def _nothing(
    state: State,
    signs: Signs,
    config: DispatcherConfig,
    consumer: Consumer,
    epoch: Epoch,
    ledgers: list[Ledger],
    now: float,
) -> Leased:
    """There is nothing to lease now: perhaps there will be, when others turn out to be dead or workers come."""
    nothing_left = bool(ledgers) and all(ledger.free == 0 for ledger in ledgers)
    others = [other for other in state.readers(epoch) if other is not consumer]
    if nothing_left and not any(_may_give_back(other, signs, config, now) for other in others):
        return Leased(ended=True)
    recalls = any(signs.unread.get(other.consumer_id) for other in others)
    retry = _RECALL_RETRY_SECONDS if recalls else _RETRY_SECONDS
    return Leased(retry_after=min(retry, config.lease_seconds / 10))


def _may_give_back(other: Consumer, signs: Signs, config: DispatcherConfig, now: float) -> bool:
    """Whether something that a reader has may come to others: it has not handed it on, or it may be dead."""
    if not other.leased and not other.owed:
        return False
    silent = signs.consumer_silence(other.consumer_id, now) > suspicious_seconds(config)
    return silent or bool(other.owed) or signs.unread.get(other.consumer_id, 1) > 0


def _note(signs: Signs, message: Lease, reply: Leased, now: float) -> None:
    """Remember what a reader can give back, and whether it has nothing to hand on."""
    granted = count(reply.spans)
    if message.unread >= 0:
        signs.unread[message.consumer_id] = message.unread + granted
    else:
        signs.unread.pop(message.consumer_id, None)
    if granted or reply.ended or not message.waiting or message.unread != 0:
        signs.starving.pop(message.consumer_id, None)
    elif message.positions > 0:
        signs.starving[message.consumer_id] = now


def _is_wanted(state: State, signs: Signs, consumer: Consumer, epoch: Epoch, now: float) -> bool:
    """Whether a reader is to give back what it does not need soon, because another one has nothing."""
    if signs.unread.get(consumer.consumer_id, 1) == 0 or any(ledger.free != 0 for ledger in epoch.ledgers):
        return False
    return any(
        now - signs.starving.get(other.consumer_id, float("-inf")) < _STARVING_SECONDS
        for other in state.readers(epoch)
        if other is not consumer
    )


def _near_end(state: State, epoch: Epoch) -> bool:
    """Whether no more is free than readers have been given, which is what they use in about a second."""
    free = [ledger.free for ledger in epoch.ledgers]
    if not free or None in free:
        return False
    return sum(map(int, filter(None, free))) <= sum(count(reader.leased) for reader in state.readers(epoch))


def heartbeat(
    state: State, signs: Signs, config: DispatcherConfig, message: ConsumerHeartbeat, now: float
) -> tuple[list[Update], ConsumerNews]:
    """A consumer is alive, and hears what holds now.

    Raises:
        LostLeaseError: it was taken for dead.
    """
    consumer, epoch = _reader(state, message.consumer_id)
    lost = {
        worker_id
        for worker_id in message.lost_workers
        if worker_id in state.workers
        and state.workers[worker_id].alive
        and signs.worker_silence(worker_id, now) > _DOUBT * config.heartbeat_seconds
    }
    return list(losing(state, lost)), replace(
        signs.changes.since(message.version, state, epoch),
        stopping=state.stopping == "now",
        wanted=_is_wanted(state, signs, consumer, epoch, now),
        left=[number for number in message.lost_workers if (gone := state.workers.get(number)) and gone.leaving],
    )


def release(
    state: State, signs: Signs, config: DispatcherConfig, message: ReleaseConsumer, now: float
) -> tuple[list[Update], Done]:
    """A consumer reads no further."""
    consumer = state.consumers.get(message.consumer_id)
    if consumer is None or not consumer.alive:
        return [], Done()
    _check(state.epochs[consumer.epoch_id], message.consumed)
    updates: list[Update] = []
    if message.consumed:
        updates.append(Consumed(consumer_id=consumer.consumer_id, spans=message.consumed))
    return [*updates, ConsumerGone(consumer_id=consumer.consumer_id)], Done()
