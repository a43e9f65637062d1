"""Gives closures to workers, one at a time to each, in a thread of the coordinator's process.

It alone decides what counts. A worker that has finished a closure reports it here, having staged its pushes at the
servers; they apply them when this thread commits the closure, which it does once. What a lost worker has staged is
discarded, and its closure goes to another. So a closure may run twice, and is applied once, on all servers. A closure
that has pushed to several servers is committed to all of them before the next one is, and kept if all could apply it.
"""

import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

from penstock.errors import CancelledError, OutOfRangeError, PenstockError, UnavailableError, WorkerError
from penstock.parameter_server.closures import loads
from penstock.parameter_server.commitments import Closure, Commitment, Servers, StartedWorker
from penstock.parameter_server.messages import (
    Connect,
    Define,
    Discard,
    Finished,
    ForgetFunction,
    ForgetIterator,
    Message,
    Opened,
    OpenIterator,
    ProcessLine,
    Ready,
    RunClosure,
)
from penstock.parameter_server.strategy import ParameterServerStrategy
from penstock.printing import text_of_error
from penstock.rpc.line import TICK_SECONDS, Line
from penstock.runtime.shared_memory import Arena

_logger = logging.getLogger(__name__)

MOST_QUEUED: Final = 262_144
"""As in TensorFlow: `schedule` waits while this many closures are queued."""
MOST_RUNS: Final = 10
"""A closure during which this many workers have died is not tried again."""
_QUICK_ENDS: Final = 5
"""This many processes of one worker may end in a row before they are ready."""


