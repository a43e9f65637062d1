"""What the dispatcher knows of its peers and need not journal: when it last heard from them, and what they reported.

A restarted dispatcher counts the silence of all peers from its start. This state changes in two ways: by observations,
which are updates that no journal keeps, and by following the updates of the lasting state.
"""

import math
from dataclasses import dataclass, field
from functools import singledispatch

import msgspec

from penstock.service.dispatcher.machine.changes import Changes
from penstock.service.dispatcher.machine.state import Consumer, State
from penstock.service.dispatcher.machine.updates import (
    Consumed,
    ConsumerGone,
    ConsumerOpened,
    DatasetDropped,
    DatasetKept,
    EpochCreated,
    Granted,
    JobDropped,
    PassEnded,
    Returned,
    Update,
    WorkerDropped,
    WorkerJoined,
    WorkerLost,
)
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, WorkerHeartbeat
from penstock.service.wire.spans import count


class Observation(msgspec.Struct, frozen=True):
    """An update of the volatile state."""

    def apply(self, volatile: "VolatileState", now: float) -> None:
        """Note it at this time; what it says of unknown peers is ignored."""
        raise NotImplementedError


class WorkerHeard(Observation, frozen=True):
    """A worker has reported."""

    report: WorkerHeartbeat

    def apply(self, volatile: "VolatileState", now: float) -> None:
        worker = volatile.workers.get(self.report.worker_id)
        if worker is not None:
            worker.heard_at, worker.report = now, self.report


class ConsumerHeard(Observation, frozen=True):
    """A consumer has sent a message; `report` is that message if it is a heartbeat."""

    consumer_id: int
    report: ConsumerHeartbeat | None = None

    def apply(self, volatile: "VolatileState", now: float) -> None:
        consumer = volatile.consumers.get(self.consumer_id)
        if consumer is not None:
            consumer.heard_at, consumer.report = now, self.report or consumer.report


class ConsumerHolds(Observation, frozen=True):
    """A consumer has reported how many positions it could give back; what the answer grants is included.

    Attributes:
        unread: -1 if it does not know.
        starving: whether it has nothing to yield and is granted nothing; None if it does not ask for more.
    """

    consumer_id: int
    unread: int
    starving: bool | None

    def apply(self, volatile: "VolatileState", now: float) -> None:
        consumer = volatile.consumers[self.consumer_id]
        consumer.unread = self.unread
        if self.starving is not None:
            consumer.starving_at = now if self.starving else -math.inf
            if self.starving:
                volatile.starved_at = now


class DatasetAsked(Observation, frozen=True):
    """A dataset was asked for, or the last job that read it has ended."""

    dataset_id: str

    def apply(self, volatile: "VolatileState", now: float) -> None:
        volatile.asked_at[self.dataset_id] = now


class WasAway(Observation, frozen=True):
    """The dispatcher's own process was suspended for a while, and could receive nothing."""

    def apply(self, volatile: "VolatileState", now: float) -> None:
        for worker in volatile.workers.values():
            worker.heard_at = now
        for consumer in volatile.consumers.values():
            consumer.heard_at = now


@dataclass
class WorkerPresence:
    """What was heard from a worker.

    Attributes:
        lost_at: when it was lost; infinite while it is there.
    """

    heard_at: float
    joined_at: float
    lost_at: float = math.inf
    report: WorkerHeartbeat | None = None


@dataclass
class ConsumerPresence:
    """What was heard from a consumer.

    Attributes:
        unread: how many positions it could give back; -1 if it has not reported that.
        starving_at: when it asked last with nothing to yield, and was granted nothing.
        report: its last heartbeat.
        leased: how many positions it has leased.
    """

    heard_at: float
    unread: int = -1
    starving_at: float = -math.inf
    report: ConsumerHeartbeat | None = None
    leased: int = 0


