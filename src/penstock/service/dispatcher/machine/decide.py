"""What the dispatcher does about a message: which changes it makes, and what it answers."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.errors import InvalidArgumentError, PenstockError, ServiceError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.leasing import heartbeat, lease, release
from penstock.service.dispatcher.machine.ledger import ENDLESS
from penstock.service.dispatcher.machine.opening import open_epoch, unknown_dataset
from penstock.service.dispatcher.machine.passes import UNKNOWN
from penstock.service.dispatcher.machine.report import status
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import DatasetKept, Stopping, Update
from penstock.service.dispatcher.machine.working import news, welcome
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    DatasetFound,
    DatasetRegistered,
    Done,
    FromDispatcher,
    GetDataset,
    GetStatus,
    Lease,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    Status,
    Stop,
    ToDispatcher,
    WorkerHeartbeat,
    WorkerHello,
)
from penstock.service.wire.refusals import refusal_of
from penstock.service.wire.subjects import DatasetInfo, content_id

_DEEPEST: Final = 100


def decide(
    state: State, signs: Signs, config: DispatcherConfig, message: ToDispatcher, now: float
) -> tuple[list[Update], FromDispatcher]:
    """The changes that a message asks for, and its answer, which holds once they are made.

    What cannot be done is answered by `Refused`, and changes nothing.

    Args:
        now: seconds on a clock that never goes back.
    """
    signs.heard(message, now)
    try:
        return _ANSWERS[type(message)](state, signs, config, message, now)
    except PenstockError as error:
        return [], refusal_of(error)


def _register(
    state: State, signs: Signs, config: DispatcherConfig, message: RegisterDataset, now: float
) -> tuple[list[Update], DatasetRegistered]:
    if state.stopping:
        raise ServiceError("this dispatcher is stopping: it takes no more datasets")
    _check_info(message.info)
    named = bool(message.dataset_id)
    dataset_id = message.dataset_id or content_id(message.definition, message.info)
    signs.asked[dataset_id] = now
    known = state.datasets.get(dataset_id)
    if known is None:
        update = DatasetKept(dataset_id=dataset_id, definition=message.definition, info=message.info, named=named)
        return [update], DatasetRegistered(dataset_id=dataset_id)
    if content_id(known.definition, known.info) != content_id(message.definition, message.info):
        raise InvalidArgumentError(
            f"another dataset is registered as {dataset_id!r}: use another dataset_id, or leave it out"
        )
    return [], DatasetRegistered(dataset_id=dataset_id)


def _check_info(info: DatasetInfo) -> None:
    for name in ("length", "cardinality"):
        value = getattr(info, name)
        if not UNKNOWN <= value <= ENDLESS:
            raise InvalidArgumentError(
                f"a dataset's {name} is a number up to 2**62, -1 for infinite or -2 for unknown, got {value}"
            )
    layer = [info.element_spec]
    for _ in range(_DEEPEST):  # what can be read here must be readable in a journal too, inside of other things
        layer = [part for whole in layer if isinstance(whole, (list, dict)) for part in _parts(whole)]
    if layer:
        raise InvalidArgumentError(f"a dataset's element_spec is nested more than {_DEEPEST} deep")


def _parts(whole: list[Any] | dict[Any, Any]) -> Iterable[Any]:
    return whole.values() if isinstance(whole, dict) else whole


def _get_dataset(
    state: State, signs: Signs, config: DispatcherConfig, message: GetDataset, now: float
) -> tuple[list[Update], DatasetFound]:
    known = state.datasets.get(message.dataset_id)
    if known is None:
        raise unknown_dataset(message.dataset_id)
    signs.asked[message.dataset_id] = now
    return [], DatasetFound(definition=known.definition if message.with_definition else b"", info=known.info)


def _get_status(
    state: State, signs: Signs, config: DispatcherConfig, message: GetStatus, now: float
) -> tuple[list[Update], Status]:
    return [], status(state, signs, now)


def _stop(state: State, signs: Signs, config: DispatcherConfig, message: Stop, now: float) -> tuple[list[Update], Done]:
    mode = "drain" if message.drain else "now"
    return ([Stopping(mode=mode)] if state.stopping not in (mode, "now") else []), Done()


_Answer = Callable[[State, Signs, DispatcherConfig, Any, float], tuple[list[Any], Any]]

_ANSWERS: Final[dict[type, _Answer]] = {
    RegisterDataset: _register,
    GetDataset: _get_dataset,
    OpenEpoch: open_epoch,
    Lease: lease,
    ConsumerHeartbeat: heartbeat,
    ReleaseConsumer: release,
    WorkerHello: welcome,
    WorkerHeartbeat: news,
    GetStatus: _get_status,
    Stop: _stop,
}