class Dispatch:
    """The queue, and the workers.

    Attributes:
        changed: the lock of everything that both the program's thread and this one use.
        iterators: the datasets of those that the program has not forgotten, by their numbers.
        positions: where the workers are in them, by worker and number; also in those that a restored program will open.
        opened: how many there were.
    """

    def __init__(self, strategy: ParameterServerStrategy, watchdog_seconds: float | None) -> None:
        self._servers = Servers(strategy.controls, strategy.servers, self._complete, self._release)
        self._started_processes = strategy.started_processes
        self._num_workers = strategy.num_workers
        self._watchdog_seconds = watchdog_seconds
        self._arena = Arena()
        self.changed = threading.Condition()
        self.queue: deque[Closure] = deque()
        self.running = 0
        self.error: BaseException | None = None
        self.fatal: PenstockError | None = None
        self.iterators: dict[int, bytes] = {}
        self.positions: dict[tuple[int, int], bytes] = {}
        self.opened = 0
        self._unannounced: list[int] = []
        self._forgotten: deque[int] = deque()
        self._forgotten_functions: deque[int] = deque()
        self._unneeded: deque[tuple[int, int]] = deque()
        # Workers take turns, so that a program that schedules one function at a time reads all of their datasets.
        self._idle: deque[StartedWorker] = deque()
        self._arrivals: deque[tuple[int, ProcessLine | PenstockError]] = deque()
        self._snapshots: list[Future[Any]] = []
        self._stopping = False
        self._asleep = True
        self._looked_at = time.monotonic()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._started = 0
        self._known: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        for server, line in enumerate(strategy.controls):
            self._selector.register(line, selectors.EVENT_READ, server)
        self._workers = [self._start(index) for index in range(self._num_workers)]
        self._thread = threading.Thread(target=self._run, name="penstock-coordinator", daemon=True)
        self._thread.start()

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def wake(self) -> None:
        """Wake the thread to look at the changes; with the lock held."""
        if self._asleep:
            self._asleep = False
            self._wake_writer.send(b"\0")

    def open_iterator(self, dataset: bytes) -> int:
        """Have every worker open an iterator; returns its number."""
        with self.changed:
            number = self.opened
            self.opened += 1
            self.iterators[number] = dataset
            self._unannounced.append(number)
            self.wake()
        return number

    def forget_iterator(self, number: int) -> None:
        """Have every worker close an iterator, when the functions that are scheduled by now have run.

        It may be called inside of any other method, where garbage is collected: it takes no lock.
        """
        self._forgotten.append(number)
        self._wake_without_lock()

    def forget_function(self, number: int) -> None:
        """Have the workers forget a function, which will not be scheduled any more. It takes no lock, as above."""
        self._forgotten_functions.append(number)
        self._wake_without_lock()

    def _wake_without_lock(self) -> None:
        with suppress(OSError):  # it was stopped, or has enough to wake up for
            self._wake_writer.send(b"\0", socket.MSG_DONTWAIT)

    def snapshot(self) -> "Future[Any]":
        """Return what all servers hold, and the workers' positions, of one moment."""
        future: Future[Any] = Future()
        with self.changed:
            if self.fatal is not None:
                raise self.fatal
            self._snapshots.append(future)
            self.wake()
        return future

    def stop(self) -> None:
        """End the thread and the workers. Calls that have not run are cancelled."""
        with self.changed:
            self._stopping = True
            self.wake()
        self._thread.join()
        for line in (self._wake_reader, self._wake_writer):
            line.close()
        self._arena.close()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except PenstockError as error:
            self._end(error)
        except Exception as error:
            _logger.exception("the coordinator's thread has failed")
            self._end(WorkerError(f"the coordinator's thread has failed: {text_of_error(error)}"))
        else:
            self._end(CancelledError("the coordinator was stopped"))

    def _step(self) -> bool:
        with self.changed:
            if self._stopping:
                return False
            self._take_arrivals()
            self._announce()
            self._take_snapshots()
            self._give_out()
            self._close_forgotten()
            self._release_functions()
            self._asleep = True
        found = self._selector.select(TICK_SECONDS)
        for key, events in found:
            if key.data is None:
                with suppress(BlockingIOError):
                    self._wake_reader.recv(1 << 12)
            elif isinstance(key.data, StartedWorker):
                self._exchange(key.data, events)
            else:
                self._servers.hear(key.data)
        before, self._looked_at = self._looked_at, time.monotonic()
        self._servers.watch(self._looked_at - before)
        self._watch()
        return True

    def _arrive(self, number: int, line: ProcessLine | PenstockError) -> None:
        """Take the line to a worker's process, or why there is none; in any thread."""
        with self.changed:
            if not self._stopping and self.fatal is None:
                self._arrivals.append((number, line))
                self.wake()
            elif isinstance(line, Line):
                line.close()

    def _take_arrivals(self) -> None:
        while self._arrivals:
            number, line = self._arrivals.popleft()
            worker = next(worker for worker in self._workers if worker.number == number)
            if isinstance(line, Line):
                worker.line = line
                self._selector.register(line, selectors.EVENT_READ, worker)
                self._exchange(worker, selectors.EVENT_READ)  # bytes that came with its proof are here already
            elif isinstance(line, UnavailableError) and worker.index not in self._known:  # there is no place for it
                raise line
            else:
                worker.status = str(line)
                worker.process.end()
                worker.lost = True
                self._start_again(worker)

    def _announce(self) -> None:
        for number in self._unannounced:
            for worker in self._workers:
                if worker.ready:
                    self._open_iterator(worker, number)
        self._unannounced.clear()

    def _open_iterator(self, worker: StartedWorker, number: int) -> None:
        position = self.positions.get((worker.index, number), b"")
        self._tell(worker, OpenIterator(number, self.iterators[number], position))

    def _close_forgotten(self) -> None:
        """Have workers close iterators that no function can read any more; a new process does not open them."""
        running = [worker.closure.number for worker in self._workers if worker.closure is not None]
        while self._forgotten:
            newest = self.queue[-1].number if self.queue else max(running, default=0)
            self._unneeded.append((newest, self._forgotten.popleft()))
        if not self._unneeded:
            return
        # The functions of lost workers are in front of the queue, one of each worker at most.
        waiting = [closure.number for closure in islice(self.queue, self._num_workers + 1)]
        oldest = min(running + waiting, default=math.inf)
        while self._unneeded and self._unneeded[0][0] < oldest:
            self._close_iterator(self._unneeded.popleft()[1])

    def _close_iterator(self, number: int) -> None:
        del self.iterators[number]
        for worker in self._workers:
            self.positions.pop((worker.index, number), None)
            if worker.ready and not worker.lost:
                self._tell(worker, ForgetIterator(number))

    def _release_functions(self) -> None:
        while self._forgotten_functions:
            number = self._forgotten_functions.popleft()
            for worker in self._workers:
                if number in worker.functions and not worker.lost:
                    worker.functions.remove(number)
                    self._tell(worker, ForgetFunction(number))

    def _give_out(self) -> None:
        while self.queue and self._idle:
            worker = self._idle.popleft()
            if worker.lost:
                continue
            closure = worker.closure = self.queue.popleft()
            closure.runs += 1
            self.running += 1
            worker.since = time.monotonic()
            function = closure.function
            if function.number not in worker.functions:
                worker.functions.add(function.number)
                self._tell(worker, Define(function.number, function.content))
            self._tell(worker, RunClosure(closure.number, function.number, closure.arguments))
            if len(self.queue) == MOST_QUEUED - 1:
                self.changed.notify_all()

    def _tell(self, worker: StartedWorker, message: Message) -> None:
        """Send to a worker, or as much as there is room for: a slow one holds up no other."""
        assert worker.line is not None
        with suppress(OSError):  # it has ended, which the end of its line reports
            worker.line.send(message, seconds=0)
            self._watch_line(worker)

    def _exchange(self, worker: StartedWorker, events: int) -> None:
        """Receive and send what can be without waiting for the worker, and handle its messages."""
        line = worker.line
        assert line is not None
        try:
            if events & selectors.EVENT_WRITE:
                with suppress(OSError):
                    line.flush()
                self._watch_line(worker)
            if events & selectors.EVENT_READ:
                line.fill()
        except EOFError:
            self._lose(worker)
            return
        while not worker.lost and line.has_more():
            message = line.receive_one()
            if message is not None:
                self._from_worker(worker, message)

    def _watch_line(self, worker: StartedWorker) -> None:
        assert worker.line is not None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.line.unsent else 0)
        if self._selector.get_key(worker.line).events != events:
            self._selector.modify(worker.line, events, worker)

    def _lose(self, worker: StartedWorker) -> None:
        assert worker.line is not None
        self._selector.unregister(worker.line)
        worker.line.close()
        worker.status = worker.process.status()
        worker.process.end()
        worker.lost = True
        if not worker.finished:  # otherwise the servers have not heard yet that it counts
            self._start_again(worker)

    def _from_worker(self, worker: StartedWorker, message: Message) -> None:
        if isinstance(message, Ready):
            self._open_iterators(worker)
        elif isinstance(message, Opened):
            self._note_positions(worker, ((message.iterator, message.position),))
        else:
            assert isinstance(message, Finished)
            self._finish(worker, message)

    def _note_positions(self, worker: StartedWorker, positions: Iterable[tuple[int, bytes]]) -> None:
        with self.changed:
            known = ((number, position) for number, position in positions if number in self.iterators)
            self.positions.update(((worker.index, number), position) for number, position in known)

    def _open_iterators(self, worker: StartedWorker) -> None:
        """Have a new process open every iterator, where the one before it was."""
        self._known.add(worker.index)
        with self.changed:
            worker.ready = True
            self._idle.append(worker)
            for number in self.iterators:
                if number not in self._unannounced:
                    self._open_iterator(worker, number)

    def _finish(self, worker: StartedWorker, message: Finished) -> None:
        self._note_positions(worker, message.positions)
        assert worker.closure is not None
        worker.finished = True
        commitment = Commitment(worker, worker.closure, message, len(message.servers))
        if message.servers:
            self._servers.commit(commitment)
        else:
            self._complete(commitment)
            self._release(worker)

    def _release(self, worker: StartedWorker) -> None:
        """Let a worker have its next closure, or start it again if it was lost meanwhile."""
        worker.closure, worker.finished = None, False
        if worker.lost:
            self._start_again(worker)
        else:
            self._idle.append(worker)

    def _complete(self, commitment: Commitment) -> None:
        closure, finished = commitment.closure, commitment.finished
        error: BaseException | None = None
        if commitment.refused:
            error = WorkerError(commitment.refused)
        elif finished.failed:
            error = _error_of(finished.result)
        with self.changed:
            self.running -= 1
            if error is None:
                closure.value.set_result(finished.result)
            else:
                closure.value.set_exception(error)
                self._cancel_rest(error)
            if self.running == 0 and not self.queue:
                self.changed.notify_all()

    def _cancel_rest(self, error: BaseException) -> None:
        self.error = self.error or error
        for closure in self.queue:
            closure.value.set_exception(CancelledError("the function did not run, because another one has failed"))
        self.queue.clear()

    def _start_again(self, worker: StartedWorker) -> None:
        """Start a lost worker again; a closure that it had not finished runs again."""
        self._servers.send_to_all(Discard(worker.number))
        closure, status = worker.closure, worker.status
        _logger.warning("worker %d has ended with %s: it is started again", worker.index, status)
        with self.changed:
            if closure is not None:
                self.running -= 1
                if closure.runs >= MOST_RUNS:
                    error = WorkerError(
                        f"a function has cost {closure.runs} workers their process: it is not run again; the last one "
                        f"has ended with {status}"
                    )
                    closure.value.set_exception(error)
                    self._cancel_rest(error)
                else:
                    self.queue.appendleft(closure)
            self.changed.notify_all()
        quick_ends = 0 if worker.ready else worker.quick_ends + 1
        if quick_ends >= _QUICK_ENDS:
            raise WorkerError(
                f"worker {worker.index} has ended {quick_ends} times before it was ready, with {status}; what it wrote "
                "says why"
            )
        self._workers[worker.index] = self._start(worker.index)
        self._workers[worker.index].quick_ends = quick_ends

    def _start(self, index: int) -> StartedWorker:
        self._started += 1
        number = self._started
        process, ends = self._started_processes.start_worker(
            number, index, self._num_workers, self._arena, partial(self._arrive, number)
        )
        for server, its in enumerate(ends):
            self._servers.send(server, Connect(number), (its,))
            its.close()
        return StartedWorker(index, number, process)

    def _take_snapshots(self) -> None:
        if self._servers.settling is not None:  # they have what may be undone
            return
        for future in self._snapshots:
            self._servers.take_snapshot(future, dict(self.positions))
        self._snapshots.clear()

    def _watch(self) -> None:
        """Have workers write their stacks to standard error where a function takes too long."""
        limit = self._watchdog_seconds
        if limit is None:
            return
        for worker in self._workers:
            seconds = time.monotonic() - worker.since
            if worker.closure is not None and not worker.finished and seconds > limit:
                _logger.warning(
                    "a function has run for %.0f s on worker %d, whose stacks follow", seconds, worker.index
                )
                worker.process.write_stacks()
                worker.since = time.monotonic()

    def _end(self, error: PenstockError) -> None:
        for worker in self._workers:
            if worker.line is not None:
                worker.line.close()
            worker.process.end()
        with self.changed:
            self.fatal = error
            self.running = 0
            for _, line in self._arrivals:
                if isinstance(line, Line):
                    line.close()
            self._arrivals.clear()
            closures = [worker.closure for worker in self._workers if worker.closure is not None]
            closures += self._servers.committing
            for closure in {*closures, *self.queue}:
                closure.value.set_exception(error)
            self.queue.clear()
            for future in (*self._snapshots, *self._servers.awaited_snapshots):
                future.set_exception(error)
            self.changed.notify_all()


def _error_of(content: bytes) -> BaseException:
    """The exception of a function. A StopIteration must not end a loop in which the caller waits."""
    error: BaseException = loads(content)
    if isinstance(error, StopIteration):
        ended = OutOfRangeError("the function has read its per-worker dataset to the end")
        ended.__cause__ = error
        return ended
    return error
