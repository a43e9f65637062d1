"""The machine as a whole: decide, try, write down, make it so, answer.

A change that does not apply must not be written down, or nobody could go on from what is written; and one that cannot
be written down must not be made. So changes are tried on copies of what they touch, which then take its place.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock.errors import InvalidArgumentError, PenstockError, ServiceError
from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.changes import Changes
from penstock.service.dispatcher.machine.elapsed import elapsed
from penstock.service.dispatcher.machine.leasing import heartbeat, lease, release
from penstock.service.dispatcher.machine.opening import open_epoch, unknown_dataset
from penstock.service.dispatcher.machine.report import status
from penstock.service.dispatcher.machine.signs import Signs
from penstock.service.dispatcher.machine.state import ENDLESS, Epoch, Job, State
from penstock.service.dispatcher.machine.updates import DatasetKept, Stopping, Update, apply
from penstock.service.dispatcher.machine.workers import UNKNOWN, may_end, news, welcome
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


class _Copies(dict[Any, Any]):
    """What was touched of a dictionary: entries are copied when they are looked at for the first time."""

    def __init__(self, kept: dict[Any, Any], copied: Callable[[Any], Any] = replace) -> None:
        super().__init__()
        self._kept = kept
        self._copied = copied
        self._gone: set[Any] = set()

    def __missing__(self, key: Any) -> Any:
        if key in self._gone:
            raise KeyError(key)
        self[key] = found = self._copied(self._kept[key])
        return found

    def __delitem__(self, key: Any) -> None:
        _ = self[key]  # a KeyError where there is none
        super().__delitem__(key)
        self._gone.add(key)

    def pop(self, key: Any) -> Any:  # type: ignore[override]  # nobody asks with a default
        found = self[key]
        del self[key]
        return found

    def keep(self) -> None:
        """Put it in place of what it was copied from."""
        for key in self._gone:
            self._kept.pop(key, None)
        self._kept.update(self)


class Draft:
    """A state as it will be.

    Args:
        state: stays as it is until `keep`.
        updates: are made one after the other.

    Raises:
        LookupError, ValueError: they do not apply.
    """

    def __init__(self, state: State, updates: Sequence[Update]) -> None:
        self._state = state
        self._copies = {
            "datasets": _Copies(state.datasets),
            "workers": _Copies(state.workers),
            "jobs": _Copies(state.jobs, _job),
            "epochs": _Copies(state.epochs, _epoch),
            "consumers": _Copies(state.consumers),
        }
        self._draft = replace(state, **self._copies)
        for update in updates:
            apply(self._draft, update)

    def keep(self) -> None:
        """Let the state be so."""
        for copies in self._copies.values():
            copies.keep()
        for name in ("next_worker", "next_place", "next_job", "next_epoch", "next_consumer", "stopping"):
            setattr(self._state, name, getattr(self._draft, name))


def _job(job: Job) -> Job:
    return replace(job, epochs=list(job.epochs))


def _epoch(epoch: Epoch) -> Epoch:
    return replace(epoch, ledgers=list(epoch.ledgers), consumers=list(epoch.consumers))


_logger = logging.getLogger(__name__)


class Machine:
    """A dispatcher that is told of everything, the time too. Not for several threads at once.

    Args:
        before: called with the state and the changes before they are made; if it raises, none of them is.
        state: what it begins with.
        life: tells what this dispatcher says from what another one said before it.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        now: float,
        before: Callable[[State, Sequence[Update]], None] = lambda state, updates: None,
        state: State | None = None,
        life: int = 0,
    ) -> None:
        self.config = config
        self.state = State() if state is None else state
        self.signs = Signs(started=now, changes=Changes(life))
        self._before = before

    def tell(self, message: ToDispatcher, now: float) -> FromDispatcher:
        """Carry out a message; gives the answer. One that cannot be carried out is refused, and changes nothing.

        Raises:
            Exception: what `before` raised; then nothing was changed either.
        """
        updates, reply = decide(self.state, self.signs, self.config, message, now)
        if not updates:
            return reply
        try:
            draft = Draft(self.state, updates)
        except (LookupError, ValueError) as error:
            _logger.exception("a %s asks for what does not apply", type(message).__name__)
            return refusal_of(
                InvalidArgumentError(f"this {type(message).__name__} asks for what does not apply: {error!r}")
            )
        self._keep(draft, updates)
        return reply

    def pass_time(self, now: float) -> None:
        """Do what is due by now."""
        if updates := elapsed(self.state, self.signs, self.config, now):
            self._keep(Draft(self.state, updates), updates)

    def was_away(self) -> None:
        """The dispatcher itself could hear nobody for a while: all have their whole time again."""
        self.signs.excuse()

    def leave(self) -> None:
        """Begin no more epochs, and end when the last reader has."""
        updates = [Stopping(mode="leave")]
        self._keep(Draft(self.state, updates), updates)

    @property
    def over(self) -> bool:
        """Whether nobody needs the dispatcher any more."""
        return may_end(self.state)

    def _keep(self, draft: Draft, updates: Sequence[Update]) -> None:
        self._before(self.state, updates)
        draft.keep()
        for update in updates:
            self.signs.changes.note(update)
