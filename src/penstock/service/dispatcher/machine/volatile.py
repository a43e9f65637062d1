"""The volatile state of a dispatcher: when it last heard from each peer, and the last report of each.

A restarted dispatcher counts the silence of all peers from its start. This state changes in two ways: by observations,
which are updates that no journal keeps, and by following the updates of the lasting state.
"""

import math
from dataclasses import dataclass, field

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
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, Lease, ReleaseConsumer, WorkerHeartbeat
from penstock.service.wire.spans import count
from penstock.service.wire.subjects import Message


class Observation(msgspec.Struct, frozen=True):
    """An update of the volatile state."""

    def apply(self, volatile: "VolatileState", now: float) -> None:
        """Record it with this time; observations of unknown peers are ignored."""
        raise NotImplementedError


class Heard(Observation, frozen=True):
    """A message has come, whose sender is alive; a heartbeat is its last report."""

    message: Message

    def apply(self, volatile: "VolatileState", now: float) -> None:
        match self.message:
            case WorkerHeartbeat() as report if worker := volatile.workers.get(report.worker_id):
                worker.heard_at, worker.report = now, report
            case ConsumerHeartbeat() as report if consumer := volatile.consumers.get(report.consumer_id):
                consumer.heard_at, consumer.report = now, report
            case Lease() | ReleaseConsumer() as sent if consumer := volatile.consumers.get(sent.consumer_id):
                consumer.heard_at = now


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
    """The times and the last report of a worker.

    Attributes:
        lost_at: when it was lost; infinite while it is there.
    """

    heard_at: float
    joined_at: float
    lost_at: float = math.inf
    report: WorkerHeartbeat | None = None


@dataclass
class ConsumerPresence:
    """The times and the last report of a consumer.

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
        readers: the consumers that are alive, by epoch. The lasting state has those of all epochs of a job,
            because one that is restored gets back its positions.
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
    readers: dict[int, list[int]] = field(default_factory=dict)
    idle_since: dict[int, float] = field(default_factory=dict)
    begun_at: dict[int, float] = field(default_factory=dict)
    asked_at: dict[str, float] = field(default_factory=dict)
    starved_at: float = -math.inf
    leased: dict[int, int] = field(default_factory=dict)

    @classmethod
    def beginning(cls, state: State, now: float, life: int) -> "VolatileState":
        """The volatile state of a dispatcher that starts with this lasting state."""
        readers: dict[int, list[int]] = {}
        for number, consumer in state.consumers.items():
            if consumer.alive:
                readers.setdefault(consumer.epoch_id, []).append(number)
        volatile = cls(
            started=now,
            changes=Changes(life),
            workers={
                number: WorkerPresence(now, now, math.inf if worker.alive else now)
                for number, worker in state.workers.items()
            },
            consumers={number: ConsumerPresence(now) for number in state.consumers},
            readers=readers,
            idle_since=dict.fromkeys(state.jobs.keys() - {state.epochs[number].job_id for number in readers}, now),
            begun_at=dict.fromkeys(state.epochs, now),
            asked_at=dict.fromkeys(state.datasets, now),
            leased=dict.fromkeys(state.epochs, 0),
        )
        for consumer in state.consumers.values():
            volatile.count_leased(consumer)
        return volatile

    def follow(self, update: Update, state: State, now: float) -> None:
        """Follow a change of the lasting state that has been made."""
        self.changes.record(update)
        match update:
            case Granted() | Consumed() | Returned():
                if consumer := state.consumers.get(update.consumer_id):
                    self.count_leased(consumer)
            case DatasetKept():
                self.asked_at[update.dataset_id] = now
            case DatasetDropped():
                del self.asked_at[update.dataset_id]
            case WorkerJoined():
                self.workers[update.info.worker_id] = WorkerPresence(now, now)
            case WorkerLost():
                self.workers[update.worker_id].lost_at = now
            case WorkerDropped():
                del self.workers[update.worker_id]
            case EpochCreated():
                self.begun_at[update.epoch_id] = now
                self.leased[update.epoch_id] = 0
            case ConsumerOpened():
                if update.replaces >= 0:
                    self.leased[update.epoch_id] -= self.consumers.pop(update.replaces).leased
                    self._forget_reader(update.replaces, update.epoch_id)
                self.consumers[update.consumer_id] = ConsumerPresence(now)
                self.readers.setdefault(update.epoch_id, []).append(update.consumer_id)
                self.idle_since.pop(state.epochs[update.epoch_id].job_id, None)
            case PassEnded():
                for consumer_id in state.epochs[update.epoch_id].consumers:
                    self.count_leased(state.consumers[consumer_id])
            case ConsumerGone():
                if consumer := state.consumers.get(update.consumer_id):  # one that is replaced at once is already gone
                    self.count_leased(consumer)
                    self._forget_reader(update.consumer_id, consumer.epoch_id)
                    job = state.jobs[state.epochs[consumer.epoch_id].job_id]
                    if self.readers.keys().isdisjoint(job.epochs):
                        self.idle_since.setdefault(job.job_id, now)
            case JobDropped():
                self.idle_since.pop(update.job_id, None)
                for number in self.begun_at.keys() - state.epochs.keys():
                    del self.begun_at[number], self.leased[number]
                    self.readers.pop(number, None)
                for number in self.consumers.keys() - state.consumers.keys():
                    del self.consumers[number]

    def _forget_reader(self, consumer_id: int, epoch_id: int) -> None:
        alive = self.readers.get(epoch_id, [])
        if consumer_id in alive:
            alive.remove(consumer_id)
        if not alive:
            self.readers.pop(epoch_id, None)

    def count_leased(self, consumer: Consumer) -> None:
        """Count the leased positions of a consumer again."""
        presence, leased = self.consumers[consumer.consumer_id], count(consumer.leased)
        self.leased[consumer.epoch_id] += leased - presence.leased
        presence.leased = leased
