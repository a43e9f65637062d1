"""The threads of one iteration: workers that share a task, and others that run beside the consumer.

`stop` may be called by the garbage collector, which can run in any thread and inside almost any call: it only puts
messages into queues that are safe for that (`queue.SimpleQueue`), and waits for nothing. The threads then end by
themselves; `join` waits for them.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol

from penstock.options import AUTOTUNE
from penstock.runtime.channel import Closed
from penstock.statistics.lanes import name_thread, operator_here, waiting

_FAILURES: Final = (Exception, SystemExit, GeneratorExit)


class _Belonging(threading.local):
    """The present thread, with the threads of which it is one."""

    threads: "weakref.ref[Threads] | None" = None


_here = _Belonging()


def failures() -> tuple[type[BaseException], ...]:
    """The exceptions that a user's function may raise instead of an element, for an `except`: all but Ctrl-C.

    Only the main thread is interrupted by Ctrl-C; in any other one a KeyboardInterrupt is a function's too. Classes
    that derive from BaseException alone, such as asyncio's CancelledError, cannot be listed: an `except` asks for them
    when one is on its way.
    """
    raised = sys.exc_info()[0]
    if raised is None or (
        issubclass(raised, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    ):
        return _FAILURES
    return (*_FAILURES, raised)


def threads_of(num_parallel_calls: int | None) -> int:
    """Return how many threads `num_parallel_calls` means."""
    return os.cpu_count() or 1 if num_parallel_calls == AUTOTUNE else num_parallel_calls or 1


class Ending(Protocol):
    """Something that runs until `end` is called, which may happen more than once."""

    def end(self) -> None:
        """Let it end, without waiting for anything."""


class OwnThread:
    """A thread that makes calls for others, which wait for them: on its stack, calls go deeper than on theirs.

    Args:
        threads: those with which it ends.
        at_end: called by it when it ends.
    """

    def __init__(self, threads: "Threads", at_end: Callable[[], None]) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]] | None]
        self._asked = SimpleQueue()
        self._lock = threading.RLock()  # the garbage collector may call `end` while this very thread is in here
        self._ended = False
        self._at_end = at_end
        threads.start(self._work, "stack")
        threads.end_with(self)

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns in the thread.

        Raises:
            Closed: it has ended.
            BaseException: what the function raises.
        """
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        with self._lock:
            if self._ended:
                raise Closed
            self._asked.put((function, answer))
        with waiting:
            result, error = answer.get()
        if error is not None:
            try:
                raise error
            finally:
                del error
        return result

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            function, answer = asked
            try:
                answer.put((function(), None))
            except BaseException as error:
                answer.put((None, error))
            del asked, function, answer
        self._at_end()

    def end(self) -> None:
        """Let the thread end after the calls that were asked for, without waiting for it."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._asked.put(None)


class Threads:
    """Starts the threads of one iteration and ends them."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Reentrant: `stop` may be called by the garbage collector while this very thread is in here.
        self._lock = threading.RLock()
        self._workers = 0
        # The workers that have nothing to do, less the tasks that wait for one.
        self._free = 0
        self._started: list[threading.Thread] = []
        # Held while a thread starts: one that has not started yet cannot be joined. `stop` does not need it.
        self._starting = threading.Lock()
        self._stopped = False
        # What runs for these threads besides them; the references are weak.
        self._others: weakref.WeakSet[Ending] = weakref.WeakSet()

    @property
    def stopped(self) -> bool:
        """Return whether the results of the threads are no longer needed, so that long work should end early."""
        return self._stopped

    def start(self, target: Callable[[], None], name: str) -> None:
        """Run `target` in a separate thread. It must return when its input is closed."""
        # A daemon: the interpreter waits for all other threads before it calls what ends them.
        thread = threading.Thread(
            target=self._run, args=(target, name, operator_here()), name=f"penstock-{name}", daemon=True
        )
        with self._starting:
            thread.start()
            self._started.append(thread)

    def _run(self, target: Callable[[], None], name: str, owner: int) -> None:
        _here.threads = weakref.ref(self)
        name_thread(name, owner)
        target()

    @property
    def run_here(self) -> bool:
        """Return whether the calling thread is one of these."""
        threads = _here.threads
        return threads is not None and threads() is self

    def share(self, work: Callable[[int, int], None], rows: int, parallelism: int, chunk: int) -> None:
        """Call `work(start, stop)` for consecutive chunks of `range(rows)`, on up to `parallelism` threads.

        The calling thread always works too, so `parallelism` 1 starts nothing. An exception of one chunk stops the
        handing out of further ones and is raised when all running chunks have ended; of several, that of the earliest.
        Ctrl-C waits for none of them.
        """
        starts = iter(range(0, rows, chunk))
        failed: list[tuple[int, BaseException]] = []
        ended: SimpleQueue[None] = SimpleQueue()

        def take_part() -> None:
            for start in starts:
                if failed:
                    break
                try:
                    work(start, min(start + chunk, rows))
                except BaseException as error:  # raised in the calling thread
                    failed.append((start, error))
            ended.put(None)

        helpers = 0
        with suppress(Closed):
            while helpers < min(parallelism, -(-rows // chunk)) - 1:
                self.submit(take_part)
                helpers += 1
        take_part()
        try:
            if all(isinstance(error, Exception) for _, error in failed):
                for _ in range(helpers + 1):
                    ended.get()
        except BaseException as interrupt:  # Ctrl-C: the others stop after the chunk they are at
            failed.append((rows, interrupt))
            raise
        if failed:
            raise min(failed, key=lambda one: (isinstance(one[1], Exception), one[0]))[1]

    def submit(self, task: Callable[[], None]) -> None:
        """Call `task` at once, on a worker that has nothing to do or else on a new one. It must not raise.

        Raises:
            Closed: the threads were stopped.
        """
        with self._lock:
            if self._free <= 0 and not self._stopped:
                self._start_worker()
            if self._stopped:
                raise Closed
            self._free -= 1
            self._tasks.put(task)

    def _start_worker(self) -> None:
        self._workers += 1
        self._free += 1
        self.start(self._work, "worker")

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task
            with self._lock:
                self._free += 1

    def end_with(self, other: "Ending") -> None:
        """Have `other.end()` called when these threads are stopped, at once if they are; it is not kept alive for that.

        It may be called by the garbage collector, as `stop` may.
        """
        with self._lock:
            self._others.add(other)
            stopped = self._stopped
        if stopped:
            other.end()

    def stop(self) -> None:
        """Let the workers end after the tasks that are queued now."""
        with self._lock:
            self._stopped = True
            for other in list(self._others):
                other.end()
            for _ in range(self._workers):
                self._tasks.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the threads have ended, at most `timeout` seconds for each."""
        with self._starting:
            started = list(self._started)
        for thread in started:
            if thread is not threading.current_thread():
                thread.join(timeout)
