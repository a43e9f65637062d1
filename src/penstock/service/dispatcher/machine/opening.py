"""Lets a consumer begin to read an epoch: alone or with others, from the beginning or from a state."""

from itertools import zip_longest
from typing import NamedTuple

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.service.dispatcher.machine.datasets import unknown_dataset
from penstock.service.dispatcher.machine.knowledge import Change, Decision, Knowledge
from penstock.service.dispatcher.machine.passes import added, first_passes
from penstock.service.dispatcher.machine.resuming import Resumed, check_past, check_spans, resume
from penstock.service.dispatcher.machine.state import Consumer, Epoch, Job, RegisteredDataset
from penstock.service.dispatcher.machine.updates import ConsumerGone, ConsumerOpened, EpochCreated, JobCreated
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, EpochOpened, OpenEpoch
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import JobParameters, PassInfo


class _Entered(NamedTuple):
    """The epoch that a consumer joins, and the changes that come before its own.

    Attributes:
        slowest: for coordinated reads, the last report of the slowest consumer, with which one that replaces a dead one
            falls into step.
    """

    updates: list[Change]
    epoch_id: int
    seed: int
    passes: list[PassInfo]
    slowest: ConsumerHeartbeat | None = None


def open_epoch(known: Knowledge, message: OpenEpoch) -> Decision:
    """Let a consumer join an epoch, which is created by the first.

    Raises:
        InvalidArgumentError: the request can never work, or the job was begun with other parameters.
        StateMismatchError: the state of the consumer does not fit the epoch.
        ServiceError: it cannot be opened now.
    """
    state = known.state
    if state.stopping:
        raise ServiceError("this dispatcher is stopping: no epoch can be begun any more")
    _check(known, message)
    job = state.job_named(message.job_name)
    if job is not None:
        _check_same(known, job, message)
    epoch = state.epoch_of(job, message.epoch) if job is not None else None
    if epoch is None:
        entered = _created(known, message, job)
    else:
        gone = [ConsumerGone(consumer_id=number) for number in _replaced_consumers(known, epoch, message)]
        slowest = _slowest(known, epoch, message) if gone and message.resumed is None else None
        passes = [ledger.info for ledger in epoch.ledgers]
        entered = _Entered([*gone], epoch.epoch_id, epoch.seed, passes, slowest)
    parameters = message.parameters
    leased = bool(message.job_name) and not parameters.num_consumers and not parameters.cross_trainer
    if leased and message.resumed:
        entered = _with_lost_passes(entered, message)
        check_past(message.resumed, entered.passes)
    opened = _consumer(known, epoch, entered.epoch_id, message, leased)
    return [*entered.updates, opened], EpochOpened(
        consumer_id=opened.consumer_id,
        epoch=message.epoch,
        seed=entered.seed,
        passes=entered.passes,
        workers=[worker.info for worker in state.present()],
        leased=leased,
        version=known.volatile.changes.version,
        rounds=[] if entered.slowest is None else entered.slowest.rounds,
        turn=0 if entered.slowest is None else entered.slowest.turn,
    )


def _consumer(known: Knowledge, epoch: Epoch | None, epoch_id: int, message: OpenEpoch, leased: bool) -> ConsumerOpened:
    """The consumer, with what belongs to it from its past."""
    state = known.state
    before = _earlier_consumer(known, epoch, message.consumer)
    resumed = resume(state, epoch, before, message.resumed) if leased else Resumed()
    return ConsumerOpened(
        consumer_id=state.next_consumer,
        epoch_id=epoch_id,
        name=message.consumer,
        consumer_index=message.consumer_index,
        trainer=message.trainer,
        replaces=-1 if before is None else before.consumer_id,
        owed=resumed.owed,
        consumed=resumed.consumed,
        returned=resumed.returned,
    )


def _check(known: Knowledge, message: OpenEpoch) -> None:
    parameters = message.parameters
    if parameters.dataset_id not in known.state.datasets:
        raise unknown_dataset(parameters.dataset_id)
    try:
        policy = ShardingPolicy(parameters.policy)
    except ValueError as error:
        raise InvalidArgumentError(f"there is no sharding policy with the number {parameters.policy}") from error
    if policy.static and not known.config.addresses:
        raise InvalidArgumentError(
            f"ShardingPolicy.{policy.name} gives every worker its own part, by its place in the dispatcher's list "
            "of workers, and this dispatcher has none: start it with DispatcherConfig(worker_addresses=[...]) or "
            "`penstock dispatcher --worker-address ...`, or use ShardingPolicy.DYNAMIC"
        )
    check_spans(message.resumed or ())
    count, consumer_index = parameters.num_consumers, message.consumer_index
    if count and not message.job_name:
        raise InvalidArgumentError("coordinated reads need a job_name, by which the consumers find each other")
    if not (0 <= consumer_index < count if count else consumer_index == -1):
        raise InvalidArgumentError(
            f"consumer_index must be from 0 to num_consumers - 1, got {consumer_index=}, num_consumers={count}"
        )


