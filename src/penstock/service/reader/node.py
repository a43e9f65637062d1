"""The node for a dataset that data workers produce, and its stream."""

import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import field, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.data.block import Block
from penstock.data.node import Node, Origins, Run
from penstock.data.streams.live_streams import LiveStream
from penstock.data.streams.stream import State
from penstock.errors import InvalidArgumentError, ServiceError, StateMismatchError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options
from penstock.runtime.threads import Threads
from penstock.service.reader.delivery_log import entries_of
from penstock.service.reader.distribute_options import DistributeOptions
from penstock.service.reader.epoch_progress import EpochProgress
from penstock.service.reader.progress import past_of
from penstock.service.reader.read_options import ReadOptions
from penstock.service.reader.reader import Reader
from penstock.service.reader.worker_pool import WorkerPool
from penstock.service.transport.connect import connect
from penstock.service.transport.dispatcher_client import FIRST_PATIENCE_SECONDS, DispatcherClient
from penstock.service.wire.definitions import to_bytes
from penstock.service.wire.dispatcher_messages import (
    DatasetRegistered,
    EpochOpened,
    GetDataset,
    OpenEpoch,
    RegisterDataset,
)
from penstock.service.wire.left_out import note_of
from penstock.service.wire.subjects import DatasetInfo, JobParameters, PassKind, Span, content_id
from penstock.service.wire.worker_messages import LeftOut
from penstock.statistics.process import DATA_WORKERS
from penstock.structure import flatten

_logger = logging.getLogger(__name__)

_NOTHING_READ: Final = {"passes": {}, "turn": 0, "first": 0, "order": []}


