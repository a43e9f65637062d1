"""What the dispatcher has seen and heard of others lately. Nothing is lost with it: a new one begins at zero."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from penstock.service.dispatcher.machine.changes import Changes
from penstock.service.dispatcher.machine.state import State
from penstock.service.wire.dispatcher_messages import ConsumerHeartbeat, WorkerHeartbeat
from penstock.service.wire.subjects import Message


@dataclass
class Signs:
    """When things were noticed first or last, by the dispatcher's clock, and what was reported last.

    Attributes:
        workers: when each was heard of last.
        consumers: the same.
        idle: since when a job has no consumer that is alive.
        asked: when a dataset was asked for last.
        lost: since when a worker is lost.
        joined: when a worker has come.
        begun: when the first consumer of an epoch came that was restored from a state.
        unread: how many positions each consumer can give back; a consumer that has not said so yet is missing.
        starving: when a consumer asked last that had nothing to hand on, and got nothing.
        changes: of workers and passes.
        reports: the last heartbeat of each worker.
        paces: the last heartbeat of each consumer.
    """

    started: float
    workers: dict[int, float] = field(default_factory=dict)
    consumers: dict[int, float] = field(default_factory=dict)
    idle: dict[int, float] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)
    joined: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    unread: dict[int, int] = field(default_factory=dict)
    starving: dict[int, float] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    reports: dict[int, WorkerHeartbeat] = field(default_factory=dict)
    paces: dict[int, ConsumerHeartbeat] = field(default_factory=dict)

    def heard(self, message: Message, now: float) -> None:
        """Note who has sent a message."""
        worker_id, consumer_id = getattr(message, "worker_id", None), getattr(message, "consumer_id", None)
        if worker_id is not None:
            self.workers[worker_id] = now
        if consumer_id is not None:
            self.consumers[consumer_id] = now
        if isinstance(message, WorkerHeartbeat):
            self.reports[message.worker_id] = message
        elif isinstance(message, ConsumerHeartbeat):
            self.paces[message.consumer_id] = message

    def excuse(self) -> None:
        """Count the silence of all anew from now on."""
        self.workers.clear()
        self.consumers.clear()

    def worker_silence(self, worker_id: int, now: float) -> float:
        """For how long nothing was heard of a worker."""
        return now - self.workers.setdefault(worker_id, now)

    def consumer_silence(self, consumer_id: int, now: float) -> float:
        """For how long nothing was heard of a consumer."""
        return now - self.consumers.setdefault(consumer_id, now)

    def keep(self, state: State) -> None:
        """Forget whatever belongs to nothing that is remembered."""
        signs: list[tuple[dict[Any, Any], Container[Any]]] = [
            (self.workers, state.workers),
            (self.lost, state.workers),
            (self.joined, state.workers),
            (self.reports, state.workers),
            (self.consumers, state.consumers),
            (self.paces, state.consumers),
            (self.unread, state.consumers),
            (self.starving, state.consumers),
            (self.idle, state.jobs),
            (self.begun, state.epochs),
            (self.asked, state.datasets),
        ]
        for noticed, known in signs:
            for name in [name for name in noticed if name not in known]:
                del noticed[name]