def _check_same(known: Knowledge, job: Job, message: OpenEpoch) -> None:
    datasets = known.state.datasets
    ours, theirs = job.parameters, message.parameters
    other = [
        f"{name} is {_shown(name, ours)}, got {_shown(name, theirs)}"
        for name in JobParameters.__struct_fields__
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.dataset_id != theirs.dataset_id:
        other[0] += f", which has {_difference(datasets[ours.dataset_id], datasets[theirs.dataset_id])}"
    if other:
        raise InvalidArgumentError(
            f"all readers of the job {job.name!r} must ask for the same, and its first one asked for something "
            f"else: {'; '.join(other)}. Use another job_name, or wait until that job is finished and has no readers"
        )


def _created(known: Knowledge, message: OpenEpoch, job: Job | None) -> "_Entered":
    """A new epoch, with its job if that is new too."""
    state = known.state
    updates: list[Change] = []
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
    passes = first_passes(message.parameters, info, known.config, state.present(), at_least)
    return _Entered([*updates, created, *added(created.epoch_id, passes)], created.epoch_id, created.seed, passes)


def _earlier_consumer(known: Knowledge, epoch: Epoch | None, name: str) -> Consumer | None:
    """The consumer of that name that has read this epoch before; None if there is none."""
    if epoch is None:
        return None
    consumers = (known.state.consumers[number] for number in epoch.consumers)
    return next((consumer for consumer in consumers if consumer.name == name), None)


def _replaced_consumers(known: Knowledge, epoch: Epoch, message: OpenEpoch) -> list[int]:
    """For coordinated reads, the silent consumer whose index this one takes.

    Raises:
        ServiceError: it is not silent.
    """
    if message.consumer_index < 0:
        return []
    for consumer in known.readers(epoch):
        if consumer.consumer_index != message.consumer_index or consumer.name == message.consumer:
            continue
        if not known.may_be_dead(consumer.consumer_id):
            silence = known.consumer_silence(consumer.consumer_id)
            raise ServiceError(
                f"the job {message.job_name!r} has a consumer with consumer_index={message.consumer_index}, which "
                f"sent a message {silence:.1f} s ago: give every consumer its own index; if it has just died, try "
                f"again after {known.suspicious_seconds:g} s of silence"
            )
        return [consumer.consumer_id]
    return []


def _slowest(known: Knowledge, epoch: Epoch, message: OpenEpoch) -> ConsumerHeartbeat | None:
    """The last report of the slowest of the other consumers that are not silent."""
    others = [
        known.volatile.consumers[consumer.consumer_id].report
        for consumer in known.readers(epoch)
        if consumer.consumer_index != message.consumer_index
        and known.consumer_silence(consumer.consumer_id) <= known.config.lease_seconds
    ]
    reports = [report for report in others if report is not None]
    return min(reports, key=lambda report: sum(report.rounds)) if len(reports) == len(others) and reports else None


def _with_lost_passes(entered: _Entered, message: OpenEpoch) -> _Entered:
    """Under OFF, add passes of workers that were there when the state was taken, and are gone now."""
    if message.parameters.policy != ShardingPolicy.OFF or not entered.passes:
        return entered
    count = 1 + max(span.pass_number for span in message.resumed or ())
    length = entered.passes[0].length
    more = [PassInfo(number=number, length=length) for number in range(len(entered.passes), count)]
    return entered._replace(updates=[*entered.updates, *added(entered.epoch_id, more)], passes=[*entered.passes, *more])


def _difference(ours: RegisteredDataset, theirs: RegisteredDataset) -> str:
    explanations = (dataset.info.explanation.splitlines() for dataset in (theirs, ours))
    for step, instead in zip_longest(*explanations, fillvalue="nothing"):
        if step != instead:
            return f"the step {' '.join(step.split())!r} instead of {' '.join(instead.split())!r}"
    return "the same steps, with other functions or contents, or read by another version of penstock"


def _shown(name: str, parameters: JobParameters) -> str:
    value = getattr(parameters, name)
    return ShardingPolicy(value).name if name == "policy" else repr(value)