@dataclass
class VolatileState:
    """All times are those of the machine's clock.

    Attributes:
        started: when this dispatcher began.
        changes: the last changes of workers and passes.
        readers: the consumers that are alive, and the job of each. The lasting state has those of all epochs of a job,
            because one that is restored gets back what it had.
        idle_since: since when a job has no live consumer; jobs that have one are missing.
        begun_at: when an epoch was begun.
        asked_at: when a dataset was asked for last.
        starved_at: when any consumer asked last with nothing to yield, and was granted nothing.
        leased: how many positions of an epoch its consumers have leased. It follows from the lasting state, but there
            may be hundreds of consumers, and every lease asks for it.
    """

    started: float
    changes: Changes
    workers: dict[int, WorkerPresence] = field(default_factory=dict)
    consumers: dict[int, ConsumerPresence] = field(default_factory=dict)
    readers: dict[int, int] = field(default_factory=dict)
    idle_since: dict[int, float] = field(default_factory=dict)
    begun_at: dict[int, float] = field(default_factory=dict)
    asked_at: dict[str, float] = field(default_factory=dict)
    starved_at: float = -math.inf
    leased: dict[int, int] = field(default_factory=dict)

    @classmethod
    def beginning(cls, state: State, now: float, life: int) -> "VolatileState":
        """The volatile state of a dispatcher that starts with this lasting state."""
        readers = {
            number: state.epochs[consumer.epoch_id].job_id
            for number, consumer in state.consumers.items()
            if consumer.alive
        }
        volatile = cls(
            started=now,
            changes=Changes(life),
            workers={
                number: WorkerPresence(now, now, math.inf if worker.alive else now)
                for number, worker in state.workers.items()
            },
            consumers={number: ConsumerPresence(now) for number in state.consumers},
            readers=readers,
            idle_since=dict.fromkeys(state.jobs.keys() - readers.values(), now),
            begun_at=dict.fromkeys(state.epochs, now),
            asked_at=dict.fromkeys(state.datasets, now),
            leased=dict.fromkeys(state.epochs, 0),
        )
        for consumer in state.consumers.values():
            volatile.count_leased(consumer)
        return volatile

    def observe(self, observation: Observation, now: float) -> None:
        """Apply an observation."""
        observation.apply(self, now)

    def follow(self, update: Update, state: State, now: float) -> None:
        """Follow a change of the lasting state that has been made."""
        self.changes.note(update)
        _follow(update, self, state, now)

    def count_leased(self, consumer: Consumer) -> None:
        """Count anew what a consumer has leased."""
        presence, leased = self.consumers[consumer.consumer_id], count(consumer.leased)
        self.leased[consumer.epoch_id] += leased - presence.leased
        presence.leased = leased


@singledispatch
def _follow(update: Update, volatile: VolatileState, state: State, now: float) -> None:
    """Most changes of the lasting state leave the volatile one alone."""


@_follow.register
def _(update: DatasetKept, volatile: VolatileState, state: State, now: float) -> None:
    volatile.asked_at[update.dataset_id] = now


@_follow.register
def _(update: DatasetDropped, volatile: VolatileState, state: State, now: float) -> None:
    del volatile.asked_at[update.dataset_id]


@_follow.register
def _(update: WorkerJoined, volatile: VolatileState, state: State, now: float) -> None:
    volatile.workers[update.info.worker_id] = WorkerPresence(now, now)


@_follow.register
def _(update: WorkerLost, volatile: VolatileState, state: State, now: float) -> None:
    volatile.workers[update.worker_id].lost_at = now


@_follow.register
def _(update: WorkerDropped, volatile: VolatileState, state: State, now: float) -> None:
    del volatile.workers[update.worker_id]


@_follow.register
def _(update: EpochCreated, volatile: VolatileState, state: State, now: float) -> None:
    volatile.begun_at[update.epoch_id] = now
    volatile.leased[update.epoch_id] = 0


@_follow.register
def _(update: ConsumerOpened, volatile: VolatileState, state: State, now: float) -> None:
    if update.replaces >= 0:
        volatile.leased[update.epoch_id] -= volatile.consumers.pop(update.replaces).leased
        volatile.readers.pop(update.replaces, None)
    volatile.consumers[update.consumer_id] = ConsumerPresence(now)
    volatile.readers[update.consumer_id] = job_id = state.epochs[update.epoch_id].job_id
    volatile.idle_since.pop(job_id, None)


@_follow.register
def _(update: Granted | Consumed | Returned, volatile: VolatileState, state: State, now: float) -> None:
    consumer = state.consumers.get(update.consumer_id)
    if consumer is not None:
        volatile.count_leased(consumer)


@_follow.register
def _(update: PassEnded, volatile: VolatileState, state: State, now: float) -> None:
    for consumer_id in state.epochs[update.epoch_id].consumers:
        volatile.count_leased(state.consumers[consumer_id])


@_follow.register
def _(update: ConsumerGone, volatile: VolatileState, state: State, now: float) -> None:
    consumer = state.consumers.get(update.consumer_id)  # one that is replaced at once is already gone
    if consumer is not None:
        volatile.count_leased(consumer)
        job_id = volatile.readers.pop(update.consumer_id, None)
        if job_id is not None and job_id not in volatile.readers.values():
            volatile.idle_since[job_id] = now


@_follow.register
def _(update: JobDropped, volatile: VolatileState, state: State, now: float) -> None:
    volatile.idle_since.pop(update.job_id, None)
    for number in volatile.begun_at.keys() - state.epochs.keys():
        del volatile.begun_at[number], volatile.leased[number]
    for number in volatile.consumers.keys() - state.consumers.keys():
        del volatile.consumers[number]
        volatile.readers.pop(number, None)
