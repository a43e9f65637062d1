"""A consumer begins to read an epoch: alone or with others, anew or from a state.

The state of a consumer that was restored says what it had consumed. Whatever else it has owned or consumed under its
name comes back to it, wherever it was consumed after the state was taken; of what its state claims besides, it gets
what is free.
"""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidArgumentError, ServiceError, StateMismatchError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import Consumer, Dataset, Epoch, Job, State
from penstock.service.dispatcher.machine.updates import ConsumerGone, ConsumerOpened, EpochCreated, JobCreated, Update
from penstock.service.dispatcher.machine.workers import added, first_passes
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, EpochOpened, OpenEpoch
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.spans import merged, without
from penstock.service.wire.subjects import JobParameters, Pass, Span, WorkerInfo

_MOST_PASSES = 1 << 16
"""An epoch has as many as workers have come while it was read: memory is not taken for numbers that nobody counted."""


class Resumed(msgspec.Struct, frozen=True):
    """What a consumer begins with, and what is free then."""

    owed: list[Span] = []
    consumed: list[Span] = []
    returned: list[Span] = []


def resume(state: State, epoch: Epoch | None, before: Consumer | None, past: Sequence[Span] | None) -> Resumed:
    """What a consumer begins with that had consumed `past`, or that begins anew if it is None.

    Args:
        before: the consumer of the same name that has read the epoch so far.
    """
    if past is None:
        # It knows of nothing: what it was given last did not reach it.
        return Resumed() if before is None else Resumed(consumed=before.consumed, returned=_held(before))
    check_spans(past)
    rest = _opened(past) if before is None else merged([*before.consumed, *_held(before)])
    for span in past:
        rest = without(rest, span)
    consumed = list(past)
    for span in [] if epoch is None else _others(state, epoch, before):
        rest, consumed = without(rest, span), without(consumed, span)
    consumed = merged(span for span in consumed if span.first < span.end)
    # Others who are not known either may have had some of the rest, and say so when they come.
    return (
        Resumed(consumed=consumed, returned=rest) if before is None else Resumed(owed=merged(rest), consumed=consumed)
    )


