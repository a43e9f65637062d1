"""The threads that fetch: a lane takes a task and requests its span from a worker; if it loses that, from another.

If passes are fetched from beginning to end, each has its lane.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from penstock.data.block import Block
from penstock.errors import LostDataWorkerError, PenstockError, ServiceError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import Threads
from penstock.service.reader.fetch_task import Arrived, ExpectedAnswer, FetchTask
from penstock.service.reader.session import DispatcherSession
from penstock.service.reader.shared_state import SharedState
from penstock.service.wire.envelope import ProtocolError
from penstock.service.wire.failures import to_exception
from penstock.service.wire.interfaces import UnreachedDataWorkerError, UnusableDataWorkerError, WrongAnswerError
from penstock.service.wire.subjects import Span, WorkerInfo
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making

_logger = logging.getLogger(__name__)

_LANES_PER_WORKER: Final = 2
_MOST_LANES: Final = 128
"""The most lanes of a reader whose lanes share the work; otherwise each pass has one."""
_BLOCK_BYTES: Final = 1 << 22
_WAITING_BYTES: Final = _MOST_LANES * _BLOCK_BYTES
"""The most bytes that may wait for room in all lanes together: with many lanes, each requests smaller blocks."""
_NEWS_SECONDS: Final = 1.0
"""The time for which the dispatcher is asked whether a lost worker had announced its end."""
_MOST_WRONG_ANSWERS: Final = 3


class Lanes:
    """The lanes of one reader."""

    def __init__(self, shared: SharedState, session: DispatcherSession, threads: Threads) -> None:
        self._shared = shared
        self._session = session
        self._threads = threads

    def start(self, workers: int) -> None:
        """Start the missing lanes: one for each pass that has none, or as many as this number of workers needs."""
        shared = self._shared
        with shared.changed:
            if shared.stopping:
                return
            if shared.whole_passes:
                missing = [iter(tasks) for tasks in shared.progress.begin_all()]
            else:
                most = min(_MOST_LANES, max(1, workers) * _LANES_PER_WORKER)
                missing = [iter(self._take, None) for _ in range(shared.lanes, most)]
            shared.lanes += len(missing)
            shared.wake()
        for tasks in missing:
            self._threads.start(partial(self._run, tasks), "service-lane")

    def _run(self, tasks: Iterator[FetchTask]) -> None:
        shared = self._shared
        try:
            for task in tasks:
                while not task.complete and not shared.ending:
                    self._fetch(task)
        except Exception as error:  # otherwise the error would be lost
            shared.fail(error)
        finally:
            with shared.changed:
                shared.lanes -= 1

    def _take(self) -> FetchTask | None:
        """Wait for a task to fetch and for room for it; None if there will be no more."""
        shared = self._shared
        while True:
            with shared.changed:
                if shared.ending:
                    return None
                task = self._next_task()
                if task is not None:
                    return task
                leases = shared.leases
                if leases is None or not leases.begin(shared.pace, shared.lanes, shared.under_way):
                    shared.changed.wait(None if leases is None else leases.pause)
                    continue
            reply = leases.ask()
            self._ensure_known(reply.spans)
            with shared.changed:
                leases.granted(reply)
                if reply.wanted or reply.near_end:
                    shared.heartbeat_due.notify_all()
                shared.wake()

    def _ensure_known(self, spans: list[Span]) -> None:
        """Ask the dispatcher about passes that were leased and are not known here yet.

        Raises:
            ProtocolError: the dispatcher does not know them either.
        """
        passes = self._shared.progress.passes
        if any(span.pass_number not in passes for span in spans):
            self._session.exchange_news()
        unknown = [span for span in spans if span.pass_number not in passes]
        if unknown:
            raise ProtocolError(
                f"the dispatcher at {self._shared.dispatcher.address} leases spans of passes that it has not "
                f"announced: {unknown}"
            )

    def _next_task(self) -> FetchTask | None:
        """A waiting task, or a new one; None if there is nothing to fetch or no room for it."""
        shared = self._shared
        task = shared.progress.waiting()
        if task is not None:
            return task
        if shared.leases is not None:
            span = shared.leases.next(shared.pace.size(None, shared.lanes, shared.under_way))
            return None if span is None else shared.progress.passes[span.pass_number].adopt(span)
        left = (progress for progress in shared.progress.passes.values() if not progress.all_begun)
        progress = min(left, key=lambda progress: progress.frontier, default=None)
        if progress is None:
            return None
        size = shared.pace.size(progress.remaining, shared.lanes, shared.under_way)
        return progress.begin(size) if size else None

    def _fetch(self, task: FetchTask) -> None:
        """Fetch the rest of a task, or as much of it as one worker sends before it is lost."""
        shared, options = self._shared, self._shared.options
        info = shared.progress.infos[task.pass_number]
        span = task.poison_search.next(task.missing(), options.stride)
        alone = task.poison_search.alone
        block_bytes = min(_BLOCK_BYTES, _WAITING_BYTES // shared.lanes)
        request = options.request(self._session.opened, info, span, block_bytes, alone=alone)
        preferred = task.left_with if info.worker_id < 0 else info.worker_id
        task.left_with = -1
        worker = self._shared.workers.choose(preferred, lambda: shared.stopping)
        if worker is None:
            return
        length = shared.progress.passes[task.pass_number].length if options.stride == 1 else UNKNOWN_CARDINALITY
        expected = ExpectedAnswer(request, options.kind, length)
        asked = time.monotonic()
        try:
            self._take_answer(task, worker, request, expected)
        except (LostDataWorkerError, UnusableDataWorkerError) as error:
            if isinstance(error, UnusableDataWorkerError) and self._shared.workers.unusable(worker):
                raise
            if not shared.stopping:
                self._worker_lost(task, worker, request, error, asked, making=expected.announced)
            if self._shared.workers.none_reachable():
                self._session.report_soon()
        finally:
            self._shared.workers.release(worker)

    def _take_answer(self, task: FetchTask, worker: WorkerInfo, request: Fetch, expected: ExpectedAnswer) -> None:
        """Take in the pieces of an answer, up to its end or until no more of it is wanted."""
        first = True
        with closing(self._shared.workers.connection(worker).fetch(request)) as answers:
            for answer in answers:
                expected.check(answer)
                task.wrong_answers = 0
                if isinstance(answer, Making):
                    continue
                if isinstance(answer, Failed):
                    task.left_with = worker.worker_id
                if not self._accept_piece(task, answer, request, first=first):
                    return
                first = False
        self._shared.workers.answered(worker)

    def _worker_lost(
        self, task: FetchTask, worker: WorkerInfo, request: Fetch, error: ServiceError, asked: float, *, making: bool
    ) -> None:
        """Find out why a worker was lost: it left, it died over an element, or it gave a wrong answer.

        Args:
            making: whether it has announced that it makes this span and nothing else.
        """
        self._shared.workers.lost(worker, error, asked)
        left = self._has_left(worker.worker_id)
        self._shared.workers.log_loss(worker, error, left=left)
        # A worker that has only fallen silent may have a call that hangs.
        to_blame = making if request.alone else not isinstance(error, UnreachedDataWorkerError)
        if to_blame and not left and not isinstance(error, (WrongAnswerError, UnusableDataWorkerError)):
            self._blame(task, worker.worker_id, request.span.stop)
        if isinstance(error, WrongAnswerError):
            self._count_wrong_answer(task, worker, error)

    def _has_left(self, worker_id: int) -> bool:
        """Return whether a worker had announced its end to the dispatcher: then no element is to blame."""
        with suppress(PenstockError):
            news = self._session.exchange_news(worker_id, patience_seconds=_NEWS_SECONDS)
            return news is not None and worker_id in news.left
        return False

    def _count_wrong_answer(self, task: FetchTask, worker: WorkerInfo, error: WrongAnswerError) -> None:
        """Raise an error in the caller if several workers in a row give wrong answers."""
        task.wrong_answers += 1
        if task.wrong_answers == _MOST_WRONG_ANSWERS:
            self._shared.fail(
                ServiceError(
                    f"the data worker at {worker.endpoint.address} gave an answer that does not fit the request: "
                    f"{error}. That happened {_MOST_WRONG_ANSWERS} times in a row: run the same version of penstock on "
                    "all data workers and in this process"
                )
            )

    def _blame(self, task: FetchTask, worker_id: int, stop: int) -> None:
        """Note that a worker was lost over a task, and give up an element that has cost several workers."""
        options = self._shared.options
        asked = replace(task.missing(), stop=stop)
        if asked.start >= stop:  # all of it had come
            return
        if options.endless or not options.by_position:
            poisoned = task.poison_search.stream_lost(worker_id, asked, options.stride)
        else:
            poisoned = task.poison_search.worker_lost(worker_id, asked)
        if not poisoned or task.complete:
            return
        error = options.poison(task.pass_number, asked.start)
        if not options.by_position:
            self._shared.fail(error)
            return
        _logger.error("%s", error)
        with self._shared.changed:
            task.arrive_failure(error, asked.start + options.stride, 0)
            self._shared.progress.order.arrived(task)
            self._shared.wake()

    def _accept_piece(
        self, task: FetchTask, answer: tuple[Chunk, Block] | End | Failed, request: Fetch, *, first: bool
    ) -> bool:
        """Take in a piece of an answer; False if no more of the answer is wanted."""
        shared, options = self._shared, self._shared.options
        with shared.changed:
            if task.done:  # the rest of it was given back
                return False
            if isinstance(answer, End):
                self._accept_end(task, answer, request.span.stop)
            elif isinstance(answer, Failed):
                offset = answer.next
                task.arrive_failure(to_exception(answer), offset.start, offset.skip, answer.left_out)
                shared.progress.order.arrived(task)
                shared.wake()
            else:
                before = task.fetch_position
                chunk, block = answer
                shared.pace.arrived(chunk.rows, block.nbytes)
                if first:
                    shared.pace.began(chunk.rows, chunk.seconds)
                if not self._has_room(task, chunk.rows):
                    return False
                shared.buffered += task.arrive(Arrived(chunk, block), options.kind, options.stride)
                shared.pace.measured(max(0, task.fetch_position - before), block.nbytes, chunk.seconds)
                shared.progress.order.arrived(task)
                shared.arrived.notify_all()
            return not shared.stopping and not task.complete

    def _accept_end(self, task: FetchTask, answer: End, stop: int) -> None:
        """Note that a worker has sent everything up to `stop`, or up to the end of the pass."""
        shared = self._shared
        end = stop if answer.length < 0 else answer.length
        shared.pace.measured(max(0, end - task.fetch_position), 0, answer.seconds)
        if answer.left_out is not None:
            task.arrive_behind(answer.left_out, self._shared.options.behind(task, stop))
            shared.progress.order.arrived(task)
        task.ends_at(stop, answer.skip)
        if answer.length >= 0:
            task.complete = True
            shared.progress.passes[task.pass_number].length = answer.length
            if shared.leases is not None:
                shared.leases.ended(task.pass_number, answer.length)
        shared.finish(task)
        shared.wake()

    def _has_room(self, task: FetchTask, rows: int) -> bool:
        """Wait for room for a block; returns whether the block is still wanted."""
        shared = self._shared
        shared.changed.wait_for(
            lambda: (
                shared.stopping
                or task.done
                or shared.pace.holds(shared.buffered + rows)
                or (not task.items and task in shared.progress.awaited())
            )
        )
        return not task.done
