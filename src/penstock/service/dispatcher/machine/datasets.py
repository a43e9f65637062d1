"""Registers datasets, and finds them for readers and workers."""

from collections.abc import Iterable
from typing import Any, Final

from penstock.errors import InvalidArgumentError, ServiceError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.service.dispatcher.machine.knowledge import Decision, Knowledge
from penstock.service.dispatcher.machine.state import ENDLESS
from penstock.service.dispatcher.machine.updates import DatasetKept
from penstock.service.dispatcher.machine.volatile import DatasetAsked
from penstock.service.wire.dispatcher_messages import DatasetFound, DatasetRegistered, GetDataset, RegisterDataset
from penstock.service.wire.subjects import DatasetInfo, content_id

_DEEPEST: Final = 100


def register_dataset(known: Knowledge, message: RegisterDataset) -> Decision:
    """Keep a dataset under the id that it is given, or under one derived from its content.

    Raises:
        ServiceError: the dispatcher is stopping.
        InvalidArgumentError: another dataset has the id, there is no room, or the information on it is invalid.
    """
    if known.state.stopping:
        raise ServiceError("this dispatcher is stopping: it takes no more datasets")
    _check_info(message.info)
    named = bool(message.dataset_id)
    dataset_id = message.dataset_id or content_id(message.definition, message.info)
    kept = known.state.datasets.get(dataset_id)
    if kept is None:
        _check_room(known, len(message.definition))
        update = DatasetKept(dataset_id=dataset_id, definition=message.definition, info=message.info, named=named)
        return [update], DatasetRegistered(dataset_id=dataset_id)
    if content_id(kept.definition, kept.info) != content_id(message.definition, message.info):
        raise InvalidArgumentError(
            f"another dataset is registered as {dataset_id!r}: use another dataset_id, or leave it out"
        )
    return [DatasetAsked(dataset_id=dataset_id)], DatasetRegistered(dataset_id=dataset_id)


def _check_room(known: Knowledge, size: int) -> None:
    held, most = known.state.definition_bytes, known.config.max_definition_bytes
    if held + size > most:
        raise InvalidArgumentError(
            f"the dispatcher holds {held:,} bytes of datasets, and has no room for {size:,} more: it takes "
            f"{most:,} (DispatcherConfig.max_definition_bytes). Let datasets read their data on the workers, "
            "instead of holding it themselves, or wait until unused ones are forgotten (dataset_gc_seconds)"
        )


def find_dataset(known: Knowledge, message: GetDataset) -> Decision:
    """Find a dataset for a worker or a reader.

    Raises:
        InvalidArgumentError: it is not registered.
    """
    kept = known.state.datasets.get(message.dataset_id)
    if kept is None:
        raise unknown_dataset(message.dataset_id)
    found = DatasetFound(definition=kept.definition if message.with_definition else b"", info=kept.info)
    return [DatasetAsked(dataset_id=message.dataset_id)], found


def unknown_dataset(dataset_id: str) -> InvalidArgumentError:
    """The error for a dataset that is not registered."""
    return InvalidArgumentError(
        f"the dispatcher knows no dataset {dataset_id!r}: call ps.service.register_dataset first, and again after the "
        "dispatcher was restarted"
    )


def _check_info(info: DatasetInfo) -> None:
    for name in ("length", "cardinality"):
        value = getattr(info, name)
        if not UNKNOWN_CARDINALITY <= value <= ENDLESS:
            raise InvalidArgumentError(
                f"a dataset's {name} is a number up to 2**62, -1 for infinite or -2 for unknown, got {value}"
            )
    layer = [info.element_spec]
    for _ in range(_DEEPEST):  # it must also be decoded from a journal, where it is nested deeper
        layer = [part for whole in layer if isinstance(whole, (list, dict)) for part in _parts(whole)]
    if layer:
        raise InvalidArgumentError(f"a dataset's element_spec is nested more than {_DEEPEST} deep")


def _parts(whole: list[Any] | dict[Any, Any]) -> Iterable[Any]:
    return whole.values() if isinstance(whole, dict) else whole