class Distribute(Node, name="distribute"):
    """The elements of a registered dataset, produced by the workers of a service.

    Attributes:
        info: the description of the dataset.
        kind: the kind of its passes under the policy.
        definition: the dataset, to be registered; None where `dataset_id` names one that is registered.
        produced: its nodes, for `explain()` and for random keys; None if they are not known.
        options: its options.
        drawn_before: the seeds that its nodes had drawn when the definition was made.
        ordered: whether elements keep their order in process.
    """

    paced = True
    varies = True
    settings: DistributeOptions
    info: DatasetInfo = field(repr=False)
    kind: PassKind
    definition: bytes | None = field(default=None, repr=False)
    dataset_id: str = ""
    produced: Node | None = field(default=None, repr=False)
    ordered: bool = False
    declared_spec: Any = field(default=None, repr=False)
    options: Options = field(default=Options(), repr=False)
    drawn_before: tuple[int, ...] = field(default=(), repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that a state must fit: neither the address of the service, nor how elements travel."""
        settings = self.settings
        return {
            "policy": settings.policy.name,
            "job_name": settings.job_name,
            "dataset_id": self.dataset_id,
            "num_consumers": settings.num_consumers,
            "consumer_index": settings.consumer_index,
            "kind": self.kind,
        }

    @property
    def remote(self) -> Node | None:
        return self.produced

    @property
    def keeps_numbers(self) -> bool:  # type: ignore[override]  # it depends on how the service is read
        return self.ordered and self.produced is not None

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        if self.produced is not None and self.keeps_numbers:
            yield self.produced, epoch, np.arange(len(positions)), positions

    @property
    def divided(self) -> bool:
        return not self.settings.alone

    @property
    def cardinality(self) -> int:
        settings, count = self.settings, self.info.cardinality
        if settings.by_element:
            return INFINITE_CARDINALITY if count == INFINITE_CARDINALITY else UNKNOWN_CARDINALITY
        if count <= 0 or settings.can_be_ordered:
            return count
        return UNKNOWN_CARDINALITY

    @property
    def spec_inputs(self) -> tuple[Node, ...]:
        return () if self.produced is None else (self.produced,)

    @property
    def spec(self) -> Any:
        if self.produced is not None:
            return self.produced.spec
        return None if self.assumed_spec is not None else self.declared_spec

    @property
    def assumed_spec(self) -> Any:
        leaves, _ = flatten(self.declared_spec)
        return self.declared_spec if any(leaf.assumed for leaf in leaves) else None

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0] if inputs else None

    def registration(self, seed: int | None) -> RegisterDataset:
        """The message that registers the dataset, with the seeds that its nodes have drawn by now.

        Args:
            seed: the seed that replaces them, if a dataset made of this one was given one.

        Each reader of a named job draws its own seeds, and reads the dataset that was registered first. A job without a
        name is a different one for each seed, because what this process makes of the same nodes must fit.
        """
        assert self.definition is not None
        assert self.produced is not None
        options, seeds = self.options, [drawn.seed for drawn in self.produced.drawn_seeds]
        if seeds and seed is not None and options.seed is None:
            options, seeds = replace(options, seed=seed), [seed]
        # A restored state may have other seeds than the nodes had when the definition was made.
        as_defined = options is self.options and seeds == list(self.drawn_before)
        definition = self.definition if as_defined else to_bytes(self.produced, options)
        known = f"{self.info.fingerprint} {seeds}" if seeds and self.settings.alone else self.info.fingerprint
        return RegisterDataset(definition=definition, info=msgspec.structs.replace(self.info, fingerprint=known))

    @property
    def draws_unseeded(self) -> bool:
        return self.produced is None or self.produced.unseeded

    def in_order(self) -> "Node | None":
        if self.ordered:
            return self
        return replace(self, ordered=True) if self.settings.can_be_ordered else None

    def arguments(self) -> list[str]:
        settings = self.settings
        shown = [settings.policy.name, repr(settings.service)]
        if settings.job_name is not None:
            shown.append(f"job_name={settings.job_name!r}")
        if self.dataset_id:
            shown.append(f"dataset_id={self.dataset_id!r}")
        return shown


class DistributeStream(LiveStream, of=Distribute):
    """Its replay holds the name of the reader, the positions that belong to it, and the elements to repeat.

    The reader starts with the first `pull`.
    """

    def __init__(self, node: Distribute, run: Run, epoch: int) -> None:
        self.key = run.name_of(node, epoch)
        self._node = node
        self._threads: Threads = run.threads
        self._given_seed = run.seed if run.seeded else None
        self._live = run.live
        self._skips = run.skips
        # The number before the last block, and that of its first element: rows skipped in between take a number too.
        self._before = self._first = 0
        self._read_twice = run.reads_twice(node)
        self._dataset_id = ""
        self._reader: Reader | None = None
        self._began = False
        self._statistics = run.statistics
        # Elements that this reader had of a later epoch than that of the restored state are delivered again too.
        self._comes_again = run.live.continued and not self._read_twice
        self._replay: Any = run.live.restored.get(self.key)
        if self._replay is None:
            self._consumer = secrets.token_hex(8) if self._read_twice else run.live.consumer_of(self.key)
            self._epoch, self._seed, self._number = epoch, run.seed, 0
        else:
            self._restore(self._replay["first"])
        if not run.reads_again:
            run.live.add(self)

    def pull(self, need: int, allow: int) -> Block | None:
        asked = time.perf_counter()
        if self._reader is None:
            self._reader = self._start()
        number = self.number
        self._before = self._first = number  # no block has come since: a signal handler may ask for the state
        block = self._reader.next()
        self._first = self.number - (0 if block is None else len(block))
        if block is None and not self._began and self._replay is None:
            self._warn_if_empty()
        if not self._began and self._statistics is not None:
            self._statistics.start.setdefault(DATA_WORKERS, time.perf_counter() - asked)
        self._began = True
        return block

    def _warn_if_empty(self) -> None:
        """Warn a program that runs again under the same job name why it reads nothing."""
        name = self._node.settings.job_name
        if name is not None and self._node.info.cardinality != 0:
            _logger.warning(
                "nothing is left of epoch %d of the job %r: other readers have consumed it. A job that was read to its "
                "end by an earlier program is forgotten 30 s after it by default; another job_name begins at once",
                self._epoch,
                name,
            )

    def _start(self) -> Reader:
        node, settings = self._node, self._node.settings
        dispatcher = DispatcherClient(settings.service, patience_seconds=settings.dispatcher_timeout_seconds)
        try:
            patience = min(settings.dispatcher_timeout_seconds, FIRST_PATIENCE_SECONDS)
            opened = self._open(dispatcher, self._replay, patience_seconds=patience)
        except BaseException:
            dispatcher.close()
            raise
        self._epoch, self._seed = opened.epoch, opened.seed
        options = ReadOptions(
            settings=settings,
            dataset_id=self._dataset_id,
            kind=node.kind,
            ordered=node.ordered,
            length_known=node.kind == node.info.kind,
            consumer=self._consumer,
        )
        workers = WorkerPool(
            settings.usable,
            lambda worker: connect(worker.endpoint, settings.data_transfer_protocol, dispatcher.credentials),
        )
        reopen = partial(self._open, dispatcher, patience_seconds=settings.dispatcher_timeout_seconds)
        replay = self._replay or self._position_of_dead_consumer(opened)
        progress = EpochProgress(options, shared=opened.leased, replay=replay, number=self._number)
        return Reader(options, opened, dispatcher, reopen, workers, self._threads, progress, self._count_left_out)

    def _count_left_out(self, number: int, left_out: LeftOut) -> None:
        self._skips.add(note_of(left_out, self.key, number))

    def _position_of_dead_consumer(self, opened: EpochOpened) -> State:
        """For coordinated reads, the position of the consumer that died; None if none did."""
        settings = self._node.settings
        if not opened.rounds or settings.num_consumers is None or settings.consumer_index is None:
            return None
        firsts = [settings.consumer_index + settings.num_consumers * rounds for rounds in opened.rounds]
        passes = {str(number): [first, []] for number, first in enumerate(firsts)}
        return {**_NOTHING_READ, "passes": passes, "turn": opened.turn}

    def _open(self, dispatcher: DispatcherClient, position: Any, *, patience_seconds: float) -> EpochOpened:
        self._dataset_id = self._node.dataset_id or self._registered(dispatcher, patience_seconds)
        try:
            opened: EpochOpened = dispatcher.ask(self._opening(position), patience_seconds)
        except InvalidArgumentError:
            if self._node.dataset_id or self._is_known(dispatcher, self._dataset_id, patience_seconds):
                raise
            # Another dispatcher, which knows nothing, has replaced it since then.
            self._dataset_id = self._registered(dispatcher, patience_seconds)
            opened = dispatcher.ask(self._opening(position), patience_seconds)
        settings = self._node.settings
        if settings.target_workers == "LOCAL" and not any(map(settings.usable, opened.workers)):
            raise ServiceError(
                'target_workers="LOCAL" reads from the workers in this process, and there is none: make a '
                'ps.service.WorkerServer here first, or use "ANY"'
            )
        return opened

    def _registered(self, dispatcher: DispatcherClient, patience_seconds: float) -> str:
        """The id of the dataset, which is sent to the dispatcher only if it does not know it."""
        registration = self._node.registration(self._given_seed)
        dataset_id = content_id(registration.definition, registration.info)
        if self._is_known(dispatcher, dataset_id, patience_seconds):
            return dataset_id
        registered: DatasetRegistered = dispatcher.ask(registration, patience_seconds)
        return registered.dataset_id

    @staticmethod
    def _is_known(dispatcher: DispatcherClient, dataset_id: str, patience_seconds: float) -> bool:
        try:
            dispatcher.ask(GetDataset(dataset_id=dataset_id, with_definition=False), patience_seconds)
        except InvalidArgumentError:
            return False
        return True

    def _opening(self, position: Any) -> OpenEpoch:
        settings = self._node.settings
        resumed: list[Span] | None = [] if self._comes_again else None
        return OpenEpoch(
            job_name=settings.job_name or "",
            parameters=JobParameters(
                dataset_id=self._dataset_id,
                policy=settings.policy,
                num_consumers=settings.num_consumers or 0,
                ordered=self._node.ordered,
                target_workers=settings.target_workers,
                cross_trainer=settings.cross_trainer_cache is not None,
                compression=settings.codec,
            ),
            epoch=self._epoch,
            seed=self._seed,
            consumer=self._consumer,
            consumer_index=-1 if settings.consumer_index is None else settings.consumer_index,
            trainer=settings.trainer,
            resumed=resumed if position is None else past_of(position["passes"]),
        )

    @property
    def shared(self) -> bool:
        return self._reader is not None and self._reader.shared

    @property
    def number(self) -> int:
        return self._number if self._reader is None else self._reader.number

    def advanced(self, state: State, rows: int) -> State:
        return super().advanced({**state, "number": self._first} if state["number"] == self._before else state, rows)

    def consumed(self, number: int) -> None:
        if self._reader is not None:
            self._reader.consumed(number)

    def replay_from(self, number: int, *, bare: bool) -> State:
        if self._read_twice:
            raise InvalidArgumentError(
                f"there is no state of a dataset that reads {self._node.where()} in several places: call "
                "apply(ps.service.distribute(...)) for each of them, so that a state can tell them apart"
            )
        known = {"consumer": self._consumer, "epoch": self._epoch, "seed": self._seed}
        if self._reader is not None:
            return {**known, **self._reader.replay_from(number, bare=bare)}
        return {**known, **_NOTHING_READ} if self._replay is None else self._replay

    def claim(self) -> None:
        if self._reader is not None:
            self._reader.claim()

    def leave_to(self, replay: State) -> None:
        if self._reader is not None and isinstance(replay, dict) and replay.get("consumer") == self._consumer:
            self._reader.leave()

    def unread(self, rows: int) -> None:
        if self._reader is not None:
            self._reader.unread(rows)

    def restore(self, state: State) -> None:
        if self._replay is None and state == self.state():
            return  # it was never read, only opened by a thread that reads ahead, at the end of a repeat for example
        if self._replay is None:
            raise StateMismatchError(f"no state of a dataset of the data service: {state!r:.200}")
        self._restore(state["number"])

    def _restore(self, number: Any) -> None:
        replay = self._replay
        try:
            self._consumer, self._epoch, self._seed = str(replay["consumer"]), int(replay["epoch"]), int(replay["seed"])
            self._number = int(number)
            past_of(replay["passes"])
            entries_of(replay)
        except (TypeError, KeyError, ValueError) as error:
            raise StateMismatchError(f"no state of a dataset of the data service: {replay!r:.200}") from error

    def close(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        elif self._replay is None or self._number == self._replay["first"]:
            self._live.remove(self)