def check_spans(spans: Sequence[Span]) -> None:
    """Refuse what is no span.

    Raises:
        InvalidArgumentError: a negative number, one that is larger than any that was given out, or a span that ends
            before it begins.
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


def _opened(past: Sequence[Span]) -> list[Span]:
    """What is left of positions of which the state of a consumer that is not known has some elements.

    What is left out of such a span may run on over any of its positions, up to where the next span of the past begins.
    """
    opened = []
    for span, following in pairwise([*past, None]):
        if span is not None and span.more:
            ends = following is not None and following.pass_number == span.pass_number
            end = following.first if following is not None and ends else (span.stop + 1, 0)
            opened.append(Span.between(span.pass_number, span.end, end))
    return opened


def _held(consumer: Consumer) -> list[Span]:
    return [*consumer.leased, *consumer.owed]


def _others(state: State, epoch: Epoch, before: Consumer | None) -> list[Span]:
    """What others own or have consumed."""
    return [
        span
        for number in epoch.consumers
        if before is None or number != before.consumer_id
        for span in [*state.consumers[number].consumed, *_held(state.consumers[number])]
    ]


class _Entered(NamedTuple):
    """The epoch that a consumer has come to, and what must change for it before the consumer is there.

    Attributes:
        pace: of coordinated reads, of the consumer with which one that takes the place of a dead one is to be in step.
    """

    updates: list[Update]
    epoch_id: int
    seed: int
    parts: list[Pass]
    pace: ConsumerHeartbeat | None = None


def open_epoch(
    state: State, signs: Signs, config: DispatcherConfig, message: OpenEpoch, now: float
) -> tuple[list[Update], EpochOpened]:
    """A consumer joins an epoch, which is created if nobody has opened it before.

    Raises:
        InvalidArgumentError: what is asked for can never work, or the job was begun in another way.
        StateMismatchError: the state that the consumer was restored from is of something else.
        ServiceError: it does not work now.
    """
    if state.stopping:
        raise ServiceError("this dispatcher is stopping: no epoch can be begun any more")
    _check(state, config, message)
    job = state.job_named(message.job_name)
    if job is not None:
        _check_same(state, job, message)
    epoch = state.epoch_of(job, message.epoch) if job is not None else None
    if epoch is None:
        entered = _created(state, config, message, job)
        signs.begun[entered.epoch_id] = now
    else:
        gone = [ConsumerGone(consumer_id=number) for number in _displaced(state, signs, config, epoch, message, now)]
        pace = _slowest(state, signs, config, epoch, message, now) if gone and message.resumed is None else None
        entered = _Entered([*gone], epoch.epoch_id, epoch.seed, [ledger.part for ledger in epoch.ledgers], pace)
    parameters = message.parameters
    leased = bool(message.job_name) and not parameters.num_consumers and not parameters.cross_trainer
    if leased and message.resumed:
        entered = _grown(entered, message)
        _check_past(message.resumed, entered.parts)
    opened = _consumer(state, epoch, entered.epoch_id, message, leased)
    signs.consumers[opened.consumer_id] = now
    return [*entered.updates, opened], EpochOpened(
        consumer_id=opened.consumer_id,
        epoch=message.epoch,
        seed=entered.seed,
        passes=entered.parts,
        workers=workers_of(state),
        leased=leased,
        version=signs.changes.version,
        rounds=[] if entered.pace is None else entered.pace.rounds,
        turn=0 if entered.pace is None else entered.pace.turn,
    )


def _consumer(state: State, epoch: Epoch | None, epoch_id: int, message: OpenEpoch, leased: bool) -> ConsumerOpened:
    """The consumer, with what is its own from its past."""
    before = _before(state, epoch, message.consumer)
    resumed = resume(state, epoch, before, message.resumed) if leased else Resumed()
    return ConsumerOpened(
        consumer_id=state.next_consumer,
        epoch_id=epoch_id,
        name=message.consumer,
        index=message.consumer_index,
        trainer=message.trainer,
        replaces=-1 if before is None else before.consumer_id,
        owed=resumed.owed,
        consumed=resumed.consumed,
        returned=resumed.returned,
    )


def workers_of(state: State) -> list[WorkerInfo]:
    """The workers, as consumers are told of them."""
    return [worker.info for worker in state.present()]


def _check(state: State, config: DispatcherConfig, message: OpenEpoch) -> None:
    parameters = message.parameters
    if parameters.dataset_id not in state.datasets:
        raise unknown_dataset(parameters.dataset_id)
    try:
        policy = ShardingPolicy(parameters.policy)
    except ValueError as error:
        raise InvalidArgumentError(f"there is no sharding policy with the number {parameters.policy}") from error
    if policy.static and not config.addresses:
        raise InvalidArgumentError(
            f"ShardingPolicy.{policy.name} gives every worker its own part, by its place in the dispatcher's list of "
            "workers, and this dispatcher has none: start it with DispatcherConfig(worker_addresses=[...]) or "
            "`penstock dispatcher --worker-address ...`, or use ShardingPolicy.DYNAMIC"
        )
    check_spans(message.resumed or ())
    count, index = parameters.num_consumers, message.consumer_index
    if count and not message.job_name:
        raise InvalidArgumentError("coordinated reads need a job_name, by which the consumers find each other")
    if not (0 <= index < count if count else index == -1):
        raise InvalidArgumentError(
            f"consumer_index must be from 0 to num_consumers - 1, got consumer_index={index}, num_consumers={count}"
        )


def unknown_dataset(dataset_id: str) -> InvalidArgumentError:
    """The error for a dataset that is not registered."""
    return InvalidArgumentError(
        f"the dispatcher knows no dataset {dataset_id!r}: call ps.service.register_dataset first, and again after the "
        "dispatcher was started anew"
    )


def _check_same(state: State, job: Job, message: OpenEpoch) -> None:
    ours, theirs = job.parameters, message.parameters
    other = [
        f"{name} is {_shown(name, ours)}, got {_shown(name, theirs)}"
        for name in JobParameters.__struct_fields__
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.dataset_id != theirs.dataset_id:
        other[0] += f", which has {_difference(state.datasets[ours.dataset_id], state.datasets[theirs.dataset_id])}"
    if other:
        raise InvalidArgumentError(
            f"all readers of the job {job.name!r} must ask for the same, and its first one asked for something else: "
            f"{'; '.join(other)}. Use another job_name, or wait until that job is finished and has no readers"
        )


def _difference(ours: Dataset, theirs: Dataset) -> str:
    explanations = (dataset.info.explanation.splitlines() for dataset in (theirs, ours))
    for step, instead in zip_longest(*explanations, fillvalue="nothing"):
        if step != instead:
            return f"the step {' '.join(step.split())!r} in place of {' '.join(instead.split())!r}"
    return "the same steps, with other functions or contents"


def _shown(name: str, parameters: JobParameters) -> str:
    value = getattr(parameters, name)
    return ShardingPolicy(value).name if name == "policy" else repr(value)


def _created(state: State, config: DispatcherConfig, message: OpenEpoch, job: Job | None) -> _Entered:
    """The epoch as it begins, with its job if need be."""
    updates: list[Update] = []
    job_id = state.next_job if job is None else job.job_id
    if job is None:
        updates.append(JobCreated(job_id=job_id, name=message.job_name, parameters=message.parameters))
    created = EpochCreated(
        epoch_id=state.next_epoch,
        job_id=job_id,
        number=message.epoch,
        seed=message.seed,
        restored=bool(message.resumed),
    )
    at_least = 1 + max((span.pass_number for span in message.resumed or ()), default=-1)
    info = state.datasets[message.parameters.dataset_id].info
    parts = first_passes(message.parameters, info, config, state.present(), at_least)
    return _Entered([*updates, created, *added(created.epoch_id, parts)], created.epoch_id, created.seed, parts)


def _grown(entered: _Entered, message: OpenEpoch) -> _Entered:
    """Under OFF, with passes of workers that were there when the state was taken, and are not now."""
    if message.parameters.policy != ShardingPolicy.OFF or not entered.parts:
        return entered
    count = 1 + max(span.pass_number for span in message.resumed or ())
    length = entered.parts[0].length
    more = [Pass(number=number, length=length) for number in range(len(entered.parts), count)]
    return entered._replace(updates=[*entered.updates, *added(entered.epoch_id, more)], parts=[*entered.parts, *more])


def _check_past(past: Sequence[Span], parts: Sequence[Pass]) -> None:
    check_spans(past)
    for span in past:
        length = parts[span.pass_number].length if span.pass_number < len(parts) else 0
        if 0 <= length < span.stop or (span.pass_number >= len(parts) and span.first < span.end):
            raise StateMismatchError(
                f"the state says that position {max(0, span.stop - 1)} of pass {span.pass_number} was read, which this "
                f"epoch does not have: it has {len(parts)} passes, and this one {length} positions"
            )


def _before(state: State, epoch: Epoch | None, name: str) -> Consumer | None:
    """The consumer of that name that has read this epoch before, if there is one."""
    if epoch is None:
        return None
    known = (state.consumers[number] for number in epoch.consumers)
    return next((consumer for consumer in known if consumer.name == name), None)


def _displaced(
    state: State, signs: Signs, config: DispatcherConfig, epoch: Epoch, message: OpenEpoch, now: float
) -> list[int]:
    """Of coordinated reads, the consumer that has gone silent and whose index this one takes.

    Raises:
        ServiceError: it has not gone silent.
    """
    if message.consumer_index < 0:
        return []
    for consumer in state.readers(epoch):
        if consumer.index != message.consumer_index or consumer.name == message.consumer:
            continue
        silence = signs.consumer_silence(consumer.consumer_id, now)
        if silence <= suspicious_seconds(config):
            raise ServiceError(
                f"the job {message.job_name!r} has a consumer with consumer_index={consumer.index}, which was heard of "
                f"{silence:.1f} s ago: give every consumer its own index; if it has just died, try again when it was "
                f"silent for {suspicious_seconds(config):g} s"
            )
        return [consumer.consumer_id]
    return []


def _slowest(
    state: State, signs: Signs, config: DispatcherConfig, epoch: Epoch, message: OpenEpoch, now: float
) -> ConsumerHeartbeat | None:
    """The last report of the consumer that is furthest behind, of the others that were heard of lately."""
    others = [
        signs.paces.get(consumer.consumer_id)
        for consumer in state.readers(epoch)
        if consumer.index != message.consumer_index
        and signs.consumer_silence(consumer.consumer_id, now) <= config.lease_seconds
    ]
    reports = [report for report in others if report is not None]
    return min(reports, key=lambda report: sum(report.rounds)) if len(reports) == len(others) and reports else None


def suspicious_seconds(config: DispatcherConfig) -> float:
    """After how long a silence a consumer may be dead."""
    return min(2 * config.heartbeat_seconds, config.lease_seconds)
