"""Computes the answer to a `Fetch`: the work of a data worker.

It keeps loaded definitions, open passes, and windows of their elements. They only make the next answer faster, and may
be dropped at any time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from functools import partial
from operator import add
from threading import Condition, Lock

from penstock.data.node import Node
from penstock.errors import LostDataWorkerError, PenstockError
from penstock.options import Options
from penstock.runtime.busy_time import BusyTime
from penstock.service.wire.definitions import from_bytes
from penstock.service.wire.failures import failed_of
from penstock.service.wire.interfaces import Answers
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import Chunk, End, Fetch, Making, check_fetch
from penstock.service.worker.open_pass import OpenPass, PassKey
from penstock.service.worker.spans import STOPPED, Gathered, SpanReader, UserCalls, as_exception

_OPEN_PASSES = 32
_IDLE_SECONDS = 600.0
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Produced:
    """Counts of the work since the last call of `statistics`.

    Attributes:
        rows: elements, counted as often as they were sent.
        bytes: of them.
        busy_seconds: in which at least one request was computed.
        window_hits: rows that were in a cross-trainer window.
        window_misses: rows that had to be made for one.
    """

    rows: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    window_hits: int = 0
    window_misses: int = 0

    def __add__(self, other: "Produced") -> "Produced":
        return Produced(*map(add, astuple(self), astuple(other)))


class Production:
    """A worker's `Produce`; several threads may fetch at the same time.

    Args:
        get_definition: returns the definition of a dataset, given its id.
        recent_bytes: the bytes that are kept of each stream of a pass in order, for consumers that are behind.
        window_bytes: the bytes that are kept of all passes together, such as for trainers that share one.
    """

    def __init__(
        self, get_definition: Callable[[str], bytes], *, recent_bytes: int = 1 << 26, window_bytes: int = 1 << 30
    ) -> None:
        self._get_definition = get_definition
        self._recent_bytes = recent_bytes
        self._window_bytes = window_bytes
        self._lock = Lock()
        self._datasets: OrderedDict[str, tuple[Node, Options]] = OrderedDict()  # the one requested last comes last
        self._passes: OrderedDict[PassKey, OpenPass] = OrderedDict()
        self._busy = BusyTime()
        self._statistics = Produced()
        self._idle = Condition()
        self._requests = 0
        self._opening: dict[PassKey, Lock] = {}
        self._calls = UserCalls()
        self._closed = False

    def fetch(self, request: Fetch) -> Answers:
        """The answer to a request, computed as it is taken. Closing the iterator ends it.

        Raises:
            ServiceError: the dataset's definition cannot be loaded here.
            LostDataWorkerError: the production was closed.
            InvalidArgumentError: the request is invalid.
        """
        check_fetch(request)
        with self._answering(), self._calls.alone() if request.alone else nullcontext():
            if request.alone:
                yield Making()
            opened = self._open(request)
            try:
                yield from self._answers(opened, opened.reader(request), request)
            except PenstockError:
                raise
            except (Exception, SystemExit) as error:  # an error of opening something: nothing follows it
                span = request.span
                yield failed_of(
                    as_exception(error), Span(pass_number=span.pass_number, start=span.stop, stop=span.stop)
                )
            finally:
                opened.release()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self._idle:
            self._requests += 1
        try:
            yield
        finally:
            with self._idle:
                self._requests -= 1
                self._idle.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until all requests are answered, at most this long; returns whether all are."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._requests, seconds)

    def _answers(self, opened: OpenPass, reader: SpanReader, request: Fetch) -> Answers:
        pace = opened.take_pace(request.block_bytes)
        gathered = Gathered(reader)
        left_open = False
        try:
            while not self._closed:
                begun = time.perf_counter()
                with self._busy:
                    piece = gathered.next(pace.start())
                seconds = time.perf_counter() - begun
                if piece is None:
                    yield End(length=reader.length, skip=reader.skip, seconds=seconds, left_out=reader.left_out)
                    return
                if isinstance(piece.found, Exception):
                    failed = failed_of(piece.found, reader.rest(), piece.left_out)
                    left_open = True
                    opened.leave(reader, request)  # before the rest can be requested
                    yield failed
                    return
                rows, nbytes = len(piece.found), piece.found.nbytes
                pace.stop(nbytes, rows)
                hits = rows if request.trainer and piece.kept else 0
                misses = rows - hits if request.trainer else 0
                with self._lock:
                    self._statistics += Produced(rows, nbytes, window_hits=hits, window_misses=misses)
                self._make_room()
                yield Chunk(piece.position, piece.skip, rows, seconds, piece.left_out), piece.found
            raise LostDataWorkerError(STOPPED)
        finally:
            if not left_open:
                reader.close()
            opened.give_pace_back(pace)

    def statistics(self) -> Produced:
        """Return the counts since this was called last."""
        with self._lock:
            statistics, self._statistics = self._statistics, Produced()
        return replace(statistics, busy_seconds=self._busy.take())

    def _open(self, request: Fetch) -> OpenPass:
        """The pass of a request, which is open until it is released."""
        key = PassKey.of(request)
        node, options = self._dataset(request.dataset_id)
        opened = self._held(key)
        if opened is None:
            with self._lock:
                turn = self._opening.setdefault(key, Lock())
            with turn:  # a function may make the names of its files, slowly: nothing else waits for that
                opened = self._held(key) or self._opened(node, options, key)
        self._close_idle()
        return opened

    def _held(self, key: PassKey) -> OpenPass | None:
        with self._lock:
            if self._closed:
                raise LostDataWorkerError(STOPPED)
            opened = self._passes.get(key)
            if opened is not None:
                self._passes.move_to_end(key)
                opened.hold()
        return opened

    def _opened(self, node: Node, options: Options, key: PassKey) -> OpenPass:
        try:
            most_bytes = partial(self._most_bytes, key)
            opened = OpenPass(node, options, key, self._recent_bytes, self._window_bytes, most_bytes, self._calls)
        finally:
            with self._lock:
                self._opening.pop(key, None)
        opened.hold()
        with self._lock:
            closed = self._closed
            if not closed:
                self._passes[key] = opened
        if closed:
            opened.end()
            raise LostDataWorkerError(STOPPED)
        return opened

    def _kept(self) -> list[OpenPass]:
        """The passes, of which the one that was opened last is the last."""
        with self._lock:
            return list(self._passes.values())

    def _most_bytes(self, key: PassKey) -> int:
        """Return how many bytes a pass may keep for its readers: all that others leave, and a share in any case."""
        needed = sum(opened.needed_bytes for opened in self._kept() if opened.key != key)
        return max(self._window_bytes - needed, self._window_bytes // _OPEN_PASSES)

    def _make_room(self) -> None:
        """Keep less of the passes that were opened longest ago, where all together is too much."""
        passes = self._kept()
        excess = sum(opened.nbytes for opened in passes) - self._window_bytes
        for opened in passes:
            if excess <= 0:
                return
            excess -= opened.make_room(excess)

    def _close_idle(self) -> None:
        """Close passes that were not read for long, and the ones read longest ago if there are many."""
        now = time.monotonic()
        with self._lock:
            since = {key: opened.idle_since() for key, opened in self._passes.items()}
            idle = [(key, at) for key, at in since.items() if at is not None]
            excess = len(self._passes) - _OPEN_PASSES
            gone = [key for number, (key, at) in enumerate(idle) if number < excess or now - at > _IDLE_SECONDS]
            old = [self._passes.pop(key) for key in gone]
        for opened in old:
            opened.close()

    def _dataset(self, dataset_id: str) -> tuple[Node, Options]:
        with self._lock:
            known = self._datasets.get(dataset_id)
        loaded = from_bytes(self._get_definition(dataset_id)) if known is None else known
        with self._lock:
            known = self._datasets.setdefault(dataset_id, loaded)
            self._datasets.move_to_end(dataset_id)
            if len(self._datasets) > _OPEN_PASSES:  # each pass has its own
                self._datasets.popitem(last=False)
        return known

    def keep(self, datasets: Collection[str], silent: Collection[str] = ()) -> None:
        """Forget all other datasets, and close their passes when their last readers have finished.

        Args:
            silent: readers for which no other one waits.
        """
        with self._lock:
            for name in self._datasets.keys() - set(datasets):
                del self._datasets[name]
            gone = [key for key in self._passes if key.dataset_id not in datasets]
            old = [self._passes.pop(key) for key in gone]
        for opened in old:
            opened.close()
        self._close_idle()
        for opened in self._kept() if silent else ():
            opened.wait_no_longer_for(silent)

    def close(self) -> None:
        """Close everything, and wait for it; answers under way raise `LostDataWorkerError`."""
        with self._lock:
            self._closed = True
            old = list(self._passes.values())
            self._passes.clear()
            self._datasets.clear()
        for opened in old:
            opened.end()
        for opened in old:
            opened.join(_END_SECONDS)
