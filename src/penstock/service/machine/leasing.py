"""Consumers of a shared job: what they ask for, acknowledge and give back, and that they are alive."""

from penstock.errors import InvalidArgumentError, LostLeaseError
from penstock.service.config import DispatcherConfig
from penstock.service.machine.grant import first_positions, grant
from penstock.service.machine.ledger import Ledger
from penstock.service.machine.opening import suspicious_seconds, workers_of
from penstock.service.machine.resuming import check_spans
from penstock.service.machine.signs import Signs
from penstock.service.machine.spans import count, overlap, without
from penstock.service.machine.state import Consumer, Epoch, State
from penstock.service.machine.updates import Consumed, ConsumerGone, Granted, PassEnded, Returned, Update
from penstock.service.machine.working import losing
from penstock.service.messages import ConsumerHeartbeat, ConsumerNews, Done, Lease, Leased, ReleaseConsumer
from penstock.service.subjects import Span

_RETRY_SECONDS = 0.2
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
    suspects = any(
        (other.leased or other.owed) and signs.consumer_silence(other.consumer_id, now) > suspicious_seconds(config)
        for other in state.readers(epoch)
        if other is not consumer
    )
    if nothing_left and not suspects:
        return Leased(ended=True)
    return Leased(retry_after=min(_RETRY_SECONDS, config.lease_seconds / 10))


def heartbeat(
    state: State, signs: Signs, config: DispatcherConfig, message: ConsumerHeartbeat, now: float
) -> tuple[list[Update], ConsumerNews]:
    """A consumer is alive, and hears what holds now.

    Raises:
        LostLeaseError: it was taken for dead.
    """
    _, epoch = _reader(state, message.consumer_id)
    lost = {
        worker_id
        for worker_id in message.lost_workers
        if worker_id in state.workers
        and state.workers[worker_id].alive
        and signs.worker_silence(worker_id, now) > _DOUBT * config.heartbeat_seconds
    }
    return list(losing(state, lost)), ConsumerNews(
        passes=[ledger.part for ledger in epoch.ledgers],
        workers=workers_of(state),
        stopping=state.stopping == "now",
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
