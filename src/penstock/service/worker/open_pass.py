"""An open pass of a worker: its plan, its threads, and the streams that its readers share."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

from penstock.data.node import Node, Run
from penstock.data.plan import make_plan
from penstock.data.skip_guards import guarded_below
from penstock.data.skipped import Skips
from penstock.data.streams.stream import Cursor
from penstock.options import Options
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import Threads, failures
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, PassKind, PassOffset, Span
from penstock.service.wire.worker_messages import Fetch
from penstock.service.worker.cut import kind_of, without_prefetch
from penstock.service.worker.groups import GroupsReader, SpanRun, over_rows
from penstock.service.worker.pass_nodes import nodes_of_pass, seed_of
from penstock.service.worker.rounds import RoundsReader
from penstock.service.worker.sequence import Sequence, SequenceReader
from penstock.service.worker.shared_window import AloneReader, SharedReader, SharedWindow
from penstock.service.worker.spans import BLOCK_SECONDS, RowsReader, SpanReader, UserCalls

_logger = logging.getLogger(__name__)

_WITHOUT_END = 1 << 62
_LEFT_READERS = 8


@dataclass(frozen=True)
class PassKey:
    """Everything that determines the elements of a pass."""

    dataset_id: str
    policy: ShardingPolicy
    number: int
    shard_index: int
    num_shards: int
    epoch: int
    seed: int

    @staticmethod
    def of(request: Fetch) -> "PassKey":
        """The key of the pass that a request is about."""
        info, policy = request.pass_info, ShardingPolicy(request.policy)
        return PassKey(
            request.dataset_id, policy, info.number, info.shard_index, info.num_shards, request.epoch, request.seed
        )

    @property
    def info(self) -> PassInfo:
        """The pass."""
        return PassInfo(number=self.number, shard_index=self.shard_index, num_shards=self.num_shards)


_Key = tuple[PassOffset, int, bool, int, bool]


def _key(request: Fetch, span: Span) -> _Key:
    """The key that distinguishes the readers of one pass: their positions, their ends, and how they count."""
    return span.first, span.stop, request.by_element, request.stride, request.alone


@dataclass(frozen=True)
class _Plan:
    """The nodes of a pass, and the run that reads them. It refers to no pass, so a pass that is dropped is freed.

    Attributes:
        length: the number of positions; -1 infinite, -2 unknown.
    """

    root: Node
    run: Run
    epoch: int
    kind: PassKind
    length: int

    @classmethod
    def of(cls, node: Node, options: Options, key: PassKey, threads: Threads, *, alone: bool) -> "_Plan":
        """The plan of a pass.

        Args:
            alone: whether nothing is made ahead, and everything by the thread that requests it.
        """
        nodes = nodes_of_pass(node, key.policy, key.info)
        kind, length = kind_of(nodes)
        root = make_plan(nodes if kind == "sequence" and not alone else without_prefetch(nodes)).root
        if kind == "groups":
            root = over_rows(root)
        run = Run(
            root, seed_of(key.seed, key.policy, key.info), threads, seeded=options.seed is not None, epoch=key.epoch
        )
        run.guarded = options.on_error == "skip"
        run.quiet = key.number > 0 and (kind == "sequence" or key.policy is not ShardingPolicy.DATA)
        run.skips = Skips(options.max_errors)
        prepare = guarded_below if run.guarded else run.prepare
        run.prepare = prepare
        if alone:
            run = run.reading_again()
            run.prepare = lambda made: without_prefetch(prepare(made))
            run.demand.ahead = False
        return cls(root, run, key.epoch, kind, length)

    def open(self) -> tuple[Cursor, Skips]:
        """A stream of all elements of the pass, and the rows that it skips."""
        whole = Span(pass_number=0, start=0, stop=_WITHOUT_END)
        skips = Skips(self.run.skips.limit)
        run = (SpanRun(self.run, whole) if self.kind == "groups" else self.run).leaving_to(skips)
        return self.root.cursor(run, self.epoch), skips


class OpenPass:
    """An open pass with a count of its readers; after `close` it ends with the last of them.

    Args:
        recent_bytes: the most bytes that are kept of each stream in order.
        window_bytes, most_bytes: limits of the window for trainers that share it: see `SharedWindow`.
        calls: pulls its streams.
    """

    def __init__(
        self,
        node: Node,
        options: Options,
        key: PassKey,
        recent_bytes: int,
        window_bytes: int,
        most_bytes: Callable[[], int],
        calls: UserCalls,
    ) -> None:
        self.key = key
        self._threads = Threads()
        self._plan = _Plan.of(node, options, key, self._threads, alone=False)
        self._plan_alone = _Plan.of(node, options, key, self._threads, alone=True)
        self._calls = calls
        self._sequence = Sequence(self._plan.open, recent_bytes, calls)
        self._sequence_alone = Sequence(self._plan_alone.open, recent_bytes, calls)
        self._shared = SharedWindow(self._plan.open, window_bytes, most_bytes, calls)
        self._lock = Lock()
        self._held = 0
        self._closing = False
        self._released = time.monotonic()
        self._paces: list[Pace] = []
        # Readers that were left where an element failed, by the request for the rest; the latest at the end.
        self._left: dict[_Key, SpanReader] = {}
        self._ended = False

    def reader(self, request: Fetch) -> SpanReader:
        """A reader of the requested span: one that was left there, or a new one."""
        with self._lock:
            left = None if request.trainer else self._left.pop(_key(request, request.span), None)
        return self._new_reader(request) if left is None else left

    def leave(self, reader: SpanReader, request: Fetch) -> None:
        """Take back the reader of a request, of which an element has failed: the rest will be requested next.

        A new reader of groups would have to make all elements again that come before it.
        """
        key = _key(request, reader.rest())
        with self._lock:
            unwanted: SpanReader | None = reader
            if not self._ended and not request.trainer:
                unwanted = self._left.pop(key, None)
                self._left[key] = reader
                if len(self._left) > _LEFT_READERS:
                    unwanted = self._left.pop(next(iter(self._left)))
        if unwanted is not None:
            unwanted.close()

    def _new_reader(self, request: Fetch) -> SpanReader:
        span, sequence = request.span, self._sequence_alone if request.alone else self._sequence
        if request.trainer and request.alone:
            return AloneReader(self._shared, sequence, request)
        if request.trainer:
            return SharedReader(self._shared, request)
        plan = self._plan_alone if request.alone else self._plan
        if plan.kind == "rows":
            return RowsReader(plan.root, plan.run, plan.epoch, span, request.stride, self._calls)
        if plan.kind == "groups" and not request.by_element and request.stride == 1:
            return GroupsReader(plan.root, plan.length, plan.run, plan.epoch, span, self._calls)
        if request.stride > 1:
            return RoundsReader(sequence, span, request.stride)
        return SequenceReader(sequence, span)

    @property
    def nbytes(self) -> int:
        """Return the size of its elements that are kept."""
        return self._sequence.nbytes + self._sequence_alone.nbytes + self._shared.nbytes

    @property
    def needed_bytes(self) -> int:
        """About how many of these bytes readers need."""
        return self._shared.needed_bytes

    def wait_no_longer_for(self, consumers: Collection[str]) -> None:
        """Let trainers that share its elements wait for none of these readers until they read again."""
        self._shared.wait_no_longer_for(consumers)

    def make_room(self, nbytes: int) -> int:
        """Free a number of bytes, as far as no reader needs them; returns how many were freed."""
        freed = 0
        for kept in (self._sequence_alone, self._sequence, self._shared):
            freed += kept.make_room(nbytes - freed)
        return freed

    def take_pace(self, block_bytes: int) -> Pace:
        """A pace, which knows the cost of this pass's rows if some were read before."""
        with self._lock:
            pace = self._paces.pop() if self._paces else Pace(seconds=BLOCK_SECONDS)
        pace.aim(block_bytes)
        return pace

    def give_pace_back(self, pace: Pace) -> None:
        """Let a later request use this pace."""
        with self._lock:
            self._paces.append(pace)

    def hold(self) -> None:
        """Keep it open until `release`."""
        with self._lock:
            self._held += 1

    def idle_since(self) -> float | None:
        """When it was released last, by `time.monotonic`; None while it is held."""
        with self._lock:
            return None if self._held else self._released

    def release(self) -> None:
        """Undo one `hold`."""
        with self._lock:
            self._held -= 1
            self._released = time.monotonic()
        self._end_if_unused()

    def close(self) -> None:
        """Close it as soon as no request holds it."""
        with self._lock:
            self._closing = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        with self._lock:
            unused = self._closing and self._held == 0
        if unused:
            self.end()

    def end(self) -> None:
        """Let its streams and threads end, even if it is held; does not wait for users' generators, which end too."""
        with self._lock:
            ended, self._ended = self._ended, True
            left, self._left = self._left, {}
        if ended:
            return
        try:
            self._threads.start(lambda: self._end(left.values()), "end")
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            self._end(left.values())

    def _end(self, left: Iterable[SpanReader]) -> None:
        try:
            with ExitStack() as stack:
                stack.callback(self._threads.stop)
                for close in (self._shared.close, self._sequence_alone.close, self._sequence.close):
                    stack.callback(close)
                for reader in left:
                    stack.callback(reader.close)
        except failures() as error:
            _logger.warning(
                "a function of the dataset %s failed when a pass over it was closed: it raised %r",
                self.key.dataset_id,
                error,
                exc_info=error,
            )

    def join(self, seconds: float) -> None:
        """Wait until its threads have ended, at most this long for each."""
        self._threads.join(seconds)
