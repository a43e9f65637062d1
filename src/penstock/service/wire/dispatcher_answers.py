"""Checks the dispatcher's answers against the messages that they answer.

A dispatcher of this version gives valid answers only. Without these checks, an invalid one would cause a failure far
from here: an endless loop, or an index that does not exist.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from typing import Any, Final

from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    ConsumerNews,
    DatasetFound,
    DatasetRegistered,
    Done,
    EpochOpened,
    GetDataset,
    GetStatus,
    Lease,
    Leased,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    Status,
    Stop,
    WorkerHeartbeat,
    WorkerHello,
    WorkerNews,
    WorkerWelcome,
)
from penstock.service.wire.envelope import ProtocolError
from penstock.service.wire.subjects import Message, PassInfo, Span, WorkerInfo

_FARTHEST: Final = 1 << 62
_LONGEST_PAUSE: Final = 60.0
_LONGEST_INTERVAL: Final = 86_400.0


class _Wrong(Exception):
    """An answer is not valid; the text says why."""


def check_answer(message: Message, reply: object, dispatcher: str) -> None:
    """Check the dispatcher's answer to a message.

    Args:
        dispatcher: its address.

    Raises:
        ProtocolError: it is not a valid answer to that message.
    """
    expected, check = _ANSWERS[type(message)]
    try:
        _require(isinstance(reply, expected), f"a {expected.__name__} was expected, got a {type(reply).__name__}")
        if check is not None:
            check(message, reply)
    except _Wrong as wrong:
        raise ProtocolError(
            f"the dispatcher at {dispatcher} answered a {type(message).__name__} with an invalid answer: {wrong}"
        ) from None


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Wrong(otherwise)


def _found(message: GetDataset, reply: DatasetFound) -> None:
    info = reply.info
    _require(bool(reply.definition) or not message.with_definition, "a dataset without a definition")
    _require(-2 <= info.length <= _FARTHEST, f"a dataset with {info.length} positions")
    _require(-2 <= info.cardinality <= _FARTHEST, f"a dataset with {info.cardinality} elements")


def _opened(message: OpenEpoch, reply: EpochOpened) -> None:
    parameters = message.parameters
    leased = bool(message.job_name) and not parameters.num_consumers and not parameters.cross_trainer
    _require(reply.consumer_id >= 0, f"a reader with the number {reply.consumer_id}")
    _require(reply.epoch == message.epoch, f"epoch {reply.epoch} instead of {message.epoch}")
    _require(reply.leased == leased, f"a reader that is to {'lease' if reply.leased else 'own'} its positions")
    _check_passes(reply.passes)
    _check_workers(reply.workers)
    rounds = reply.rounds
    _require(not rounds or parameters.num_consumers > 0, f"rounds {rounds} of reads that are not coordinated")
    _require(len(rounds) in (0, len(reply.passes)), f"{len(rounds)} rounds of {len(reply.passes)} passes")
    _require(all(0 <= done < _FARTHEST for done in rounds), f"rounds {rounds}")
    _require(0 <= reply.turn <= len(reply.passes), f"the turn of pass {reply.turn} of {len(reply.passes)}")


def _news(message: ConsumerHeartbeat, reply: ConsumerNews) -> None:
    _check_passes(reply.passes or ())
    _check_workers(reply.workers)
    _require(set(reply.left) <= {*message.lost_workers}, f"of workers {reply.left}, which it was not asked about")


def _check_passes(passes: Iterable[PassInfo]) -> None:
    for number, info in enumerate(passes):
        _require(info.number == number, f"pass {info.number} in the place of pass {number}")
        _require(-2 <= info.length <= _FARTHEST, f"a pass of {info.length} positions")
        _require(0 <= info.shard_index < info.num_shards, f"shard {info.shard_index} of {info.num_shards}")


def _check_workers(workers: Iterable[WorkerInfo]) -> None:
    seen: set[int] = set()
    for worker in workers:
        _require(worker.worker_id >= 0 and worker.worker_id not in seen, f"two workers with the id {worker.worker_id}")
        seen.add(worker.worker_id)


def _leased(message: Lease, reply: Leased) -> None:
    spans = reply.spans
    for span in spans:
        _require(_is_span(span), f"no span of a pass: {span!r}")
    _require(not spans or message.positions > 0, "positions, and it was asked for none")
    _require(not spans or not reply.ended, "positions of an epoch that has ended")
    ordered = sorted(spans, key=lambda span: (span.pass_number, span.first))
    for one, other in pairwise(ordered):
        _require(one.pass_number < other.pass_number or one.end <= other.first, f"{one!r} and {other!r}, which overlap")
    _require(0 <= reply.retry_after <= _LONGEST_PAUSE, f"a pause of {reply.retry_after} s")
    answered = bool(spans) or reply.ended or reply.retry_after > 0 or message.positions <= 0
    _require(answered, "neither positions nor an end nor a pause")


def _is_span(span: Span) -> bool:
    within = 0 <= span.start <= span.stop <= _FARTHEST and 0 <= span.skip <= _FARTHEST and 0 <= span.more <= _FARTHEST
    return within and span.pass_number >= 0 and span.first < span.end


def _welcome(message: WorkerHello, reply: WorkerWelcome) -> None:
    _require(reply.worker_id >= 0, f"a worker with the number {reply.worker_id}")
    _require(0 < reply.heartbeat_seconds <= _LONGEST_INTERVAL, f"a report every {reply.heartbeat_seconds} s")


def _status(message: GetStatus, reply: Status) -> None:
    lines = [reply, *reply.workers, *reply.epochs, *(reader for epoch in reply.epochs for reader in epoch.consumers)]
    for line in lines:
        for name in line.__struct_fields__:
            value = getattr(line, name)
            _require(not isinstance(value, float) or 0 <= value < inf, f"{name} of {value}")


_ANSWERS: Final[dict[type[Message], tuple[type[Message], Callable[[Any, Any], None] | None]]] = {
    RegisterDataset: (DatasetRegistered, None),
    GetDataset: (DatasetFound, _found),
    OpenEpoch: (EpochOpened, _opened),
    Lease: (Leased, _leased),
    ConsumerHeartbeat: (ConsumerNews, _news),
    ReleaseConsumer: (Done, None),
    WorkerHello: (WorkerWelcome, _welcome),
    WorkerHeartbeat: (WorkerNews, None),
    GetStatus: (Status, _status),
    Stop: (Done, None),
}
"""Of each message the kind of its answer, and what else must hold of that."""
